"""Take the needed files out of a zip, with every path checked first."""

from __future__ import annotations

import re
import shutil
import stat
import zipfile
import zlib
from pathlib import Path

from safeecgmatch.data.inventory import SUMS, on_disk, printable, require_space, safe_name, target_inside
from safeecgmatch.errors import UserError
from safeecgmatch.progress import Progress


class DamagedZip(UserError):
    """The zip itself is broken, so fetching it again may help."""


def extract(archive: Path, folder: Path, wanted: re.Pattern[str], label: str) -> None:
    """Make `folder` hold the files that match `wanted`, and SHA256SUMS.txt, and nothing else of an earlier zip.

    Files that are already there and whole are kept.
    """
    name = printable(str(archive))
    try:
        with zipfile.ZipFile(archive) as content:
            members = select(checked_members(content, name), wanted)
            targets = target_inside(folder, members)
            for old in folder.rglob("*"):
                if old.is_symlink() or (old.is_file() and old.relative_to(folder).as_posix() not in members):
                    old.unlink()
            todo = {name: member for name, member in members.items() if not is_whole(targets[name], member)}
            require_space(folder, on_disk(member.file_size for member in todo.values()), f"unpacking {name}")
            with Progress(sum(member.file_size for member in todo.values()), label, "bytes") as bar:
                for file, member in todo.items():
                    part = targets[file].with_name(targets[file].name + ".part")
                    part.parent.mkdir(parents=True, exist_ok=True)
                    with content.open(member) as source, part.open("wb") as sink:
                        shutil.copyfileobj(source, sink, 1 << 18)
                    part.replace(targets[file])
                    bar.advance(member.file_size)
    # zipfile says NotImplementedError for a compression that it does not know, whether damaged or meant.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError) as fault:
        advice = "fetch it again, or unpack it yourself and give the folder as path"
        raise DamagedZip(f"{name} is not a whole zip file ({fault}): {advice}.") from fault
    except OSError as fault:
        raise UserError(f"{name} cannot be unpacked into {folder}: {fault.strerror or fault}.") from fault


def checked_members(content: zipfile.ZipFile, archive: str) -> dict[str, zipfile.ZipInfo]:
    """All files by safe name. The raw name is judged: zipfile quietly fixes bad ones."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in content.infolist():
        name = safe_name(member.orig_filename, archive)
        if stat.S_ISLNK(member.external_attr >> 16):
            raise UserError(f"{archive} holds the link {name!r}: a zip with links is refused.")
        if member.flag_bits & 1:
            raise UserError(f"{archive} is encrypted ({name!r}): unpack it yourself and give the folder as path.")
        if not member.is_dir() and not name.startswith("__MACOSX/"):
            members[name] = member
    return members


def select(members: dict[str, zipfile.ZipInfo], wanted: re.Pattern[str]) -> dict[str, zipfile.ZipInfo]:
    """The needed members; one leading folder is stripped when all lies under it and it is not part of the layout."""
    tops = {name.partition("/")[0] for name in members}
    if len(tops) == 1 and not any(wanted.fullmatch(name) for name in members):
        members = {name.partition("/")[2]: member for name, member in members.items()}
    return {name: member for name, member in members.items() if name == SUMS or wanted.fullmatch(name)}


def is_whole(target: Path, member: zipfile.ZipInfo) -> bool:
    """Size and CRC as the zip states them."""
    if not target.is_file() or target.stat().st_size != member.file_size:
        return False
    crc = 0
    with target.open("rb") as stream:
        while block := stream.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc == member.CRC
