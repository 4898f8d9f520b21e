from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from requests import Response

from safeecgmatch.data import http
from safeecgmatch.data.connection import Client
from safeecgmatch.data.http import RemoteFile, fetch_all
from safeecgmatch.errors import UserError
from tests.data.http_server import FaultyServer, serving


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
