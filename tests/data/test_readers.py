from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from safeecgmatch.data.readers import Recording, Unreadable, header_lines, parse_header, read_record, read_with_wfdb
from tests.data.tiny import waves, write_record


def assert_same(ours: Recording, reference: wfdb.Record) -> None:
    np.testing.assert_array_equal(ours.physical(), reference.p_signal)
    assert ours.rate == reference.fs
    assert (list(ours.units), list(ours.names)) == (reference.units, reference.sig_name)


def same_as_wfdb(header: Path) -> None:
    assert_same(read_record(header), wfdb.rdrecord(str(header.with_suffix(""))))


def is_plain(header: Path) -> bool:
    return parse_header(header_lines(header.read_text())) is not None


@pytest.mark.parametrize("form", ["16", "16+24", "16x1+24"])
@pytest.mark.parametrize("gain", ["1000/mV", "1000.0(0)/mV", "4880/mv", "200(-7)/uV", "2e3(512)/mV", "1000"])
def test_plain_forms_equal_wfdb_and_take_the_fast_path(tmp_path: Path, form: str, gain: str) -> None:
    header = write_record(tmp_path / "a1.hea", waves(1, 50), form=form, gain=gain, zero=3)
    assert is_plain(header)
    same_as_wfdb(header)


@settings(max_examples=30, deadline=None)
@given(
    leads=st.integers(1, 13),
    samples=st.integers(1, 30),
    gain=st.floats(0.01, 1e6).map(lambda value: f"{value:.3f}"),
    baseline=st.none() | st.integers(-40000, 40000),
    rate=st.sampled_from(["100", "257", "500", "1000", "360.5"]),
    seed=st.integers(0, 99),
)
def test_any_plain_record_equals_wfdb(
    tmp_path_factory: pytest.TempPathFactory, leads: int, samples: int, gain: str, baseline: int | None, rate: str,
    seed: int,
) -> None:  # fmt: skip
    values = np.random.default_rng(seed).integers(-32768, 32768, (samples, leads)).astype(np.int16)
    text = gain + ("" if baseline is None else f"({baseline})") + "/mV"
    header = write_record(tmp_path_factory.mktemp("any") / "r.hea", values, rate, gain=text, zero=seed)
    assert is_plain(header)
    same_as_wfdb(header)


def test_a_date_in_the_record_line_is_plain(tmp_path: Path) -> None:
    header = write_record(tmp_path / "A5.hea", waves(1, 40), line="A5 12 500 40 12:33:59 12/05/2020")
    assert is_plain(header)
    same_as_wfdb(header)


def test_a_file_name_as_record_name_is_read_although_wfdb_refuses_it(tmp_path: Path) -> None:
    values = waves(2, 40)
    header = write_record(tmp_path / "E4.hea", values, form="16+24", line="E4.mat 12 500 40 05-May-2020 14:50:55")
    with pytest.raises(wfdb.io.header.HeaderSyntaxError):
        wfdb.rdheader(str(header.with_suffix("")))
    np.testing.assert_array_equal(read_record(header).values, values)


def test_missing_samples_are_nan_and_marked(tmp_path: Path) -> None:
    values = waves(3, 20)
    values[4, 7] = -32768
    recording = read_record(write_record(tmp_path / "n.hea", values))
    assert np.argwhere(recording.invalid()).tolist() == [[4, 7]]
    assert np.argwhere(np.isnan(recording.physical())).tolist() == [[4, 7]]


def test_whether_any_sample_is_missing() -> None:
    def recording(values: NDArray[np.int16] | NDArray[np.float64]) -> Recording:
        return Recording(100, values, np.ones(12), np.zeros(12), ("mV",) * 12)

    whole = waves(3, 20)
    missing, infinite = whole.copy(), whole.astype(float)
    missing[19, 11], infinite[0, 0] = -32768, np.inf
    found = [recording(each).has_invalid() for each in (whole, missing, whole.astype(float), infinite, whole[:0])]
    assert found == [False, True, False, True, False]


def test_microvolts_are_the_stored_integers_at_1000_per_millivolt(tmp_path: Path) -> None:
    recording = read_record(write_record(tmp_path / "m.hea", waves(3, 20)))
    assert recording.microvolts() is recording.values


@pytest.mark.parametrize(("gain", "factor"), [("200/mV", 5.0), ("2/uV", 0.5), ("1000000/V", 1.0)])
def test_microvolts_of_other_gains_and_units(tmp_path: Path, gain: str, factor: float) -> None:
    values = waves(3, 20)
    recording = read_record(write_record(tmp_path / "m.hea", values, gain=gain))
    np.testing.assert_allclose(recording.microvolts(), values * factor, rtol=1e-12)


def test_other_formats_fall_back_to_wfdb(tmp_path: Path) -> None:
    signal = np.round(np.sin(np.arange(240).reshape(20, 12)), 3)
    names = [f"L{n}" for n in range(12)]
    for form in ("212", "24"):
        wfdb.wrsamp(f"f{form}", 500, ["mV"] * 12, names, signal, fmt=[form] * 12, write_dir=str(tmp_path))
        header = tmp_path / f"f{form}.hea"
        assert not is_plain(header)
        same_as_wfdb(header)


def test_the_fallback_reads_what_the_fast_path_reads(tmp_path: Path) -> None:
    header = write_record(tmp_path / "b.hea", waves(5, 30), gain="4880/mV")
    np.testing.assert_array_equal(read_with_wfdb(header).microvolts(), read_record(header).microvolts())


def test_a_unit_that_is_no_voltage_is_refused(tmp_path: Path) -> None:
    recording = read_record(write_record(tmp_path / "u.hea", waves(1, 20), gain="10/mmHg"))
    with pytest.raises(Unreadable, match="unit 'mmHg', which is not a voltage"):
        recording.microvolts()


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"gone\.hea is missing"):
        read_record(tmp_path / "gone.hea")
    header = write_record(tmp_path / "a.hea", waves(1, 20))
    (tmp_path / "a.dat").unlink()
    with pytest.raises(Unreadable, match=r"a\.dat is missing"):
        read_record(header)
    (tmp_path / "a.dat").mkdir()
    (tmp_path / "b.hea").mkdir()
    with pytest.raises(Unreadable, match=r"a\.dat"):
        read_record(header)
    with pytest.raises(Unreadable, match=r"b\.hea cannot be opened"):
        read_record(tmp_path / "b.hea")


def test_a_cut_off_signal_file_is_named(tmp_path: Path) -> None:
    header = write_record(tmp_path / "a.hea", waves(1, 20))
    data = tmp_path / "a.dat"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(Unreadable, match=r"a\.dat holds 4 samples per lead, its header says 20"):
        read_record(header)


@pytest.mark.parametrize("form", ["16", "16+24", "212"])
def test_a_signal_without_the_checksum_of_its_header_is_unreadable(tmp_path: Path, form: str) -> None:
    if form == "212":
        wfdb.wrsamp("a", 100, ["mV"] * 2, ["I", "II"], np.sin(np.arange(40.0).reshape(20, 2)), fmt=[form] * 2,
                    write_dir=str(tmp_path))  # fmt: skip
    else:
        write_record(tmp_path / "a.hea", waves(1, 20), form=form)
    read_record(tmp_path / "a.hea")
    [data] = {*tmp_path.iterdir()} - {tmp_path / "a.hea"}
    content = bytearray(data.read_bytes())
    content[-2] ^= 1
    data.write_bytes(content)
    with pytest.raises(Unreadable, match=r"signal \d+ of a\.(dat|mat) does not have the checksum"):
        read_record(tmp_path / "a.hea")


@pytest.mark.parametrize("checksum", ["", "-1", "65535", "x", "9" * 5000])
def test_checksums_are_compared_modulo_65536_and_only_where_there_is_one(tmp_path: Path, checksum: str) -> None:
    values = np.array([[2], [-3]], dtype="<i2")
    (tmp_path / "a.dat").write_bytes(values.tobytes())
    (tmp_path / "a.hea").write_text(f"a 1 100 2\na.dat 16 1000/mV 16 0 2 {checksum}\n")
    np.testing.assert_array_equal(read_record(tmp_path / "a.hea").values, values)


def test_no_samples_is_a_short_record_not_an_error(tmp_path: Path) -> None:
    assert read_record(write_record(tmp_path / "a.hea", waves(1, 20), line="a 12 100 0")).values.shape == (0, 12)


def test_a_header_that_asks_for_terabytes_allocates_nothing(tmp_path: Path) -> None:
    header = write_record(tmp_path / "a.hea", waves(1, 20), line="a 12 100 999999999999")
    with pytest.raises(Unreadable, match="holds 20 samples per lead, its header says 999999999999"):
        read_record(header)


@pytest.mark.parametrize(
    "file", ["../a.dat", "/etc/passwd", "..", "sub/a.dat", "C:\\a.dat", ".hidden", "http://x/a.dat"]
)
@pytest.mark.parametrize("form", ["16", "212"])
def test_a_header_cannot_name_a_file_outside_its_folder(tmp_path: Path, file: str, form: str) -> None:
    write_record(tmp_path / "a.hea", waves(1, 20))
    header = write_record(tmp_path / "sub" / "b.hea", waves(1, 20), form=form, file=file)
    with pytest.raises(Unreadable, match="not a plain name in its own folder"):
        read_record(header)


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "# only a comment\n", "a 12\n", "a ² 100 10\n", "a 0 100 10\n", "a 1 100 10\na.dat 16 --5 16 --5\n"],
)
def test_nonsense_is_unreadable_and_never_another_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.hea").write_text(text)
    with pytest.raises(Unreadable, match=r"a\.hea"):
        read_record(tmp_path / "a.hea")


@settings(max_examples=40, deadline=None)
@given(junk=st.binary(max_size=80))
def test_random_bytes_are_unreadable_and_never_another_error(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    header = tmp_path_factory.mktemp("junk") / "a.hea"
    header.write_bytes(junk)
    with pytest.raises(Unreadable):
        read_record(header)


def compare_all(headers: list[Path]) -> tuple[int, list[str]]:
    """Compare all; how many were equal, and which wfdb refuses (ours must read those too)."""
    refused = []
    for header in headers:
        try:
            reference = wfdb.rdrecord(str(header.with_suffix("")))
        except wfdb.io.header.HeaderSyntaxError:
            refused.append(header.stem)
            assert read_record(header).leads == 12
            continue
        assert is_plain(header), header
        assert_same(read_record(header), reference)
    return len(headers) - len(refused), refused


@pytest.mark.real
def test_the_original_samples_equal_wfdb(material: Path) -> None:
    equal, refused = compare_all(sorted((material / "data" / "cinc21" / "samples").glob("*.hea")))
    assert equal == 76
    assert len(refused) == 24
    assert all(name.startswith("E") for name in refused)


@pytest.mark.real
@pytest.mark.slow
def test_every_record_of_the_mini_corpus_equals_wfdb(cinc21_mirror: Path) -> None:
    equal, refused = compare_all(sorted(cinc21_mirror.rglob("*.hea")))
    assert (equal, len(refused)) == (1284, 24)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_record_of_ptbxl_equals_wfdb(ptbxl_mirror: Path) -> None:
    """The mirror holds all single-label records at 100 Hz, and 300 of them at 500 Hz too."""
    assert compare_all(sorted((ptbxl_mirror / "records100").rglob("*.hea"))) == (16_244, [])
    assert compare_all(sorted((ptbxl_mirror / "records500").rglob("*.hea"))) == (300, [])
