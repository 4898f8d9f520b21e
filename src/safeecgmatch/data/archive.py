"""From a source (PhysioNet, a local mirror or zip, the phantom generator) to a verified archive and its manifest.

`<root>/<dataset>` is always a link: to `<dataset>.physionet`, `<dataset>.unzipped` or `<dataset>.phantom` beside it, or
to the user's own folder. Going from one source to another therefore copies nothing and deletes nothing of value.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from safeecgmatch.data import http
from safeecgmatch.data.datasets import find_dataset
from safeecgmatch.data.descriptor import HEADER_BYTES, Files
from safeecgmatch.data.inventory import SUMS, ListedFile, measure, on_disk, read_sums, require_space, target_inside
from safeecgmatch.data.manifest import check_archive, read_manifest, write_manifest
from safeecgmatch.data.unzip import DamagedZip, extract
from safeecgmatch.errors import UserError
from safeecgmatch.files import atomic_path, hash_of, project_root, read_json, sha256_of, write_json

if TYPE_CHECKING:
    from safeecgmatch.config import Data

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


def dataset_folder(dataset: str) -> Path:
    return archive_root() / dataset


def obtain(request: Request, manifest: Path) -> list[ListedFile]:
    """Fetch or find, verify, link, and write the manifest last: a failure leaves none."""
    manifest.unlink(missing_ok=True)
    files = bring(request)
    write_manifest(manifest, files)
    return files


def locate(request: Request, manifest: Path) -> list[ListedFile]:
    """The manifest's files, with the link at the archive that holds them.

    DVC restores a manifest from its cache without running `download`; the link then still shows the archive of another
    source, or nothing, and is moved here.
    """
    files = read_manifest(manifest)
    if note(note_of(request.dataset)) != hash_of(files) and bring(request) != files:
        now = f"what data.{request.dataset} in params.yaml names now"
        raise UserError(f"{manifest} does not list {now}: run `dvc repro -f download@{request.dataset}`.")
    return check_archive(manifest, dataset_folder(request.dataset))


def bring(request: Request) -> list[ListedFile]:
    """Make `<root>/<dataset>` show the verified archive of the request's source."""
    sources = {"phantom": from_phantom, "physionet": from_web, "path": from_path}
    require_place(request)
    with exclusive(request.dataset):
        folder, files = sources[request.source](request)
        link(request.dataset, folder, files)
    return files


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


def note_of(dataset: str) -> Path:
    """Holds the hash of the list of files that the link was last made for."""
    return archive_root() / f".{dataset}.shown.json"


def link(dataset: str, folder: Path, files: list[ListedFile]) -> None:
    """Point `<root>/<dataset>` at the folder: relative when both move together, absolute for a mirror elsewhere."""
    place, real = dataset_folder(dataset), folder.resolve()
    note_of(dataset).unlink(missing_ok=True)  # killed between the two, the link is made again
    if place.is_symlink() or not place.exists():  # else the user's own folder, already at its place
        with atomic_path(place) as partial:
            partial.symlink_to(real.name if real.parent == place.parent.resolve() else real)
    write_json(note_of(dataset), hash_of(files))


def from_phantom(request: Request) -> tuple[Path, list[ListedFile]]:
    from safeecgmatch.data.phantom import archives  # only here: the generator is not needed for real data

    folder = archive_root() / f"{request.dataset}.phantom"
    source: dict[str, Any] = {
        "records": request.phantom_records,
        "seed": request.phantom_seed,
        "sampling_rate": request.sampling_rate,
        "generator": [sha256_of(file) for file in sorted(Path(archives.__file__).parent.glob("*.py"))],
    }
    if entries := intact(request, folder, source):
        return folder, entries
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover)  # of a run that was killed
    record = on_disk([request.files.signal_bytes, HEADER_BYTES])
    require_space(folder, request.phantom_records * record, f"a phantom of {request.dataset}")
    with atomic_path(folder) as partial:
        partial.mkdir()
        archives.write_archive(request.dataset, partial, source["records"], source["seed"], source["sampling_rate"])
        write_json(partial / STAMP, {"source": source, "complete": True})
    return folder, verified(request, folder)


def from_path(request: Request) -> tuple[Path, list[ListedFile]]:
    path = local_path(request)
    if path.is_dir():
        return path, verified(request, path)
    if not path.is_file():
        raise UserError(f"data.{request.dataset}.path names {path}, which does not exist: correct it in params.yaml.")
    facts = path.stat()
    source = {"zip": str(path), "size": facts.st_size, "changed": facts.st_mtime_ns}
    folder = unzip_folder(request, source)
    extract(path, folder, request.files.pattern, f"unpack {request.dataset}")
    return folder, verified(request, folder)


def from_web(request: Request) -> tuple[Path, list[ListedFile]]:
    url = os.environ.get(f"SAFEECGMATCH_{request.dataset.upper()}_URL") or find_dataset(request.dataset).url
    if url.endswith(".zip"):
        return from_web_zip(request, url)
    url = url.rstrip("/") + "/"
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
    """One zip: fetched, unpacked, deleted. Its own CRCs tell when a resumed download was pieced together wrongly."""
    source = {"url": url, "files": request.files.pattern.pattern}
    folder = archive_root() / f"{request.dataset}.unzipped"
    if entries := intact(request, folder, source):
        return folder, entries
    archive = unzip_folder(request, source) / "archive.zip"
    for last in (False, True):
        if not archive.exists():
            part = http.part_of(archive)
            size = http.Client().size_of(url) or 0
            have = part.stat().st_size if part.exists() else 0
            require_space(folder, max(size - have, 0), f"{request.dataset} as one zip")
            http.fetch_all([http.RemoteFile(url, archive, None, size)], f"download {request.dataset}")
        try:
            extract(archive, folder, request.files.pattern, f"unpack {request.dataset}")
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
    if folder.exists() and (note(folder / STAMP) or {}).get("source") != source:
        shutil.rmtree(folder)
    write_json(folder / STAMP, {"source": source, "complete": False})
    return folder


def note(file: Path) -> Any:
    return read_json(file) if file.is_file() else None


def intact(request: Request, folder: Path, source: dict[str, Any]) -> list[ListedFile] | None:
    """The entries of a folder that an earlier run completed from the same source; None when it must be made anew."""
    if note(folder / STAMP) != {"source": source, "complete": True}:
        return None
    try:
        return verified(request, folder)
    except UserError as fault:
        print(f"{fault} It is made anew.", file=sys.stderr)
        return None


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
