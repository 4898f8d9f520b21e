"""From a source (PhysioNet, a local mirror or zip, the phantom generator) to a verified archive and its manifest.

An archive lies in `<root>/<dataset>.physionet`, `.unzipped` or `.phantom`, or where the user has it; the manifest says
where. Going from one source to another therefore copies nothing and deletes nothing of value.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from safeecgmatch.data import http
from safeecgmatch.data.datasets import find_dataset
from safeecgmatch.data.descriptor import HEADER_BYTES, Files
from safeecgmatch.data.inventory import SUMS, ListedFile, measure, on_disk, read_sums, require_space, target_inside
from safeecgmatch.data.manifest import Manifest, write_manifest
from safeecgmatch.data.unzip import DamagedZip, extract
from safeecgmatch.errors import UserError
from safeecgmatch.files import project_root

if TYPE_CHECKING:
    from safeecgmatch.config import Data


@dataclass(frozen=True)
class Request:
    """What the params say about one dataset's archive."""

    dataset: str
    source: str
    path: str | None
    sampling_rate: int
    phantom_records: int
    phantom_seed: int

    @classmethod
    def of(cls, dataset: str, data: Data) -> Request:
        source = data.source(dataset)
        return cls(dataset, source.source, source.path, data.sampling_rate, data.phantom.records, data.phantom.seed)

    @property
    def files(self) -> Files:
        return find_dataset(self.dataset).files(self.sampling_rate)


def archive_root() -> Path:
    """SAFEECGMATCH_DATA, else data/raw under DVC's root, so that experiments in temporary folders find it."""
    named = os.environ.get("SAFEECGMATCH_DATA")
    return Path(named).expanduser().resolve() if named else project_root() / "data" / "raw"


def obtain(request: Request, manifest: Path) -> Manifest:
    """Fetch or find, verify, and write the manifest last: a failure leaves none."""
    manifest.unlink(missing_ok=True)
    sources = {"phantom": from_phantom, "physionet": from_web, "path": from_path}
    folder, files = sources[request.source](request)
    found = Manifest.of(folder, files)
    write_manifest(manifest, found)
    return found


@contextmanager
def exclusive(dataset: str) -> Iterator[None]:
    """One download of a dataset at a time: experiments run in parallel and share the archive."""
    root = archive_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / f".{dataset}.lock").open("w")
    except OSError as fault:
        advice = "set SAFEECGMATCH_DATA to a folder of yours"
        raise UserError(f"{root} cannot be written ({fault.strerror}): {advice}.") from fault
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def local_path(request: Request) -> Path:
    return project_root() / Path(request.path or "").expanduser()


def from_phantom(request: Request) -> tuple[Path, list[ListedFile]]:
    from safeecgmatch.data.phantom import archives  # only here: the generator is not needed for real data

    folder = archive_root() / f"{request.dataset}.phantom"
    wanted = request.phantom_records, request.phantom_seed, request.sampling_rate
    with exclusive(request.dataset):
        if archives.is_of(folder, request.dataset, *wanted):
            try:
                return folder, verified(request, folder)
            except UserError as fault:
                print(f"{fault} It is made anew.", file=sys.stderr)
        record = on_disk([request.files.signal_bytes, HEADER_BYTES])
        require_space(folder, request.phantom_records * record, f"a phantom of {request.dataset}")
        archives.write_archive(request.dataset, folder, *wanted)
        return folder, verified(request, folder)


def from_path(request: Request) -> tuple[Path, list[ListedFile]]:
    path = local_path(request)
    if path.is_dir():
        return path, verified(request, path)
    if not path.is_file():
        raise UserError(f"data.{request.dataset}.path names {path}, which does not exist: correct it in params.yaml.")
    with exclusive(request.dataset):
        return unpacked(request, path)


def unpacked(request: Request, archive: Path) -> tuple[Path, list[ListedFile]]:
    folder = archive_root() / f"{request.dataset}.unzipped"
    extract(archive, folder, request.files.pattern, f"unpack {request.dataset}")
    return folder, verified(request, folder)


def from_web(request: Request) -> tuple[Path, list[ListedFile]]:
    url = os.environ.get(f"SAFEECGMATCH_{request.dataset.upper()}_URL") or find_dataset(request.dataset).url
    with exclusive(request.dataset):
        return from_web_zip(request, url) if url.endswith(".zip") else from_web_folder(request, url.rstrip("/") + "/")


def from_web_folder(request: Request, url: str) -> tuple[Path, list[ListedFile]]:
    folder = archive_root() / f"{request.dataset}.physionet"
    http.part_of(folder / SUMS).unlink(missing_ok=True)  # nothing verifies this file, so it is never resumed
    http.fetch_all([http.RemoteFile(url + SUMS, folder / SUMS, None, 10_000_000)], f"checksums {request.dataset}")
    sums = wanted_sums(request, folder / SUMS, url + SUMS)
    require_layout(request, sums, url + SUMS)
    present = measure(folder, [name for name in sums if (folder / name).exists()], f"verify {request.dataset}")
    missing = [name for name in sums if name not in present or present[name].sha256 != sums[name]]
    targets = target_inside(folder, missing)
    require_space(folder, on_disk(map(request.files.estimate, missing)), request.dataset)
    if missing:
        size = request.files.estimate
        remote = [http.RemoteFile(url + quote(name), targets[name], sums[name], size(name)) for name in missing]
        http.fetch_all(remote, f"download {request.dataset}")
    return folder, [ListedFile(name, (folder / name).stat().st_size, sums[name]) for name in sorted(sums)]


def from_web_zip(request: Request, url: str) -> tuple[Path, list[ListedFile]]:
    """One zip, kept. Its own CRCs show when a resumed download was pieced together wrongly."""
    archive = archive_root() / f"{request.dataset}.{urlsplit(url).path.rpartition('/')[2]}"
    for last in (False, True):
        if not archive.exists():
            part = http.part_of(archive)
            size = http.Client().size_of(url) or 0
            have = part.stat().st_size if part.exists() else 0
            require_space(archive, max(size - have, 0), f"{request.dataset} as one zip")
            http.fetch_all([http.RemoteFile(url, archive, None, size)], f"download {request.dataset}")
        try:
            return unpacked(request, archive)
        except DamagedZip as fault:
            archive.unlink()
            if last:
                raise UserError(f"{url} was fetched twice and is not a whole zip file: try another address.") from fault
    raise AssertionError("the second try returns or raises")


def wanted_sums(request: Request, listing: Path, place: str) -> dict[str, str]:
    wanted = request.files.pattern
    return {name: digest for name, digest in read_sums(listing, place).items() if wanted.fullmatch(name)}


def require_layout(request: Request, names: Iterable[str], place: str) -> None:
    if lacking := request.files.lacking(names):
        raise UserError(f"{place} has no {lacking}: it must have the layout in which {request.dataset} is published.")


def verified(request: Request, folder: Path) -> list[ListedFile]:
    """Measure the needed files of a local folder and compare them with its SHA256SUMS.txt, where it has one."""
    listing = folder / SUMS
    sums = wanted_sums(request, listing, str(listing)) if listing.is_file() else {}
    names = sorted(sums) if listing.is_file() else request.files.present_in(folder)
    require_layout(request, names, str(listing if sums else folder))
    found = measure(folder, names, f"verify {request.dataset}")
    bad = [name for name in sums if name not in found or found[name].sha256 != sums[name]]
    if bad:
        fault = "does not have the checksum in SHA256SUMS.txt" if bad[0] in found else "is listed but missing"
        more = f" ({len(bad)} files are wrong or missing in all)" if len(bad) > 1 else ""
        raise UserError(f"{folder / bad[0]} {fault}{more}: put the published file there and run the stage again.")
    return [found[name] for name in names]
