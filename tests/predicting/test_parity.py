"""What predict gives the network is what filter stored for the training, bit for bit, whatever the record's rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from safeecgmatch.data.filtering import filter_dataset
from safeecgmatch.data.phantom.archives import write_archive
from safeecgmatch.engine.signal_store import SignalStore
from safeecgmatch.engine.signals import SignalSource
from safeecgmatch.predicting.running import Question, read_portions
from safeecgmatch.predicting.trained import Trained
from tests.data.tiny import waves, write_cinc, write_ptbxl, write_record
from tests.methods.harness import split_data
from tests.predicting.conftest import SHORT, Made, train_cell
from tests.predicting.test_trained import assert_same_bytes

RATES, SECONDS = (500, 257, 1000, 100), (6.2, 10, 12)


@pytest.fixture(scope="module")
def cinc_cell(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A cell on generated CinC21 records of 500 Hz, filtered as the paper says: band-pass, 100 Hz, standardised."""
    folder = tmp_path_factory.mktemp("cinc21")
    write_archive("cinc21", folder / "raw", 300, seed=7, sampling_rate=500)
    filter_dataset("cinc21", folder / "raw", folder / "data/filtered/cinc21", 100, "ecgmatch", workers=1)
    data = split_data(folder / "data", "cinc21", 60, 1, 10, 100)
    return train_cell(data, folder / "raw", folder, "supervised", dataset="cinc21", width=2, **SHORT)


@pytest.mark.parametrize("part", ["validation", "open_test"])
def test_a_cinc21_cells_own_records_give_the_bytes_of_its_predictions(cinc_cell: Made, part: str) -> None:
    assert_same_bytes(cinc_cell, part)


def write_records(folder: Path) -> None:
    """Of every rate and length, all of one class."""
    for rate in RATES:
        for seconds in SECONDS:
            values = np.cumsum(waves(rate, round(rate * seconds)) // 50, axis=0).astype("<i2")
            write_cinc(folder, f"E{rate}x{seconds}", "164889003", values=values, rate=str(rate))


def assert_parity(trained: Trained, headers: list[Path], store: SignalStore) -> None:
    [portion] = read_portions([Question("", header) for header in headers], trained)
    assert not portion.bad and len(portion.questions) == len(store)
    np.testing.assert_array_equal([record.row for record in portion.records], store.signals)
    assert [record.length for record in portion.records] == store.lengths.tolist()
    stored = SignalSource(store, trained.device).gather(torch.arange(len(store)))
    assert torch.cat([*trained.inputs(portion.records)]).numpy().tobytes() == stored.numpy().tobytes()


@pytest.mark.parametrize("sampling_rate", [100, 500])
@pytest.mark.parametrize("preprocessing", ["ecgmatch", "release"])
def test_records_of_any_rate_and_length_equal_their_stored_rows(
    cinc_cell: Made, tmp_path: Path, preprocessing: str, sampling_rate: int
) -> None:
    write_records(tmp_path / "in")
    filter_dataset("cinc21", tmp_path / "in", tmp_path / "out", sampling_rate, preprocessing)
    store = SignalStore.open(tmp_path / "out")
    assert len(store) == len(RATES) * len(SECONDS)
    assert (store.lengths < store.samples).sum() == len(RATES)
    trained = Trained.open(cinc_cell.folder)
    data = trained.config["data"] | {"preprocessing": preprocessing, "sampling_rate": sampling_rate}
    trained = replace(trained, config=trained.config | {"data": data})
    folder = tmp_path / "in/training/georgia/g1"
    assert_parity(trained, [folder / f"{record}.hea" for record in store.records.tolist()], store)


@pytest.mark.parametrize("sampling_rate", [100, 250, 500])
def test_ptbxl_at_its_own_and_at_another_rate(trained: Trained, tmp_path: Path, sampling_rate: int) -> None:
    rate = 100 if sampling_rate == 100 else 500
    names = [f"records{rate}/00000/{number:05d}" for number in range(1, 6)]
    write_ptbxl(tmp_path / "in", [(number, "{'NORM': 1.0}", name) for number, name in enumerate(names, 1)])
    for number, name in enumerate(names):
        write_record(tmp_path / f"in/{name}.hea", waves(number, 10 * rate), str(rate))
    filter_dataset("ptbxl", tmp_path / "in", tmp_path / "out", sampling_rate, "none")
    trained = replace(
        trained, config=trained.config | {"data": trained.config["data"] | {"sampling_rate": sampling_rate}}
    )
    assert_parity(trained, [tmp_path / f"in/{name}.hea" for name in names], SignalStore.open(tmp_path / "out"))


def test_a_long_record_at_another_rate_is_standardised_and_answered(cinc_cell: Made, tmp_path: Path) -> None:
    """And the same ECG of twice the amplitude is the same ECG to the network."""
    trained = Trained.open(cinc_cell.folder)
    values = np.cumsum(waves(3, 12 * 257) // 50, axis=0).astype("<i2")
    for name, gain in (("a", "1000/mV"), ("b", "500/mV")):
        write_record(tmp_path / f"{name}.hea", values, "257", gain=gain)
    [portion] = read_portions([Question(name, tmp_path / f"{name}.hea") for name in "ab"], trained)
    assert [record.note for record in portion.records] == ["first 10 of 12 s, resampled from 257 to 100 Hz"] * 2
    [x] = trained.inputs(portion.records)
    np.testing.assert_allclose(x.mean(dim=2), 0, atol=1e-4)
    np.testing.assert_allclose(x.std(dim=2, correction=0), 1, atol=1e-3)
    np.testing.assert_allclose(x[0], x[1], atol=0.02)  # microvolts are rounded, so not quite
    scores = trained.scores(portion.records)
    np.testing.assert_allclose(np.exp(scores.log_probs).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.real
def test_real_records_of_the_challenge(cinc_cell: Made, cinc21_mirror: Path, tmp_path: Path) -> None:
    """1,303 records of 500 and 1,000 Hz, 5 to 60 s: what filter keeps is answered, from the same bytes."""
    filter_dataset("cinc21", cinc21_mirror, tmp_path / "out", 100, "ecgmatch")
    store, trained = SignalStore.open(tmp_path / "out"), Trained.open(cinc_cell.folder)
    files = {file.stem: file for file in cinc21_mirror.rglob("*.hea")}
    portions = list(read_portions([Question("", files[record]) for record in store.records.tolist()], trained))
    assert not any(portion.bad for portion in portions)
    np.testing.assert_array_equal([record.row for portion in portions for record in portion.records], store.signals)
