"""A small archive in the PhysioNet layout, as folder, zip or request."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from safeecgmatch.data.download import Request

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
    return sorted(name for name in found if not name.endswith(".lock"))
