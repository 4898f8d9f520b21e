"""A real HTTP server on loopback that misbehaves on demand."""

from __future__ import annotations

import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FaultyServer:
    """Serves `files` (path without leading slash -> bytes).

    `faults[path]` is a list of faults, one per GET of that path, used up in order; `always[path]` is one without end.
    Faults: `cut N` (N bytes of the body, then the connection closes), `stall N` (N bytes, then silence), `wrong` (right
    length, wrong bytes), `status N`, `busy SECONDS` (503 with Retry-After), `redirect PATH`, `hang` (no answer).
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: defaultdict[str, list[str]] = defaultdict(list)
        self.always: dict[str, str] = {}
        self.knows_range = True
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, Range
        self.connections = 0
        self.tunnels: list[tuple[str, str | None]] = []  # address, Proxy-Authorization
        self.lock = threading.Lock()
        self.patience = threading.Event()  # stalled answers end when the test does
        self.url = ""

    def fault_for(self, path: str) -> str:
        with self.lock:
            return self.faults[path].pop(0) if self.faults[path] else self.always.get(path, "")

    def gets(self, path: str) -> list[str | None]:
        """The Range header of every GET of this path."""
        return [byte_range for method, name, byte_range in self.requests if (method, name) == ("GET", path)]


def handler_for(server: FaultyServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else every small answer waits 40 ms for the client's acknowledgement

        def setup(self) -> None:
            super().setup()
            with server.lock:
                server.connections += 1

        def log_message(self, format: str, *arguments: object) -> None:
            """Keep the output of the tests clean."""

        def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            path = self.path.lstrip("/")
            server.requests.append(("HEAD", path, None))
            self.answer(200, {"Content-Length": str(len(server.files[path]))})

        def do_CONNECT(self) -> None:
            server.tunnels.append((self.path, self.headers.get("Proxy-Authorization")))
            self.answer(407, {})

        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            byte_range = self.headers.get("Range")
            server.requests.append(("GET", path, byte_range))
            fault, _, detail = server.fault_for(path).partition(" ")
            if fault == "status":
                return self.answer(int(detail), {})
            if fault == "busy":
                return self.answer(503, {"Retry-After": detail})
            if fault == "redirect":
                return self.answer(302, {"Location": detail}, b"over there")
            if fault == "hang":
                self.close_connection = True
                return None
            if path not in server.files:
                return self.answer(404, {})
            self.serve(server.files[path], byte_range, fault, detail)

        def serve(self, body: bytes, byte_range: str | None, fault: str, detail: str) -> None:
            headers, status, start = {"ETag": f'"{hash(body)}"'}, 200, 0
            if byte_range and server.knows_range and self.headers.get("If-Range", headers["ETag"]) == headers["ETag"]:
                found = re.fullmatch(r"bytes=(\d+)-", byte_range)
                start = int(found[1]) if found else 0
                if start >= len(body):
                    return self.answer(416, {"Content-Range": f"bytes */{len(body)}"})
                status = 206
                headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            content = body[start:]
            if fault == "wrong":
                content = bytes(255 - byte for byte in content)
            headers["Content-Length"] = str(len(content))
            if fault in ("cut", "stall"):
                content = content[: int(detail)]
                self.close_connection = True
            self.answer(status, headers, content)
            if fault == "stall":
                server.patience.wait()

    return Handler


class Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle is what these tests are about; anything else is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serving() -> Iterator[FaultyServer]:
    server = FaultyServer()
    listener = Listener(("127.0.0.1", 0), handler_for(server))
    server.url = f"http://127.0.0.1:{listener.server_port}/"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.patience.set()
        listener.shutdown()
        listener.server_close()
        thread.join()
