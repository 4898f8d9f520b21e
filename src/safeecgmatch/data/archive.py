"""From a source (PhysioNet, a local mirror or zip, the phantom generator) to a verified archive and its manifest.

`<root>/<dataset>` is always a link: to `<dataset>.physionet`, `<dataset>.unzipped` or `<dataset>.phantom` beside it, or
to the user's own folder. Going from one source to another therefore copies nothing and deletes nothing of value.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from safeecgmatch.data import http
from safeecgmatch.data.inventory import (
    SUMS,
    Entry,
    estimated_size,
    measure,
    needed_files,
    on_disk,
    read_sums,
    require_layout,
    require_space,
    target_inside,
    walk,
)
from safeecgmatch.data.manifest import write_manifest
from safeecgmatch.data.unzip import DamagedZip, extract
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, project_root, read_json, sha256_of, write_json

PHYSIONET = {
    "ptbxl": "https://physionet.org/files/ptb-xl/1.0.3/",
    "cinc21": "https://physionet.org/files/challenge-2021/1.0.3/",
}
STAMP = ".source.json"  # where the files of a folder of ours come from


@dataclass(frozen=True)
class Request:
    """What the params say about one dataset's archive."""

    dataset: str
    source: str
    path: str | None
    sampling_rate: int
    phantom_records: int
    phantom_seed: int

    @property
    def wanted(self) -> re.Pattern[str]:
        return needed_files(self.dataset, self.sampling_rate)


def archive_root() -> Path:
    """SAFEECGMATCH_DATA, else data/raw under DVC's root, so that experiments in temporary folders find it."""
    named = os.environ.get("SAFEECGMATCH_DATA")
    return Path(named).expanduser().resolve() if named else project_root() / "data" / "raw"


def dataset_folder(dataset: str) -> Path:
    return archive_root() / dataset


def base_url(dataset: str) -> str:
    return os.environ.get(f"SAFEECGMATCH_{dataset.upper()}_URL") or PHYSIONET[dataset]


def obtain(request: Request, manifest: Path) -> list[Entry]:
    """Fetch or find, verify, link, and write the manifest last: a failure leaves none."""
    manifest.unlink(missing_ok=True)
    require_place(request)
    with exclusive(request.dataset):
        if request.source == "phantom":
            folder, entries = from_phantom(request)
        elif request.source == "physionet":
            folder, entries = from_web(request)
        elif request.source == "path":
            folder, entries = from_path(request)
        else:
            raise UserError(
                f"data.{request.dataset}.source is {request.source!r}: it must be phantom, physionet or path."
            )
        link(request.dataset, folder)
    write_manifest(manifest, entries)
    return entries


@contextmanager
def exclusive(dataset: str) -> Iterator[None]:
    """One download of a dataset at a time: experiments run in parallel and share the archive."""
    root = archive_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / f".{dataset}.lock").open("w")
    except OSError as fault:
        raise UserError(
            f"{root} cannot be written ({fault.strerror}): set SAFEECGMATCH_DATA to a folder of yours."
        ) from fault
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def local_path(request: Request) -> Path:
    return project_root() / Path(request.path or "").expanduser()


def require_place(request: Request) -> None:
    """Say before a long download, not after it, that the link cannot be made."""
    place = dataset_folder(request.dataset)
    if place.is_symlink() or not place.exists():
        return
    if request.path is None or not local_path(request).exists() or not place.samefile(local_path(request)):
        raise UserError(
            f"{place} is a folder of its own and not a link, so the archive from the source '{request.source}' cannot "
            f"go there: move it away, or use it by data.{request.dataset}.source 'path' with that folder as path."
        )


def link(dataset: str, folder: Path) -> None:
    """Point `<root>/<dataset>` at the folder: relative when both move together, absolute for a mirror elsewhere."""
    place, real = dataset_folder(dataset), folder.resolve()
    if place.exists() and not place.is_symlink():
        return  # the user's own folder, already at its place
    scratch = Path(tempfile.mkdtemp(prefix=f".{dataset}.", dir=place.parent))
    try:
        (scratch / dataset).symlink_to(real.name if real.parent == place.parent.resolve() else real)
        (scratch / dataset).replace(place)
    finally:
        shutil.rmtree(scratch)


def from_phantom(request: Request) -> tuple[Path, list[Entry]]:
    from safeecgmatch.data import phantom  # only here: the generator is not needed for real data

    folder = archive_root() / f"{request.dataset}.phantom"
    source = {
        "records": request.phantom_records,
        "seed": request.phantom_seed,
        "sampling_rate": request.sampling_rate,
        "generator": [sha256_of(file) for file in sorted(Path(phantom.__file__).parent.glob("*.py"))],
    }
    if entries := intact(request, folder, source):
        return folder, entries
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover)  # of a run that was killed
    record = [estimated_size("training/record.mat"), estimated_size("training/record.hea")]
    require_space(folder, request.phantom_records * on_disk(record), f"a phantom of {request.dataset}")
    with atomic_path(folder) as partial:
        partial.mkdir()
        phantom.write_archive(
            request.dataset, partial, request.phantom_records, request.phantom_seed, request.sampling_rate
        )
        write_json(partial / STAMP, {"source": source, "complete": True})
    return folder, verified(request, folder)


def from_path(request: Request) -> tuple[Path, list[Entry]]:
    if not request.path:
        raise UserError(f"data.{request.dataset}.path is empty: name the folder or zip that holds {request.dataset}.")
    path = local_path(request)
    if path.is_dir():
        return path, verified(request, path)
    if not path.is_file():
        raise UserError(f"data.{request.dataset}.path names {path}, which does not exist: correct it in params.yaml.")
    facts = path.stat()
    source = {"zip": str(path), "size": facts.st_size, "changed": facts.st_mtime_ns}
    folder = unzip_folder(request, source)
    extract(path, folder, request.wanted, f"unpack {request.dataset}")
    return folder, verified(request, folder)


def from_web(request: Request) -> tuple[Path, list[Entry]]:
    url = base_url(request.dataset)
    if url.endswith(".zip"):
        return from_web_zip(request, url)
    url = url.rstrip("/") + "/"
    folder = archive_root() / f"{request.dataset}.physionet"
    http.part_of(folder / SUMS).unlink(missing_ok=True)  # nothing verifies this file, so it is never resumed
    http.fetch_all([http.Job(url + SUMS, folder / SUMS, None, 10_000_000)], f"checksums {request.dataset}")
    sums = wanted_sums(request, folder / SUMS, url + SUMS)
    require_layout(request.dataset, sums, request.sampling_rate, url + SUMS)
    present = measure(folder, [name for name in sums if (folder / name).exists()], f"verify {request.dataset}")
    missing = [name for name in sums if name not in present or present[name].sha256 != sums[name]]
    targets = target_inside(folder, missing)
    require_space(folder, on_disk(map(estimated_size, missing)), request.dataset)
    jobs = [http.Job(url + quote(name), targets[name], sums[name], estimated_size(name)) for name in missing]
    if jobs:
        http.fetch_all(jobs, f"download {request.dataset}")
    return folder, [Entry(name, (folder / name).stat().st_size, sums[name]) for name in sorted(sums)]


def from_web_zip(request: Request, url: str) -> tuple[Path, list[Entry]]:
    """One zip: fetched, unpacked, deleted. Its own CRCs tell when a resumed download was pieced together wrongly."""
    source = {"url": url, "files": request.wanted.pattern}
    folder = archive_root() / f"{request.dataset}.unzipped"
    if entries := intact(request, folder, source):
        return folder, entries
    folder = unzip_folder(request, source)
    archive = folder / "archive.zip"
    for last in (False, True):
        if not archive.exists():
            part = http.part_of(archive)
            size = http.Client().size_of(url) or 0
            have = part.stat().st_size if part.exists() else 0
            require_space(folder, max(size - have, 0), f"{request.dataset} as one zip")
            http.fetch_all([http.Job(url, archive, None, size)], f"download {request.dataset}")
        try:
            extract(archive, folder, request.wanted, f"unpack {request.dataset}")
            break
        except DamagedZip as fault:
            archive.unlink()
            if last:
                raise UserError(f"{url} was fetched twice and is not a whole zip file: try another address.") from fault
    entries = verified(request, folder)
    write_json(folder / STAMP, {"source": source, "complete": True})
    archive.unlink()
    return folder, entries


def unzip_folder(request: Request, source: dict[str, Any]) -> Path:
    """The folder for this zip; what another zip left there goes, what this one left stays and is completed."""
    folder = archive_root() / f"{request.dataset}.unzipped"
    if folder.exists() and (stamp_of(folder) or {}).get("source") != source:
        shutil.rmtree(folder)
    write_json(folder / STAMP, {"source": source, "complete": False})
    return folder


def stamp_of(folder: Path) -> dict[str, Any] | None:
    return read_json(folder / STAMP) if (folder / STAMP).is_file() else None


def intact(request: Request, folder: Path, source: dict[str, Any]) -> list[Entry] | None:
    """The entries of a folder that an earlier run completed from the same source; None when it must be made anew."""
    if stamp_of(folder) != {"source": source, "complete": True}:
        return None
    try:
        return verified(request, folder)
    except UserError as fault:
        print(f"{fault} It is made anew.", file=sys.stderr)
        return None


def wanted_sums(request: Request, listing: Path, place: str) -> dict[str, str]:
    return {name: digest for name, digest in read_sums(listing, place).items() if request.wanted.fullmatch(name)}


def verified(request: Request, folder: Path) -> list[Entry]:
    """Measure the needed files of a local folder and compare them with its SHA256SUMS.txt, where it has one."""
    listing = folder / SUMS
    sums = wanted_sums(request, listing, str(listing)) if listing.is_file() else {}
    names = sorted(sums) if listing.is_file() else walk(folder, request.wanted)
    require_layout(request.dataset, names, request.sampling_rate, str(listing if sums else folder))
    found = measure(folder, names, f"verify {request.dataset}")
    bad = [name for name in sums if name not in found or found[name].sha256 != sums[name]]
    if bad:
        fault = "does not have the checksum in SHA256SUMS.txt" if bad[0] in found else "is listed but missing"
        more = f" ({len(bad)} files are wrong or missing in all)" if len(bad) > 1 else ""
        raise UserError(f"{folder / bad[0]} {fault}{more}: put the published file there and run the stage again.")
    return [found[name] for name in names]
