from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from safeecgmatch.data import download
from safeecgmatch.data.download import Request, archive_root, obtain
from safeecgmatch.data.inventory import read_sums, require_space, safe_name
from safeecgmatch.data.manifest import open_archive, read_manifest
from safeecgmatch.data.phantom import archives
from safeecgmatch.errors import UserError
from tests.conftest import build_mirror
from tests.data.http_server import serving
from tests.data.trees import AT_100_HZ, OUTSIDE, PTBXL, SIGNAL, files_in, request, write_tree


def test_archive_root_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAFEECGMATCH_DATA", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert archive_root() == tmp_path.resolve() / "data" / "raw"
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "project"))
    assert archive_root() == tmp_path.resolve() / "project" / "data" / "raw"
    monkeypatch.setenv("SAFEECGMATCH_DATA", str(tmp_path / "elsewhere"))
    assert archive_root() == tmp_path.resolve() / "elsewhere"


def test_crafted_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ptbxl.csv").write_text(f"# folder: x\nfile,size,sha256\n../../secret,3,{'0' * 64}\n")
    with pytest.raises(UserError, match="could lie outside"):
        read_manifest(tmp_path / "ptbxl.csv")


@pytest.mark.parametrize("sums", [True, False])
def test_mirror_is_used_in_place(raw: Path, manifest: Path, tmp_path: Path, sums: bool) -> None:
    mirror = write_tree(tmp_path / "mirror", PTBXL, sums)
    entries = obtain(request("path", mirror), manifest).files
    assert read_manifest(manifest).place == mirror
    assert [entry.file for entry in entries] == AT_100_HZ
    assert all(entry.sha256 == hashlib.sha256(PTBXL[entry.file]).hexdigest() for entry in entries)
    assert not raw.exists()  # nothing copied


def test_relative_path_counts_from_the_project(
    raw: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "mirror", PTBXL)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    (tmp_path / "experiment").mkdir()
    monkeypatch.chdir(tmp_path / "experiment")
    obtain(request("path", Path("mirror")), manifest)
    assert manifest.read_text().startswith("# folder: mirror\nfile,size,sha256\n"), "so that both can be moved"
    assert open_archive(manifest).folder == tmp_path / "mirror"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda mirror: (mirror / SIGNAL).write_bytes(b"short"), r"00001_lr\.dat does not have the checksum"),
        (lambda mirror: (mirror / SIGNAL).unlink(), r"00001_lr\.dat is listed but missing"),
        (lambda mirror: shutil.rmtree(mirror / "records100"), r"\(4 files are wrong or missing in all\)"),
    ],
    ids=["wrong", "missing", "several"],
)
def test_damaged_mirror_names_the_file(
    raw: Path, manifest: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    mirror = write_tree(tmp_path / "mirror", PTBXL)
    damage(mirror)
    with pytest.raises(UserError, match=message):
        obtain(request("path", mirror), manifest)
    assert not manifest.exists()


def test_wrong_folder_is_recognised(raw: Path, manifest: Path, tmp_path: Path) -> None:
    write_tree(tmp_path / "parent" / "ptbxl", PTBXL)
    with pytest.raises(UserError, match=r"parent has no ptbxl_database\.csv: it must have the layout"):
        obtain(request("path", tmp_path / "parent"), manifest)
    with pytest.raises(UserError, match=r"nowhere, which does not exist: correct it in params\.yaml"):
        obtain(request("path", tmp_path / "nowhere"), manifest)
    with pytest.raises(UserError, match=r"has no records500/….hea"):
        obtain(request("path", write_tree(tmp_path / "low", {n: PTBXL[n] for n in AT_100_HZ}), rate=500), manifest)


def test_phantom_is_made_once_per_parameters(raw: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[object, ...]] = []

    def write_archive(dataset: str, folder: Path, records: int, seed: int, sampling_rate: int) -> None:
        made.append((dataset, records, seed, sampling_rate))
        write_tree(folder, PTBXL)
        (folder / archives.MARK).write_text(archives.mark_of(dataset, records, seed, sampling_rate))

    monkeypatch.setattr(archives, "write_archive", write_archive)
    place = obtain(request("phantom"), manifest).place
    first = manifest.read_bytes()
    obtain(request("phantom"), manifest)
    assert made == [("ptbxl", 12, 7, 100)] and manifest.read_bytes() == first
    (place / SIGNAL).write_bytes(b"damaged")
    obtain(request("phantom"), manifest)
    assert len(made) == 2 and manifest.read_bytes() == first
    obtain(Request("ptbxl", "phantom", None, 100, 12, 8), manifest)
    assert made[2] == ("ptbxl", 12, 8, 100)
    assert sorted(path.name for path in raw.iterdir()) == [".ptbxl.lock", "ptbxl.phantom"]


def test_failed_phantom_leaves_nothing(raw: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_archive(dataset: str, folder: Path, records: int, seed: int, sampling_rate: int) -> None:
        raise UserError("no luck")

    monkeypatch.setattr(archives, "write_archive", write_archive)
    with pytest.raises(UserError, match="no luck"):
        obtain(request("phantom"), manifest)
    assert [path.name for path in raw.iterdir()] == [".ptbxl.lock"] and not manifest.exists()


@pytest.mark.parametrize("dataset", ["ptbxl", "cinc21"])
def test_real_generator_gives_a_verified_archive(raw: Path, tmp_path: Path, dataset: str) -> None:
    entries = obtain(request("phantom", dataset=dataset), tmp_path / f"{dataset}.csv").files
    assert sum(entry.file.endswith(".hea") for entry in entries) >= 12
    assert open_archive(tmp_path / f"{dataset}.csv").folder == raw / f"{dataset}.phantom"


def test_only_one_process_at_a_time_works_on_a_dataset(raw: Path, manifest: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with download.exclusive("ptbxl"):
            other = pool.submit(obtain, request("phantom"), manifest)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.3)
            assert not manifest.exists()
        assert len(other.result().files) > 12


def test_check_names_the_first_fault_and_the_command(raw: Path, manifest: Path, tmp_path: Path) -> None:
    mirror = write_tree(tmp_path / "mirror", PTBXL)
    obtain(request("path", mirror), manifest)
    command = re.escape("run `dvc repro -f download@ptbxl`")
    (mirror / SIGNAL).write_bytes(b"123")
    with pytest.raises(UserError, match=rf"00001_lr\.dat has 3 bytes instead of 24000: {command}"):
        open_archive(manifest)
    (mirror / SIGNAL).unlink()
    with pytest.raises(UserError, match=rf"00001_lr\.dat is missing \(.*\): {command}"):
        open_archive(manifest)
    with pytest.raises(UserError, match=rf"none/ptbxl\.csv does not exist: {command}"):
        open_archive(tmp_path / "none" / "ptbxl.csv")
    for text in ("", "file,size,sha256\n", "# folder: x\n", "# folder: x\nfile,size,sha256\na,b,c\n"):
        manifest.write_text(text)
        with pytest.raises(UserError, match=rf"is not a manifest with a folder and file,size,sha256: {command}"):
            open_archive(manifest)
    manifest.write_bytes(b"# folder: x\nfile,size,sha256\na\xff,1,0\n")
    with pytest.raises(UserError, match=rf"is missing \(.*\): {command}"):
        open_archive(manifest)


@pytest.mark.parametrize("name", [*OUTSIDE, "", "..", "a/..", "a\x00b", "a\nb"])
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="could lie outside the data folder"):
        safe_name(name, "SHA256SUMS.txt")


def test_harmless_names_are_plain() -> None:
    assert safe_name("./training//ptb/a..b.hea", "x") == "training/ptb/a..b.hea"


def test_checksum_lines_with_one_blank_two_or_a_star(tmp_path: Path) -> None:
    digest = "AB" * 32
    (tmp_path / "sums").write_text(f"{digest} a.hea\n{digest}  b.hea\n{digest} *c d.hea\n\n")
    assert read_sums(tmp_path / "sums", "sums") == dict.fromkeys(["a.hea", "b.hea", "c d.hea"], digest.lower())
    (tmp_path / "sums").write_text(f"{digest} a.hea\n<html>Busy</html>\n")
    with pytest.raises(UserError, match="sums, line 2 is not"):
        read_sums(tmp_path / "sums", "sums")


def test_space_is_looked_up_where_the_folder_will_be(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "yet" / "there", 1, "ptbxl")


@pytest.mark.real
@pytest.mark.parametrize("dataset", ["ptbxl", "cinc21"])
def test_mirror_of_real_records(
    material: Path, raw: Path, tmp_path: Path, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror used in place and the same mirror fetched over HTTP give the same manifest."""
    mirror, manifest = tmp_path / "mirror", tmp_path / f"{dataset}.csv"
    build_mirror(material, dataset, mirror, "--limit", "30", *(["--rate", "100"] if dataset == "ptbxl" else []))
    entries = obtain(request("path", mirror, dataset), manifest).files
    records = 30 if dataset == "ptbxl" else 130  # the Challenge mirror always holds 100 original samples
    assert sum(entry.file.endswith(".hea") for entry in entries) == records
    assert sum(entry.file.endswith((".dat", ".mat")) for entry in entries) == records
    with serving() as server:
        server.files.update({name: (mirror / name).read_bytes() for name in files_in(mirror)})
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv(f"SAFEECGMATCH_{dataset.upper()}_URL", server.url)
        assert obtain(request("physionet", None, dataset), manifest).files == entries
