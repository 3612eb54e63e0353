"""The page's server: the standard library's, on loopback, for whoever has the token; it reads and never writes.

Five routes and three files need no framework, and a framework would put half a dozen packages into every installation.
The token comes in the address that is printed, once: it is swapped for a cookie that scripts and other sites cannot
read. Requests that name another host are refused, so that no web page can reach in by a name it controls.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from hmac import compare_digest
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedseal._version import VERSION
from fedseal.core.errors import FedsealError, UsageError
from fedseal.viewer.library import Library

LOOPBACK = "127.0.0.1"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FILES = {
    "/": ("text/html; charset=utf-8", ("viewer/pages/index.html",)),
    "/app.js": ("text/javascript; charset=utf-8", ("viewer/pages/app.js",)),
    "/style.css": ("text/css; charset=utf-8", ("report/templates/style.css", "viewer/pages/style.css")),
}


class Viewer(ThreadingHTTPServer):
    """A server over the runs below a directory.

    Args:
        place: where the runs are.
        port: to listen on; 0 takes a free one.
        token: who knows it may look; a random one by default.
    """

    daemon_threads = True

    def __init__(self, place: Path, port: int = 0, token: str | None = None) -> None:
        self.library = Library(place)
        self.token = token or secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"cannot listen on port {port}: {reason}.", hint="Give another --port.") from error

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address to open, with the token."""
        return f"http://{LOOPBACK}:{self.port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of readers who left in the middle of an answer."""


class _Handler(BaseHTTPRequestHandler):
    server: Viewer
    server_version = "fedseal"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request for something to read."""
        try:
            self._answer()
        except FedsealError as error:
            self._send(HTTPStatus.NOT_FOUND, {"error": error.message})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Keep no log: addresses hold the token."""

    def _answer(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        hosts = {f"{name}:{self.server.port}" for name in (LOOPBACK, "localhost")}
        if self.headers.get("Host", "").lower() not in hosts:
            self._refuse("this page answers to its own address only")
        elif address.path == "/" and compare_digest(query.get("token", "").encode(), self.server.token.encode()):
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Location", "/")
            cookie = f"{self._cookie}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", cookie)
            self._end(b"")
        elif not self._has_token():
            self._refuse("open the address that `fedseal view` printed, with its token")
        elif address.path in _FILES:
            kind, parts = _FILES[address.path]
            source = "\n".join(files("fedseal").joinpath(part).read_text(encoding="utf-8") for part in parts)
            self._send(HTTPStatus.OK, source.replace("{{ version }}", VERSION).encode(), kind)
        else:
            self._read(address.path, query)

    def _read(self, path: str, query: Mapping[str, str]) -> None:
        library, run = self.server.library, query.get("run", "")
        answers: dict[str, Callable[[], Any]] = {
            "/api/runs": library.runs,
            "/api/run": lambda: library.run(run),
            "/api/trial": lambda: library.trial(run, query.get("key", "")),
            "/api/compare": lambda: library.compare(query.get("before", ""), run),
        }
        if path == "/picture":
            index, frame = (_number(query.get(name, "0")) for name in ("index", "frame"))
            picture = library.picture(run, query.get("key", ""), query.get("kind", ""), index, frame)
            self._send(HTTPStatus.OK, picture, "image/png")
        elif path in answers:
            self._send(HTTPStatus.OK, answers[path]())
        else:
            self._send(HTTPStatus.NOT_FOUND, {"error": "there is nothing here."})

    @property
    def _cookie(self) -> str:
        return f"fedseal-{self.server.port}"  # cookies know no ports: two viewers must not share one

    def _has_token(self) -> bool:
        try:
            morsel = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return morsel is not None and compare_digest(morsel.value.encode(), self.server.token.encode())

    def _refuse(self, why: str) -> None:
        self._send(HTTPStatus.FORBIDDEN, f"403: {why}.\n".encode(), "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, content: Any, kind: str = "application/json") -> None:
        data = content if isinstance(content, bytes) else json.dumps(content, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self._end(data)

    def _end(self, data: bytes) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else -1
