"""HTTP connections that stay open: 40,000 small files would otherwise cost 40,000 handshakes.

Proxies, certificates and redirects are the work of `requests`, with one rule added: no way leads from https to less.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, TooManyRedirects
from urllib3 import Retry

from safeecgmatch.errors import UserError

CONNECT_SECONDS, READ_SECONDS = 20.0, 60.0
REDIRECTS = 5


class Client(requests.Session):
    """The connections of one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.max_redirects = REDIRECTS
        self.headers["Accept-Encoding"] = "identity"
        # A server may close an idle connection at any time; that is no fault of the request, so one read is free.
        retries = Retry(total=None, connect=0, read=1, redirect=0, status=0, other=0)
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
