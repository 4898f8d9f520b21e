from __future__ import annotations

import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from safeecgmatch.data.download import obtain
from safeecgmatch.errors import UserError
from tests.data.trees import AT_100_HZ, OUTSIDE, PTBXL, SIGNAL, files_in, request, sums_of, write_zip


@pytest.mark.parametrize("name", OUTSIDE)
def test_crafted_zip_is_refused(raw: Path, manifest: Path, tmp_path: Path, name: str) -> None:
    path = write_zip(tmp_path / "ptb.zip", {**PTBXL, name: b"evil"})
    with pytest.raises(UserError, match=r"ptb\.zip names the file .* it is refused"):
        obtain(request("path", path), manifest)
    assert files_in(tmp_path) == ["ptb.zip"]
    assert not manifest.exists()


def test_name_with_a_nul_byte_is_refused(raw: Path, manifest: Path, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ptb.zip", {**PTBXL, "records100/a.hea#.sh": b"evil"})
    path.write_bytes(path.read_bytes().replace(b"a.hea#.sh", b"a.hea\0.sh"))
    with pytest.raises(UserError, match=r"ptb\.zip names the file 'records100/a\.hea\\x00\.sh'"):
        obtain(request("path", path), manifest)


def test_damaged_copy_is_unpacked_again(raw: Path, manifest: Path, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ptb.zip", PTBXL)
    obtain(request("path", path), manifest)
    first = manifest.read_bytes()
    (raw / "ptbxl.unzipped" / SIGNAL).write_bytes(b"\x09" * 24_000)
    obtain(request("path", path), manifest)
    assert (raw / "ptbxl.unzipped" / SIGNAL).read_bytes() == PTBXL[SIGNAL] and manifest.read_bytes() == first


def test_zip_with_a_link_is_refused(raw: Path, manifest: Path, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "ptb.zip", PTBXL)
    member = zipfile.ZipInfo("records100/link.hea")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as content:
        content.writestr(member, "/etc/passwd")
    with pytest.raises(UserError, match=r"holds the link 'records100/link\.hea': a zip with links is refused"):
        obtain(request("path", path), manifest)
    assert files_in(tmp_path) == ["ptb.zip"]


def test_disk_space_for_a_zip(raw: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zip(tmp_path / "ptb.zip", PTBXL)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=10_000))
    with pytest.raises(UserError, match=r"unpacking .*ptb\.zip needs about 0\.1 MB in .*, but only 0\.0 MB are free"):
        obtain(request("path", path), manifest)
    assert files_in(raw) == []


@pytest.mark.parametrize("lead", ["", "ptb-xl-1.0.3/"])
def test_zip_is_unpacked(raw: Path, manifest: Path, tmp_path: Path, lead: str) -> None:
    files = {lead + name: body for name, body in {**PTBXL, "SHA256SUMS.txt": sums_of(PTBXL)}.items()}
    entries = obtain(request("path", write_zip(tmp_path / "ptb.zip", files)), manifest).files
    assert [entry.file for entry in entries] == AT_100_HZ
    assert files_in(raw / "ptbxl.unzipped") == sorted([*AT_100_HZ, "SHA256SUMS.txt"])


def test_zip_of_the_training_folder_keeps_it(raw: Path, tmp_path: Path) -> None:
    files = {"training/ptb/g1/S1.hea": b"S1 12\n", "training/ptb/g1/S1.mat": b"\0" * 30}
    entries = obtain(
        request("path", write_zip(tmp_path / "c.zip", files), "cinc21"), tmp_path / "manifests" / "cinc21.csv"
    ).files
    assert [entry.file for entry in entries] == sorted(files)


def test_another_zip_leaves_nothing_of_the_first(raw: Path, manifest: Path, tmp_path: Path) -> None:
    obtain(request("path", write_zip(tmp_path / "one.zip", PTBXL)), manifest)
    fewer = {name: body for name, body in PTBXL.items() if "00002" not in name}
    entries = obtain(request("path", write_zip(tmp_path / "two.zip", fewer)), manifest).files
    assert not any("00002" in file for file in [entry.file for entry in entries] + files_in(raw))


@pytest.mark.parametrize("damage", [lambda body: body[:-30], lambda body: body.replace("é".encode(), b"\xff\xff")])
def test_damaged_zip_is_named(raw: Path, manifest: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write_zip(tmp_path / "ptb.zip", PTBXL | {"né.txt": b""})
    path.write_bytes(damage(path.read_bytes()))
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
