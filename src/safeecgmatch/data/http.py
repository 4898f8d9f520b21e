"""Fetch files over HTTP so that a cut connection continues where it stopped.

Connections stay open: 40,000 small files would otherwise cost 40,000 handshakes. Proxies, certificates and redirects
are the work of `requests`, with one rule added: no way leads from https to less. A partial download lives in
`<target>.part`; the target appears, by renaming, only when it is whole and its checksum is right.
"""

from __future__ import annotations

import errno
import random
import re
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, TooManyRedirects
from urllib3.exceptions import HTTPError, InvalidHeader

from safeecgmatch.errors import UserError
from safeecgmatch.files import sha256_of
from safeecgmatch.progress import Progress

CONNECTIONS = 8
CONNECT_SECONDS, READ_SECONDS = 20.0, 60.0
REDIRECTS = 5
TRIES = 6  # in a row without a new byte
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
CHUNK = 1 << 16
TEMPORARY = {408, 425, 429, 500, 502, 503, 504}
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


class Client(requests.Session):
    """The connections of one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.max_redirects = REDIRECTS
        self.headers["Accept-Encoding"] = "identity"
        # A server may close an idle connection at any time; that is no fault of the request, so one read is free.
        retries = urllib3.Retry(total=None, connect=0, read=1, redirect=0, status=0, other=0)
        for scheme in ("https://", "http://"):
            self.mount(scheme, HTTPAdapter(max_retries=retries))

    def open(self, url: str, headers: Mapping[str, str], method: str = "GET") -> requests.Response:
        """The answer's head; its body waits to be read."""
        seconds = (CONNECT_SECONDS, READ_SECONDS)
        try:
            return self.request(method, url, headers=headers, stream=True, timeout=seconds, allow_redirects=True)
        except TooManyRedirects:
            raise UserError(f"{url} redirects more than {REDIRECTS} times: check the address.") from None
        except (InvalidSchema, InvalidURL, MissingSchema):
            raise UserError(f"{url!r} is not a web address: it must start with https:// or http://.") from None

    def get_redirect_target(self, response: requests.Response) -> str | None:
        location = super().get_redirect_target(response)
        if location is not None:
            allowed = ("https",) if response.url.startswith("https:") else ("http", "https")
            if urlsplit(urljoin(response.url, location)).scheme not in allowed:
                kind = f"not a web address by {' or '.join(allowed)}"
                raise UserError(f"{response.url} redirects to {location!r}, which is {kind}: check the address.")
        return location

    def size_of(self, url: str) -> int | None:
        """Content-Length, where the server says it; any fault is left to the download itself to report."""
        try:
            response = self.open(url, {}, "HEAD")
        except OSError:
            return None
        length = response.headers.get("Content-Length", "")
        return int(length) if response.status_code == 200 and length.isdigit() else None


class RemoteFile(NamedTuple):
    url: str
    target: Path
    sha256: str | None
    estimate: int  # bytes that the progress bar has reserved for this file


class Retry(Exception):
    """A fault that may pass; `after` is the server's wish in seconds, if it had one."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class GivenUp(Exception):
    """Another file failed, so this one is given up; its partial file stays for the next run."""


class Meter:
    """A progress bar that several threads may move, and whose total is corrected as true sizes become known."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._lock = bar, threading.Lock()
        self._received, self._started = 0, time.monotonic()

    def advance(self, amount: int, received: int = 0) -> None:
        """Move the bar; `received` counts only what came over the wire, so a resumed part does not inflate the rate."""
        with self._lock:
            self._received += received
            rate = self._received / max(time.monotonic() - self._started, 1e-3)
            self._bar.advance(amount, note=f"{rate / 1e6:.1f} MB/s")

    def resize(self, difference: int) -> None:
        with self._lock:
            self._bar.total += difference


def retry_after(header: str) -> float | None:
    """`Retry-After` in seconds: a number, or a date."""
    try:
        return urllib3.Retry().parse_retry_after(header)
    except InvalidHeader:
        return None


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


class Download:
    """One file on its way into its `.part`."""

    def __init__(self, client: Client, file: RemoteFile, meter: Meter, stop: threading.Event) -> None:
        self.client, self.file, self.meter, self.stop = client, file, meter, stop
        self.part = part_of(file.target)
        self.validator: str | None = None
        self.reserved = file.estimate
        self.counted = 0

    def have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def count(self, position: int, received: int = 0) -> None:
        self.meter.advance(position - self.counted, received)
        self.counted = position

    def restart(self) -> None:
        self.part.unlink(missing_ok=True)
        self.count(0)

    def run(self) -> None:
        """Try until the file is whole; give up after TRIES tries in a row that brought nothing new."""
        failures, longest = 0, self.have()
        jitter = random.Random(self.file.url)
        while True:
            try:
                return self._transfer()
            except (Retry, OSError, HTTPError) as fault:
                root = root_of(fault)
                if isinstance(root, ssl.SSLCertVerificationError):
                    raise UserError(f"{self.file.url}: the server's certificate is not valid ({root}).") from fault
                if isinstance(root, OSError) and root.errno in UNWRITABLE:
                    raise UserError(f"{self.part} cannot be written: {root.strerror}.") from fault
                failures = 1 if self.have() > longest else failures + 1
                longest = max(longest, self.have())
                if failures >= TRIES:
                    reason = "no answer in time" if isinstance(root, TimeoutError) else str(root) or repr(root)
                    raise UserError(
                        f"{self.file.url} could not be fetched, {TRIES} tries in a row failed (last: {reason}): "
                        "check the connection and run the same command again, it continues where it stopped; with a "
                        "copy of the archive, write `source: path` and its folder as `path` in params.yaml."
                    ) from fault
                pause = FIRST_WAIT * 2 ** (failures - 1) * (0.5 + jitter.random() / 2)
                if isinstance(fault, Retry) and fault.after is not None:
                    pause = fault.after
                if self.stop.wait(min(pause, LONGEST_WAIT)):
                    raise GivenUp from fault

    def _transfer(self) -> None:
        have = self.have()
        self.count(have)
        headers = {"Range": f"bytes={have}-"} if have else {}
        if have and self.validator:
            headers["If-Range"] = self.validator
        with self.client.open(self.file.url, headers) as response:
            total = self._accept(response, have)
            if response.status_code == 416:
                return
            if total is not None:
                self.meter.resize(total - self.reserved)
                self.reserved = total
            response.raw.enforce_content_length = False  # a cut is reported below, with what is here
            with self.part.open("ab") as stream:
                # read1 hands over what has arrived, so that a stalled or cut connection loses nothing.
                while block := response.raw.read1(CHUNK):
                    stream.write(block)
                    self.count(self.counted + len(block), len(block))
                    if self.stop.is_set():
                        raise GivenUp
            response.raw.drain_conn()  # nothing is left, but only this frees the connection for the next file
        if total is not None and self.have() != total:
            raise Retry(f"the connection was cut after {self.have()} of {total} bytes")

    def _accept(self, response: requests.Response, have: int) -> int | None:
        """Check the status line and headers; return the size of the whole file where the server says it."""
        status, headers = response.status_code, response.headers
        place = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", headers.get("Content-Range", ""))
        if status == 200:
            # The server does not know Range, or the file has changed: its answer starts at the first byte.
            self.restart()
            self.part.parent.mkdir(parents=True, exist_ok=True)
            etag, length = headers.get("ETag", ""), headers.get("Content-Length", "")
            self.validator = etag if etag.startswith('"') else headers.get("Last-Modified")
            return int(length) if length.isdigit() else None
        if status == 206 and place and place[1] and int(place[1]) == have:
            return int(place[2])
        if status == 416 and place and int(place[2]) == have:
            return have
        if status in (206, 416):
            self.restart()
            raise Retry("the server's answer does not fit the part that is already here")
        answer = f"the server answered {status} {response.reason}"
        if status in TEMPORARY:
            raise Retry(answer, retry_after(headers.get("Retry-After", "")))
        raise UserError(f"{self.file.url} cannot be fetched, {answer}: check the address.")


def root_of(fault: BaseException) -> BaseException:
    """What the libraries have wrapped, often three times."""
    while inner := fault.__cause__ or fault.__context__:
        fault = inner
    return fault


def fetch(client: Client, file: RemoteFile, meter: Meter, stop: threading.Event) -> None:
    """Bring one file to its place; wrong bytes are fetched once more, then the file is named."""
    for _ in range(2):
        download = Download(client, file, meter, stop)
        download.run()
        if file.sha256 is None or sha256_of(download.part) == file.sha256:
            download.part.replace(file.target)
            return
        download.restart()
        meter.resize(file.estimate - download.reserved)
    raise UserError(
        f"{file.url} was fetched twice and its checksum was not the one in SHA256SUMS.txt either time: "
        "the file is damaged on the server, try again later or use another mirror."
    )


def fetch_all(files: Sequence[RemoteFile], label: str, connections: int = CONNECTIONS) -> None:
    """Fetch every file over several connections; the first failure stops the others, whose `.part` files stay."""
    stop, queue, lock = threading.Event(), iter(files), threading.Lock()

    def work() -> None:
        with Client() as client:
            while not stop.is_set():
                with lock:
                    file = next(queue, None)
                if file is None:
                    return
                fetch(client, file, meter, stop)

    with Progress(sum(file.estimate for file in files), label, "bytes") as bar, ThreadPoolExecutor(connections) as pool:
        meter = Meter(bar)
        futures = [pool.submit(work) for _ in range(min(connections, len(files)))]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in futures:
        if not isinstance(future.exception(), GivenUp):
            future.result()
