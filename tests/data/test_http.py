from __future__ import annotations

import base64
import hashlib
import random
import ssl
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from requests import Response

from safeecgmatch.data import http
from safeecgmatch.data.http import Client, RemoteFile, fetch_all, part_of, retry_after
from safeecgmatch.errors import UserError
from safeecgmatch.progress import Progress
from tests.data.http_server import FaultyServer, serving

BODY = random.Random(1).randbytes(300_000)


@pytest.fixture
def server(faulty_server: FaultyServer) -> FaultyServer:
    faulty_server.files["a.bin"] = BODY
    return faulty_server


def job(server: FaultyServer, folder: Path, name: str = "a.bin", sha256: str | None = None) -> RemoteFile:
    return RemoteFile(server.url + name, folder / name, sha256 or hashlib.sha256(BODY).hexdigest(), 1000)


def left_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def fetch(server: FaultyServer, folder: Path) -> None:
    fetch_all([job(server, folder)], "test")
    assert (folder / "a.bin").read_bytes() == BODY
    assert left_in(folder) == ["a.bin"]


@pytest.mark.parametrize(
    ("faults", "asked"),
    [
        ([], [None]),
        (["cut 100000", "cut 50000"], [None, "bytes=100000-", "bytes=150000-"]),
        (["stall 70000"], [None, "bytes=70000-"]),
        (["cut 20000"] * (http.TRIES + 4), [None, *(f"bytes={n * 20000}-" for n in range(1, http.TRIES + 5))]),
        (["wrong"], [None, None]),
    ],
    ids=["none", "cut", "stalled", "more cuts than tries, each with bytes", "wrong bytes once"],
)
def test_a_file_arrives_whole_whatever_happened(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[str], asked: list[str | None]
) -> None:
    monkeypatch.setattr(http, "READ_SECONDS", 0.3)
    server.faults["a.bin"] = faults
    fetch(server, tmp_path)
    assert server.gets("a.bin") == asked


def test_server_that_ignores_range_restarts_the_file(server: FaultyServer, tmp_path: Path) -> None:
    server.knows_range = False
    server.faults["a.bin"] = ["cut 100000"]
    fetch(server, tmp_path)
    assert server.gets("a.bin") == [None, "bytes=100000-"]


@pytest.mark.parametrize(
    ("fault", "sentence", "gets", "left"),
    [
        ("wrong", r"a\.bin was fetched twice and its checksum was not the one in SHA256SUMS", 2, []),
        (
            "cut 1000",
            r"a\.bin could not be fetched, 6 tries in a row failed .*1000 of 300000 bytes",
            http.TRIES,
            ["a.bin.part"],
        ),
        ("busy 0", r"a\.bin could not be fetched, 6 tries .*503 Service Unavailable", http.TRIES, []),
        ("status 404", r"a\.bin cannot be fetched, the server answered 404 Not Found: check the address", 1, []),
        ("redirect /a.bin", "redirects more than 5 times", 6, []),
        ("redirect ftp://x/y", "redirects to 'ftp://x/y', which is not a web address", 1, []),
    ],
)
def test_a_fault_without_end_is_one_sentence(
    server: FaultyServer, tmp_path: Path, fault: str, sentence: str, gets: int, left: list[str]
) -> None:
    server.knows_range = False
    server.always["a.bin"] = fault
    with pytest.raises(UserError, match=sentence):
        fetch_all([job(server, tmp_path)], "test")
    assert left_in(tmp_path) == left
    assert len(server.gets("a.bin")) == gets


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        (BODY[:1234], ["bytes=1234-"]),
        (BODY, ["bytes=300000-"]),
        (b"x" * 5000, ["bytes=5000-", None]),
        (b"x" * 400_000, ["bytes=400000-", None]),
    ],
    ids=["begun", "complete", "foreign", "foreign and too long"],
)
def test_part_of_an_earlier_run_is_continued_or_replaced(
    server: FaultyServer, tmp_path: Path, part: bytes, asked: list[str | None]
) -> None:
    part_of(tmp_path / "a.bin").write_bytes(part)
    fetch(server, tmp_path)
    assert server.gets("a.bin") == asked


def test_file_that_changes_on_the_server_is_not_pieced_together(server: FaultyServer, tmp_path: Path) -> None:
    newer = BODY[::-1]
    server.faults["a.bin"] = ["cut 100000"]
    original = server.fault_for

    def change(path: str) -> str:
        fault = original(path)
        if not fault:
            server.files["a.bin"] = newer
        return fault

    server.fault_for = change
    fetch_all([job(server, tmp_path)._replace(sha256=None)], "test")
    assert (tmp_path / "a.bin").read_bytes() == newer
    assert len(server.gets("a.bin")) == 2


def test_busy_server_is_asked_again(server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_WAIT", 1000.0)  # so only the server's own wish can make this test quick
    server.faults["a.bin"] = ["busy 0", "busy 0"]
    fetch(server, tmp_path)


def test_waits_grow_but_are_bounded(server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Clock(threading.Event):
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return False

    monkeypatch.setattr(http, "FIRST_WAIT", 8.0)
    server.faults["a.bin"] = ["status 502"] * 5
    with Progress(1000, "test", "bytes") as bar:
        http.fetch(Client(), job(server, tmp_path), http.Meter(bar), Clock())
    assert all(4 * 2**i <= wait <= 8 * 2**i for i, wait in enumerate(waits[:3]))
    assert waits[4] == http.LONGEST_WAIT


def test_redirects_are_followed(server: FaultyServer, tmp_path: Path) -> None:
    server.faults["old.bin"] = ["redirect /a.bin"]
    fetch_all([job(server, tmp_path, "old.bin")], "test")
    assert (tmp_path / "old.bin").read_bytes() == BODY


def test_unreachable_server_says_so(server: FaultyServer, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"could not be fetched.*refused.*`source: path` and its folder as `path` in params.yaml"
    ):
        fetch_all([RemoteFile("http://127.0.0.1:9/a.bin", tmp_path / "a.bin", None, 1)], "test")
    assert left_in(tmp_path) == []


def test_many_files_share_few_connections(server: FaultyServer, tmp_path: Path) -> None:
    names = [f"{number:03d}.bin" for number in range(60)]
    server.files.update({name: name.encode() * 100 for name in names})
    jobs = [job(server, tmp_path, name, hashlib.sha256(server.files[name]).hexdigest()) for name in names]
    fetch_all(jobs, "test", connections=4)
    assert left_in(tmp_path) == names
    assert server.connections <= 4


def test_idle_connection_closed_by_the_server_costs_no_try(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TRIES", 1)
    server.files["b.bin"] = BODY
    server.faults["b.bin"] = ["hang"]
    fetch_all([job(server, tmp_path), job(server, tmp_path, "b.bin")], "test", connections=1)
    assert left_in(tmp_path) == ["a.bin", "b.bin"]


def test_first_failure_stops_the_others(server: FaultyServer, tmp_path: Path) -> None:
    names = [f"{number:03d}.bin" for number in range(200)]
    server.files.update(dict.fromkeys(names[1:], BODY))
    with pytest.raises(UserError, match=r"000\.bin cannot be fetched"):
        fetch_all([job(server, tmp_path, name) for name in names], "test", connections=2)
    assert len(left_in(tmp_path)) < len(names) - 1


def test_progress_ends_at_the_true_number_of_bytes(
    server: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faults["a.bin"] = ["wrong", "cut 100000"]
    server.knows_range = False
    fetch_all([job(server, tmp_path)], "test")
    assert "300000/300000 bytes (100 %)" in (line := capsys.readouterr().err)
    assert "MB/s" in line


def test_full_disk_is_one_sentence(server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match=r"a\.bin\.part cannot be written: No space left on device"):
        fetch_all([job(server, tmp_path)], "test")


def test_invalid_certificate_is_an_error_at_once(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def request(*arguments: object) -> None:
        tries.append(arguments)
        raise ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(http.Client, "open", request)
    with pytest.raises(UserError, match=r"a\.bin: the server's certificate is not valid \(.*self-signed"):
        fetch_all([job(server, tmp_path)], "test")
    assert len(tries) == 1


def test_retry_after_is_seconds_or_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert [retry_after(text) for text in ("7", "", "soon")] == [7.0, None, None]
    assert [retry_after(formatdate(1e9 + shift, usegmt=True)) for shift in (-100, 100)] == [0.0, 100.0]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """A loopback server that the environment names as proxy, with a user and a password."""
    with serving() as server:
        address = server.url.replace("http://", "http://ann:p%40ss@").rstrip("/")
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, address)
        for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "REQUEST_METHOD"):
            monkeypatch.delenv(name, raising=False)
        yield server


def test_http_goes_through_the_proxy(proxy: FaultyServer, tmp_path: Path) -> None:
    proxy.files["http://mirror.invalid/a.bin"] = b"found"
    fetch_all([RemoteFile("http://mirror.invalid/a.bin", tmp_path / "a.bin", None, 5)], "test")
    assert (tmp_path / "a.bin").read_bytes() == b"found"


def test_https_asks_the_proxy_for_a_tunnel(
    proxy: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TRIES", 1)
    with pytest.raises(UserError, match="Tunnel connection failed: 407"):
        fetch_all([RemoteFile("https://mirror.invalid/a.bin", tmp_path / "a.bin", None, 5)], "test")
    assert proxy.tunnels == [("mirror.invalid:443", "Basic " + base64.b64encode(b"ann:p@ss").decode())]


def test_no_proxy_is_honoured(proxy: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    proxy.files["a.bin"] = b"direct"
    fetch_all([RemoteFile(proxy.url + "a.bin", tmp_path / "a.bin", None, 5)], "test")
    assert proxy.gets("a.bin") == [None]


def test_size_is_known_where_the_server_tells_it(proxy: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    proxy.files["a.zip"] = b"x" * 1234
    assert Client().size_of(proxy.url + "a.zip") == 1234
    assert Client().size_of("http://127.0.0.1:9/a.zip") is None


@pytest.mark.parametrize("location", ["http://example.org/x", "file:///etc/passwd"])
def test_redirects_to_unsafe_places_are_refused(location: str) -> None:
    response = Response()
    response.url, response.status_code = "https://example.org/y", 302
    response.headers["Location"] = location
    with pytest.raises(UserError, match="redirects to"):
        Client().get_redirect_target(response)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "data/raw", "https://"])
def test_only_web_addresses(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a web address"):
        fetch_all([RemoteFile(url, tmp_path / "a", None, 1)], "test")
