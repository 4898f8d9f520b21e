from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from safeecgmatch.data.download import obtain
from safeecgmatch.data.inventory import ListedFile
from safeecgmatch.data.manifest import open_archive, read_manifest
from safeecgmatch.errors import UserError
from tests.data.http_server import FaultyServer
from tests.data.trees import AT_100_HZ, OUTSIDE, PTBXL, SIGNAL, files_in, request, sums_of, write_tree, write_zip


@pytest.fixture
def server(faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> FaultyServer:
    publish(faulty_server, PTBXL)
    monkeypatch.setenv("SAFEECGMATCH_PTBXL_URL", faulty_server.url + "ptb-xl/1.0.3")
    return faulty_server


def publish(server: FaultyServer, files: dict[str, bytes], sums: bytes | None = None) -> None:
    server.files.update({f"ptb-xl/1.0.3/{name}": body for name, body in files.items()})
    server.files["ptb-xl/1.0.3/SHA256SUMS.txt"] = sums_of(files) if sums is None else sums


@pytest.mark.parametrize("name", OUTSIDE)
def test_crafted_checksum_list_is_refused(
    server: FaultyServer, raw: Path, manifest: Path, tmp_path: Path, name: str
) -> None:
    publish(server, PTBXL, sums_of({**PTBXL, name: b"evil"}))
    with pytest.raises(UserError, match="could lie outside the data folder: it is refused"):
        obtain(request("physionet"), manifest)
    assert files_in(tmp_path) == ["raw/ptbxl.physionet/SHA256SUMS.txt"]
    assert {path for _, path, _ in server.requests} == {"ptb-xl/1.0.3/SHA256SUMS.txt"}


def test_link_in_the_data_folder_is_not_followed_outside(
    server: FaultyServer, raw: Path, manifest: Path, tmp_path: Path
) -> None:
    (tmp_path / "victim").mkdir()
    (raw / "ptbxl.physionet").mkdir(parents=True)
    (raw / "ptbxl.physionet" / "records100").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="leads outside"):
        obtain(request("physionet"), manifest)
    assert files_in(tmp_path / "victim") == []
    assert not manifest.exists()


def test_download_takes_what_is_needed_and_lists_it(server: FaultyServer, raw: Path, manifest: Path) -> None:
    found = obtain(request("physionet"), manifest)
    assert [entry.file for entry in found.files] == AT_100_HZ
    assert read_manifest(manifest) == found and found.place == raw / "ptbxl.physionet"
    assert files_in(raw / "ptbxl.physionet") == sorted([*AT_100_HZ, "SHA256SUMS.txt"])
    digest = hashlib.sha256(PTBXL[SIGNAL]).hexdigest()
    assert ListedFile(SIGNAL, 24_000, digest) in found.files
    assert (open_archive(manifest).files or {})[SIGNAL] == digest


def test_second_run_fetches_only_what_is_missing_or_damaged(server: FaultyServer, raw: Path, manifest: Path) -> None:
    obtain(request("physionet"), manifest)
    first = manifest.read_bytes()
    (raw / "ptbxl.physionet" / SIGNAL).write_bytes(b"\xff" * 24_000)
    (raw / "ptbxl.physionet" / "scp_statements.csv").unlink()
    server.requests.clear()
    obtain(request("physionet"), manifest)
    fetched = {path.removeprefix("ptb-xl/1.0.3/") for _, path, _ in server.requests}
    assert fetched == {"SHA256SUMS.txt", SIGNAL, "scp_statements.csv"}
    assert manifest.read_bytes() == first


def test_download_survives_a_bad_day(server: FaultyServer, raw: Path, manifest: Path) -> None:
    server.faults[f"ptb-xl/1.0.3/{SIGNAL}"] = ["cut 10000", "busy 0", "status 500"]
    server.faults["ptb-xl/1.0.3/SHA256SUMS.txt"] = ["cut 100"]
    server.faults["ptb-xl/1.0.3/ptbxl_database.csv"] = ["wrong"]
    server.files["mirror/scp.csv"] = PTBXL["scp_statements.csv"]
    server.faults["ptb-xl/1.0.3/scp_statements.csv"] = ["redirect /mirror/scp.csv"]
    obtain(request("physionet"), manifest)
    assert all((raw / "ptbxl.physionet" / name).read_bytes() == PTBXL[name] for name in AT_100_HZ)
    assert server.gets(f"ptb-xl/1.0.3/{SIGNAL}") == [None, *["bytes=10000-"] * 3]


def test_failed_download_names_the_file_and_leaves_no_manifest(server: FaultyServer, raw: Path, manifest: Path) -> None:
    manifest.parent.mkdir()
    manifest.write_text("of an earlier run")
    server.always[f"ptb-xl/1.0.3/{SIGNAL}"] = "cut 0"
    sentence = r"00001_lr\.dat could not be fetched, 6 tries .* cut after 0 of 24000 bytes"
    with pytest.raises(UserError, match=sentence) as error:
        obtain(request("physionet"), manifest)
    assert "\n" not in str(error.value)
    assert not manifest.exists()
    for name in files_in(raw / "ptbxl.physionet"):
        if not name.endswith(("SHA256SUMS.txt", ".part")):
            assert (raw / "ptbxl.physionet" / name).read_bytes() == PTBXL[name]
    assert SIGNAL not in files_in(raw / "ptbxl.physionet")


def test_server_without_the_dataset(server: FaultyServer, raw: Path, manifest: Path) -> None:
    publish(server, {}, sums_of({"LICENSE.txt": b"x"}))
    with pytest.raises(UserError, match=r"SHA256SUMS\.txt has no ptbxl_database\.csv: it must have the layout"):
        obtain(request("physionet"), manifest)


def test_killed_stage_resumes(server: FaultyServer, raw: Path, manifest: Path, tmp_path: Path) -> None:
    """SIGKILL during a file: whole files and one `.part` are left, no manifest; the next run asks for the rest only."""
    script = f"""
from pathlib import Path
from safeecgmatch.data import download, http
http.FIRST_WAIT = 1000.0
download.obtain(download.Request("ptbxl", "physionet", None, 100, 12, 7), Path({str(manifest)!r}))
"""
    server.faults[f"ptb-xl/1.0.3/{SIGNAL}"] = ["cut 9000"]
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    part = raw / "ptbxl.physionet" / f"{SIGNAL}.part"
    whole = [raw / "ptbxl.physionet" / name for name in AT_100_HZ if name != SIGNAL]
    while not (part.exists() and part.stat().st_size == 9000 and all(map(Path.exists, whole))):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert not manifest.exists()
    server.requests.clear()
    obtain(request("physionet"), manifest)
    assert sorted(open_archive(manifest).files or {}) == AT_100_HZ
    assert server.gets(f"ptb-xl/1.0.3/{SIGNAL}") == ["bytes=9000-"]
    assert len(server.requests) == 2  # the list and the rest of that file


def test_zip_from_the_web_is_resumed_unpacked_and_kept(
    server: FaultyServer, raw: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"ptb-xl-1.0.3/{name}": body for name, body in {**PTBXL, "SHA256SUMS.txt": sums_of(PTBXL)}.items()}
    server.files["ptb.zip"] = write_zip(tmp_path / "ptb.zip", files).read_bytes()
    server.faults["ptb.zip"] = ["cut 700"]
    monkeypatch.setenv("SAFEECGMATCH_PTBXL_URL", server.url + "ptb.zip")
    entries = obtain(request("physionet"), manifest).files
    assert [entry.file for entry in entries] == AT_100_HZ
    assert server.gets("ptb.zip") == [None, "bytes=700-"]
    assert files_in(raw / "ptbxl.unzipped") == sorted([*AT_100_HZ, "SHA256SUMS.txt"])
    obtain(request("physionet"), manifest)
    assert any(file.file.startswith("records500/") for file in obtain(request("physionet", rate=500), manifest).files)
    assert len(server.gets("ptb.zip")) == 2  # not fetched again, not even for other files of it


def test_broken_zip_from_the_web_is_fetched_twice_then_named(
    server: FaultyServer, raw: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["ptb.zip"] = b"not a zip"
    monkeypatch.setenv("SAFEECGMATCH_PTBXL_URL", server.url + "ptb.zip")
    with pytest.raises(UserError, match=r"ptb\.zip was fetched twice and is not a whole zip file"):
        obtain(request("physionet"), manifest)
    assert len(server.gets("ptb.zip")) == 2
    assert files_in(raw / "ptbxl.unzipped") == [] and not manifest.exists()


def test_disk_space_is_checked_before_the_first_signal(
    server: FaultyServer, raw: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(raw.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1_500_000))
    with pytest.raises(
        UserError, match=r"ptbxl needs about 7\.\d MB in .*, but only 1\.5 MB are free: free some space"
    ):
        obtain(request("physionet"), manifest)
    assert {path for _, path, _ in server.requests} == {"ptb-xl/1.0.3/SHA256SUMS.txt"}


def test_changing_the_source_keeps_the_data(server: FaultyServer, raw: Path, manifest: Path, tmp_path: Path) -> None:
    obtain(request("physionet"), manifest)
    obtain(request("path", write_tree(tmp_path / "mirror", PTBXL)), manifest)
    assert (raw / "ptbxl.physionet" / SIGNAL).is_file()
    server.requests.clear()
    obtain(request("physionet"), manifest)
    assert read_manifest(manifest).place == raw / "ptbxl.physionet"
    assert len(server.requests) == 1  # only the list of checksums
