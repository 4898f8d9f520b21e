"""HTTP requests over connections that stay open: 40,000 small files would otherwise cost 40,000 handshakes."""

from __future__ import annotations

import base64
import http.client
import threading
import urllib.request
from urllib.parse import unquote, urljoin, urlsplit

from safeecgmatch.errors import UserError

CONNECT_SECONDS, READ_SECONDS = 20.0, 60.0
REDIRECTS = 5


def redirect_target(url: str, location: str | None) -> str:
    target = urljoin(url, location or "")
    if not location or urlsplit(target).scheme not in ("http", "https"):
        raise UserError(f"{url} redirects to {location!r}, which is not a web address: check the address.")
    if urlsplit(url).scheme == "https" and urlsplit(target).scheme == "http":
        raise UserError(f"{url} redirects to {target}, which is not encrypted: use an https address.")
    return target


class Client:
    """One open connection per thread and server; follows redirects; honours the proxy variables of the environment."""

    def __init__(self) -> None:
        self._local = threading.local()

    def request(self, method: str, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        for _ in range(REDIRECTS + 1):
            response = self._send(method, url, {"Accept-Encoding": "identity", **headers})
            if response.status not in (301, 302, 303, 307, 308):
                return response
            response.read()
            url = redirect_target(url, response.getheader("Location"))
        raise UserError(f"{url} redirects more than {REDIRECTS} times: check the address.")

    def size_of(self, url: str) -> int | None:
        """Content-Length, where the server tells it; any fault is left to the download itself to report."""
        try:
            response = self.request("HEAD", url, {})
            response.read()
        except (OSError, http.client.HTTPException):
            self.drop()
            return None
        length = response.getheader("Content-Length")
        return int(length) if response.status == 200 and length and length.isdigit() else None

    def drop(self) -> None:
        """Close this thread's connections, because the rest of an answer was not read."""
        for connection in self._connections().values():
            connection.close()

    def _connections(self) -> dict[str, http.client.HTTPConnection]:
        if not hasattr(self._local, "connections"):
            self._local.connections = {}
        connections: dict[str, http.client.HTTPConnection] = self._local.connections
        return connections

    def _send(self, method: str, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{url!r} is not a web address: it must start with https:// or http://.")
        proxy = proxy_for(parts.scheme, parts.netloc)
        server = f"{parts.scheme}://{parts.netloc}"
        if server not in self._connections():
            self._connections()[server] = connection_to(server, proxy)
        connection = self._connections()[server]
        address = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if proxy and parts.scheme == "http":
            address, headers = url, {**headers, **proxy_credentials(proxy)}
        reused = connection.sock is not None
        try:
            return self._exchange(connection, method, address, headers)
        except (ConnectionError, http.client.BadStatusLine):
            connection.close()
            if not reused:
                raise
            # A server may close an idle connection at any time; that is no fault of this request.
            return self._exchange(connection, method, address, headers)

    @staticmethod
    def _exchange(
        connection: http.client.HTTPConnection, method: str, address: str, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        if connection.sock is None:
            connection.connect()
        if connection.sock is not None:
            connection.sock.settimeout(READ_SECONDS)
        connection.request(method, address, headers=headers)
        return connection.getresponse()


def proxy_for(scheme: str, server: str) -> str | None:
    """The proxy that the environment names (`https_proxy`, `http_proxy`, `no_proxy`), as a whole address."""
    proxy = urllib.request.getproxies().get(scheme)
    if not proxy or urllib.request.proxy_bypass(server):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def connection_to(server: str, proxy: str | None) -> http.client.HTTPConnection:
    parts, first = urlsplit(server), urlsplit(proxy or server)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    port = first.port or (80 if first.scheme == "http" else 443)
    connection = kind(first.hostname or "", port, timeout=CONNECT_SECONDS)
    if proxy and parts.scheme == "https":
        connection.set_tunnel(parts.hostname or "", parts.port, proxy_credentials(proxy))
    return connection


def proxy_credentials(proxy: str) -> dict[str, str]:
    via = urlsplit(proxy)
    if via.username is None:
        return {}
    pair = f"{unquote(via.username)}:{unquote(via.password or '')}".encode()
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair).decode()}
