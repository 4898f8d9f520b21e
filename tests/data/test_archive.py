from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from safeecgmatch.data import archive, http
from safeecgmatch.data.archive import Request, archive_root, check_archive, dataset_folder, obtain, read_manifest
from safeecgmatch.data.inventory import Entry, estimated_size, needed_files, read_sums, require_space, safe_name
from safeecgmatch.errors import UserError
from tests.data.http_server import FaultyServer, serving

PTBXL = {
    "ptbxl_database.csv": b"ecg_id,scp_codes\n1,{}\n",
    "scp_statements.csv": b",diagnostic\nNORM,1\n",
    "records100/00000/00001_lr.hea": b"00001_lr 12 100 1000\n",
    "records100/00000/00001_lr.dat": b"\x01\x02" * 12_000,
    "records100/00000/00002_lr.hea": b"00002_lr 12 100 1000\n",
    "records100/00000/00002_lr.dat": b"\x03\x04" * 12_000,
    "records500/00000/00001_hr.hea": b"00001_hr 12 500 5000\n",
    "records500/00000/00001_hr.dat": b"\x05\x06" * 60_000,
    "LICENSE.txt": b"CC BY 4.0\n",
}
AT_100_HZ = sorted(name for name in PTBXL if name.endswith(".csv") or name.startswith("records100/"))
SIGNAL = "records100/00000/00001_lr.dat"
OUTSIDE = ["/etc/passwd", "../../evil.hea", "records100/../../evil.hea", "C:\\evil.hea", "records100\\..\\evil.hea"]


def sums_of(files: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(body).hexdigest()} {name}\n" for name, body in files.items()).encode()


def write_tree(folder: Path, files: dict[str, bytes], sums: bool = True) -> Path:
    for name, body in ({**files, "SHA256SUMS.txt": sums_of(files)} if sums else files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    return folder


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as content:
        for name, body in files.items():
            content.writestr(name, body)
    return path


def request(source: str, path: Path | None = None, dataset: str = "ptbxl", rate: int = 100) -> Request:
    return Request(dataset, source, str(path) if path else None, rate, phantom_records=12, phantom_seed=7)


def files_in(folder: Path) -> list[str]:
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.endswith((".lock", ".source.json")))


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAFEECGMATCH_DATA", str(tmp_path / "raw"))
    return tmp_path / "raw"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "manifests" / "ptbxl.csv"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    monkeypatch.setattr(http, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        publish(server, PTBXL)
        monkeypatch.setenv("SAFEECGMATCH_PTBXL_URL", server.url + "ptb-xl/1.0.3")
        yield server


def publish(server: FaultyServer, files: dict[str, bytes], sums: bytes | None = None) -> None:
    server.files.update({f"ptb-xl/1.0.3/{name}": body for name, body in files.items()})
    server.files["ptb-xl/1.0.3/SHA256SUMS.txt"] = sums_of(files) if sums is None else sums


# ------------------------------------------------------------------------------------------------ places


def test_archive_root_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAFEECGMATCH_DATA", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert archive_root() == tmp_path.resolve() / "data" / "raw"
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "project"))
    assert dataset_folder("ptbxl") == tmp_path.resolve() / "project" / "data" / "raw" / "ptbxl"
    monkeypatch.setenv("SAFEECGMATCH_DATA", str(tmp_path / "elsewhere"))
    assert dataset_folder("cinc21") == tmp_path.resolve() / "elsewhere" / "cinc21"


def test_published_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for dataset in ("ptbxl", "cinc21"):
        monkeypatch.delenv(f"SAFEECGMATCH_{dataset.upper()}_URL", raising=False)
    assert archive.base_url("ptbxl") == "https://physionet.org/files/ptb-xl/1.0.3/"
    assert archive.base_url("cinc21") == "https://physionet.org/files/challenge-2021/1.0.3/"


@pytest.mark.parametrize(("rate", "folder"), [(100, "records100"), (500, "records500"), (250, "records500")])
def test_only_one_rate_is_needed(rate: int, folder: str) -> None:
    wanted = needed_files("ptbxl", rate)
    folders = {name.split("/")[0] for name in PTBXL if wanted.fullmatch(name)}
    assert folders == {"ptbxl_database.csv", "scp_statements.csv", folder}


def test_cinc_needs_its_training_records_only() -> None:
    names = ["training/ptb/g1/S1.mat", "training/ptb/g1/S1.hea", "training/ptb/g1/RECORDS", "LICENSE.txt", "x/a.mat"]
    assert [name for name in names if needed_files("cinc21", 500).fullmatch(name)] == names[:2]


# ------------------------------------------------------------------------------------------------ crafted names


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


@pytest.mark.parametrize("name", OUTSIDE)
def test_crafted_checksum_list_is_refused(
    server: FaultyServer, raw: Path, manifest: Path, tmp_path: Path, name: str
) -> None:
    publish(server, PTBXL, sums_of({**PTBXL, name: b"evil"}))
    with pytest.raises(UserError, match="could lie outside the data folder: it is refused"):
        obtain(request("physionet"), manifest)
    assert files_in(tmp_path) == ["raw/ptbxl.physionet/SHA256SUMS.txt"]
    assert {path for _, path, _ in server.requests} == {"ptb-xl/1.0.3/SHA256SUMS.txt"}


@pytest.mark.parametrize("name", OUTSIDE)
def test_crafted_zip_is_refused(raw: Path, manifest: Path, tmp_path: Path, name: str) -> None:
    path = write_zip(tmp_path / "ptb.zip", {**PTBXL, name: b"evil"})
    with pytest.raises(UserError, match=r"ptb\.zip names the file .* it is refused"):
        obtain(request("path", path), manifest)
    assert files_in(tmp_path) == ["ptb.zip"]
    assert not dataset_folder("ptbxl").exists()


def test_zip_with_a_link_is_refused(raw: Path, manifest: Path, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ptb.zip", PTBXL)
    member = zipfile.ZipInfo("records100/link.hea")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as content:
        content.writestr(member, "/etc/passwd")
    with pytest.raises(UserError, match=r"holds the link 'records100/link\.hea': a zip with links is refused"):
        obtain(request("path", path), manifest)
    assert files_in(tmp_path) == ["ptb.zip"]


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


def test_crafted_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ptbxl.csv").write_text(f"file,size,sha256\n../../secret,3,{'0' * 64}\n")
    with pytest.raises(UserError, match="could lie outside"):
        read_manifest(tmp_path / "ptbxl.csv")


# ------------------------------------------------------------------------------------------------ download


def test_download_takes_what_is_needed_and_lists_it(server: FaultyServer, raw: Path, manifest: Path) -> None:
    entries = obtain(request("physionet"), manifest)
    assert [entry.file for entry in entries] == AT_100_HZ
    assert read_manifest(manifest) == entries
    assert files_in(raw / "ptbxl.physionet") == sorted([*AT_100_HZ, "SHA256SUMS.txt"])
    assert dataset_folder("ptbxl").readlink() == Path("ptbxl.physionet")
    expected = Entry(SIGNAL, 24_000, hashlib.sha256(PTBXL[SIGNAL]).hexdigest())
    assert expected in check_archive(manifest, dataset_folder("ptbxl"))
    assert manifest.read_text().startswith("file,size,sha256\n") and str(raw) not in manifest.read_text()


def test_second_run_fetches_only_what_is_missing_or_damaged(server: FaultyServer, raw: Path, manifest: Path) -> None:
    obtain(request("physionet"), manifest)
    first = manifest.read_bytes()
    (dataset_folder("ptbxl") / SIGNAL).write_bytes(b"\xff" * 24_000)
    (dataset_folder("ptbxl") / "scp_statements.csv").unlink()
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
    assert all((dataset_folder("ptbxl") / name).read_bytes() == PTBXL[name] for name in AT_100_HZ)
    assert server.gets(f"ptb-xl/1.0.3/{SIGNAL}") == [None, *["bytes=10000-"] * 3]


FAILURES = [
    ("wrong", r"00001_lr\.dat was fetched twice and its checksum was not the one in SHA256SUMS\.txt"),
    ("busy 0", r"00001_lr\.dat could not be fetched, 6 tries in a row failed \(last: the server answered 503"),
    ("cut 0", r"00001_lr\.dat could not be fetched, 6 tries .* cut after 0 of 24000 bytes"),
    ("status 404", r"00001_lr\.dat cannot be fetched, the server answered 404"),
    ("redirect ftp://x/y", r"00001_lr\.dat redirects to 'ftp://x/y', which is not a web address"),
]


@pytest.mark.parametrize(("fault", "message"), FAILURES, ids=[fault for fault, _ in FAILURES])
def test_failed_download_names_the_file_and_leaves_no_manifest(
    server: FaultyServer, raw: Path, manifest: Path, tmp_path: Path, fault: str, message: str
) -> None:
    manifest.parent.mkdir()
    manifest.write_text("of an earlier run")
    server.always[f"ptb-xl/1.0.3/{SIGNAL}"] = fault
    with pytest.raises(UserError, match=message) as error:
        obtain(request("physionet"), manifest)
    assert "\n" not in str(error.value)
    assert not manifest.exists() and not dataset_folder("ptbxl").exists()
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
from safeecgmatch.data import archive, http
http.FIRST_WAIT = 1000.0
archive.obtain(archive.Request("ptbxl", "physionet", None, 100, 12, 7), Path({str(manifest)!r}))
"""
    server.faults[f"ptb-xl/1.0.3/{SIGNAL}"] = ["cut 9000"]
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    part = raw / "ptbxl.physionet" / f"{SIGNAL}.part"
    whole = [raw / "ptbxl.physionet" / name for name in AT_100_HZ if name != SIGNAL]
    try:
        wait_until(lambda: part.exists() and part.stat().st_size == 9000 and all(map(Path.exists, whole)))
    finally:
        process.kill()
        process.communicate()
    assert not manifest.exists() and not dataset_folder("ptbxl").exists()
    server.requests.clear()
    obtain(request("physionet"), manifest)
    assert [entry.file for entry in check_archive(manifest, dataset_folder("ptbxl"))] == AT_100_HZ
    assert server.gets(f"ptb-xl/1.0.3/{SIGNAL}") == ["bytes=9000-"]
    assert len(server.requests) == 2  # the list and the rest of that file


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_zip_from_the_web_is_resumed_unpacked_and_removed(
    server: FaultyServer, raw: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"ptb-xl-1.0.3/{name}": body for name, body in {**PTBXL, "SHA256SUMS.txt": sums_of(PTBXL)}.items()}
    server.files["ptb.zip"] = write_zip(tmp_path / "ptb.zip", files).read_bytes()
    server.faults["ptb.zip"] = ["cut 700"]
    monkeypatch.setenv("SAFEECGMATCH_PTBXL_URL", server.url + "ptb.zip")
    entries = obtain(request("physionet"), manifest)
    assert [entry.file for entry in entries] == AT_100_HZ
    assert server.gets("ptb.zip") == [None, "bytes=700-"]
    assert files_in(raw / "ptbxl.unzipped") == sorted([*AT_100_HZ, "SHA256SUMS.txt"])
    obtain(request("physionet"), manifest)
    assert len(server.gets("ptb.zip")) == 2  # not fetched again


def test_broken_zip_from_the_web_is_fetched_twice_then_named(
    server: FaultyServer, raw: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["ptb.zip"] = b"not a zip"
    monkeypatch.setenv("SAFEECGMATCH_PTBXL_URL", server.url + "ptb.zip")
    with pytest.raises(UserError, match=r"ptb\.zip was fetched twice and is not a whole zip file"):
        obtain(request("physionet"), manifest)
    assert len(server.gets("ptb.zip")) == 2
    assert files_in(raw / "ptbxl.unzipped") == [] and not manifest.exists()


# ------------------------------------------------------------------------------------------------ disk space


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


def test_disk_space_for_a_zip(raw: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zip(tmp_path / "ptb.zip", PTBXL)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=10_000))
    with pytest.raises(UserError, match=r"unpacking ptb\.zip needs about 0\.1 MB in .*, but only 0\.0 MB are free"):
        obtain(request("path", path), manifest)
    assert files_in(raw) == []


def test_space_is_looked_up_where_the_folder_will_be(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "yet" / "there", 1, "ptbxl")


def test_size_estimates_of_the_published_archives() -> None:
    assert 21_799 * estimated_size("records500/00000/00001_hr.dat") == pytest.approx(2.6e9, rel=0.05)
    assert estimated_size("records100/00000/00001_lr.dat") == 24_000


# ------------------------------------------------------------------------------------------------ local sources


@pytest.mark.parametrize("sums", [True, False])
def test_mirror_is_used_in_place(raw: Path, manifest: Path, tmp_path: Path, sums: bool) -> None:
    mirror = write_tree(tmp_path / "mirror", PTBXL, sums)
    entries = obtain(request("path", mirror), manifest)
    assert dataset_folder("ptbxl").is_symlink() and dataset_folder("ptbxl").resolve() == mirror.resolve()
    assert [entry.file for entry in entries] == AT_100_HZ
    assert all(entry.sha256 == hashlib.sha256(PTBXL[entry.file]).hexdigest() for entry in entries)
    assert files_in(raw) == []  # nothing copied


def test_relative_path_counts_from_the_project(
    raw: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "mirror", PTBXL)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    (tmp_path / "experiment").mkdir()
    monkeypatch.chdir(tmp_path / "experiment")
    obtain(request("path", Path("mirror")), manifest)
    assert dataset_folder("ptbxl").resolve() == (tmp_path / "mirror").resolve()


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
    assert not manifest.exists() and not dataset_folder("ptbxl").is_symlink()


def test_wrong_folder_is_recognised(raw: Path, manifest: Path, tmp_path: Path) -> None:
    write_tree(tmp_path / "parent" / "ptbxl", PTBXL)
    with pytest.raises(UserError, match=r"parent has no ptbxl_database\.csv: it must have the layout"):
        obtain(request("path", tmp_path / "parent"), manifest)
    with pytest.raises(UserError, match=r"nowhere, which does not exist: correct it in params\.yaml"):
        obtain(request("path", tmp_path / "nowhere"), manifest)
    with pytest.raises(UserError, match=r"has no records500/….hea"):
        obtain(request("path", write_tree(tmp_path / "low", {n: PTBXL[n] for n in AT_100_HZ}), rate=500), manifest)


def test_real_folder_at_the_place_of_the_link(raw: Path, manifest: Path, tmp_path: Path) -> None:
    write_tree(raw / "ptbxl", PTBXL)
    mirror = write_tree(tmp_path / "mirror", PTBXL)
    with pytest.raises(UserError, match=r"raw/ptbxl is a folder of its own and not a link, .* move it away, or use it"):
        obtain(request("path", mirror), manifest)
    assert not (raw / "ptbxl").is_symlink() and (raw / "ptbxl" / SIGNAL).is_file()
    obtain(request("path", raw / "ptbxl"), manifest)  # what the message proposes
    assert not (raw / "ptbxl").is_symlink() and len(read_manifest(manifest)) == len(AT_100_HZ)


def test_path_that_is_the_link_itself_makes_no_loop(raw: Path, manifest: Path, tmp_path: Path) -> None:
    mirror = write_tree(tmp_path / "mirror", PTBXL)
    obtain(request("path", mirror), manifest)
    obtain(request("path", dataset_folder("ptbxl")), manifest)
    assert dataset_folder("ptbxl").resolve() == mirror.resolve()


@pytest.mark.parametrize("lead", ["", "ptb-xl-1.0.3/"])
def test_zip_is_unpacked(raw: Path, manifest: Path, tmp_path: Path, lead: str) -> None:
    files = {lead + name: body for name, body in {**PTBXL, "SHA256SUMS.txt": sums_of(PTBXL)}.items()}
    entries = obtain(request("path", write_zip(tmp_path / "ptb.zip", files)), manifest)
    assert [entry.file for entry in entries] == AT_100_HZ
    assert files_in(raw / "ptbxl.unzipped") == sorted([*AT_100_HZ, "SHA256SUMS.txt"])


def test_zip_of_the_training_folder_keeps_it(raw: Path, tmp_path: Path) -> None:
    files = {"training/ptb/g1/S1.hea": b"S1 12\n", "training/ptb/g1/S1.mat": b"\0" * 30}
    entries = obtain(
        request("path", write_zip(tmp_path / "c.zip", files), "cinc21"), tmp_path / "manifests" / "cinc21.csv"
    )
    assert [entry.file for entry in entries] == sorted(files)


def test_another_zip_leaves_nothing_of_the_first(raw: Path, manifest: Path, tmp_path: Path) -> None:
    obtain(request("path", write_zip(tmp_path / "one.zip", PTBXL)), manifest)
    fewer = {name: body for name, body in PTBXL.items() if "00002" not in name}
    entries = obtain(request("path", write_zip(tmp_path / "two.zip", fewer)), manifest)
    assert not any("00002" in entry.file for entry in entries)


def test_cut_off_zip_is_named(raw: Path, manifest: Path, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ptb.zip", PTBXL)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"ptb\.zip is not a whole zip file"):
        obtain(request("path", path), manifest)
    assert not manifest.exists()


def test_damaged_member_leaves_no_half_file(raw: Path, manifest: Path, tmp_path: Path) -> None:
    path = tmp_path / "ptb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as content:
        for name, body in PTBXL.items():
            content.writestr(name, body)
    path.write_bytes(path.read_bytes().replace(PTBXL[SIGNAL], b"\x09" * 24_000))
    with pytest.raises(
        UserError, match=r"not a whole zip file \(Bad CRC-32 for file 'records100/00000/00001_lr\.dat'\)"
    ):
        obtain(request("path", path), manifest)
    assert SIGNAL not in files_in(raw / "ptbxl.unzipped") and not manifest.exists()


# ------------------------------------------------------------------------------------------------ phantom


def test_phantom_is_made_once_per_parameters(raw: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safeecgmatch.data import phantom

    made: list[tuple[object, ...]] = []

    def write_archive(dataset: str, folder: Path, records: int, seed: int, sampling_rate: int) -> None:
        made.append((dataset, records, seed, sampling_rate))
        write_tree(folder, PTBXL)

    monkeypatch.setattr(phantom, "write_archive", write_archive)
    obtain(request("phantom"), manifest)
    first = manifest.read_bytes()
    obtain(request("phantom"), manifest)
    assert made == [("ptbxl", 12, 7, 100)] and manifest.read_bytes() == first
    (dataset_folder("ptbxl") / SIGNAL).write_bytes(b"damaged")
    obtain(request("phantom"), manifest)
    assert len(made) == 2 and manifest.read_bytes() == first
    obtain(Request("ptbxl", "phantom", None, 100, 12, 8), manifest)
    assert made[2] == ("ptbxl", 12, 8, 100)
    assert sorted(os.listdir(raw)) == [".ptbxl.lock", "ptbxl", "ptbxl.phantom"]


def test_failed_phantom_leaves_nothing(raw: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safeecgmatch.data import phantom

    def write_archive(dataset: str, folder: Path, records: int, seed: int, sampling_rate: int) -> None:
        (folder / "half").write_text("x")
        raise UserError("no luck")

    monkeypatch.setattr(phantom, "write_archive", write_archive)
    with pytest.raises(UserError, match="no luck"):
        obtain(request("phantom"), manifest)
    assert os.listdir(raw) == [".ptbxl.lock"] and not manifest.exists()


@pytest.mark.parametrize("dataset", ["ptbxl", "cinc21"])
def test_real_generator_gives_a_verified_archive(raw: Path, tmp_path: Path, dataset: str) -> None:
    entries = obtain(request("phantom", dataset=dataset), tmp_path / f"{dataset}.csv")
    assert sum(entry.file.endswith(".hea") for entry in entries) >= 12
    check_archive(tmp_path / f"{dataset}.csv", dataset_folder(dataset))


def test_changing_the_source_moves_the_link_and_keeps_the_data(
    server: FaultyServer, raw: Path, manifest: Path, tmp_path: Path
) -> None:
    obtain(request("physionet"), manifest)
    obtain(request("path", write_tree(tmp_path / "mirror", PTBXL)), manifest)
    assert (raw / "ptbxl.physionet" / SIGNAL).is_file()
    server.requests.clear()
    obtain(request("physionet"), manifest)
    assert dataset_folder("ptbxl").readlink() == Path("ptbxl.physionet")
    assert len(server.requests) == 1  # only the list of checksums


# ------------------------------------------------------------------------------------------------ manifest


def test_check_names_the_first_fault_and_the_command(raw: Path, manifest: Path, tmp_path: Path) -> None:
    mirror = write_tree(tmp_path / "mirror", PTBXL)
    obtain(request("path", mirror), manifest)
    command = re.escape("run `dvc repro -f download@ptbxl`")
    (mirror / SIGNAL).write_bytes(b"123")
    with pytest.raises(UserError, match=rf"00001_lr\.dat has 3 bytes instead of 24000: {command}"):
        check_archive(manifest, dataset_folder("ptbxl"))
    (mirror / SIGNAL).unlink()
    with pytest.raises(UserError, match=rf"00001_lr\.dat is missing \(.*\): {command}"):
        check_archive(manifest, dataset_folder("ptbxl"))
    with pytest.raises(UserError, match=rf"none/ptbxl\.csv does not exist: {command}"):
        check_archive(tmp_path / "none" / "ptbxl.csv", mirror)
    manifest.write_text("file,size,sha256\na,b,c\n")
    with pytest.raises(UserError, match=rf"is not a manifest with the columns file,size,sha256: {command}"):
        check_archive(manifest, mirror)


@pytest.mark.real
@pytest.mark.parametrize("dataset", ["ptbxl", "cinc21"])
def test_mirror_of_real_records(
    material: Path, raw: Path, tmp_path: Path, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror used in place and the same mirror fetched over HTTP give the same manifest."""
    mirror, manifest = tmp_path / "mirror", tmp_path / f"{dataset}.csv"
    script = material / "data" / "make_mirror.py"
    subprocess.run([sys.executable, str(script), dataset, str(mirror), "--limit", "30"], check=True)
    entries = obtain(request("path", mirror, dataset), manifest)
    records = 30 if dataset == "ptbxl" else 130  # the Challenge mirror always holds 100 original samples
    assert sum(entry.file.endswith(".hea") for entry in entries) == records
    assert sum(entry.file.endswith((".dat", ".mat")) for entry in entries) == records
    with serving() as server:
        server.files.update({name: (mirror / name).read_bytes() for name in files_in(mirror)})
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv(f"SAFEECGMATCH_{dataset.upper()}_URL", server.url)
        assert obtain(request("physionet", None, dataset), manifest) == entries
