"""A proxy on loopback that reads HTTP requests on their way, and counts their bytes by path."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import defaultdict

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class CountingProxy:
    """Passes connections on to a port; every request is counted whole, head and body, under the path it asks for.

    Args:
        target: port of the server behind.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.bytes: dict[str, int] = defaultdict(int)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def replied(self) -> int:
        """Bytes of the requests by which SuperNodes answer."""
        with self._lock:
            return sum(size for path, size in self.bytes.items() if path.startswith("/v1/fleet/push-"))

    def close(self) -> None:
        """Take no further connections; open ones end with their peers."""
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for source, sink, count in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=(source, sink, count), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, count: bool) -> None:
        seen = b""
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                sink.sendall(part)
                if count:
                    seen = self._counted(seen + part)
            sink.shutdown(socket.SHUT_WR)

    def _counted(self, seen: bytes) -> bytes:
        """Count the whole requests in what was seen, and return the rest."""
        while (end := seen.find(b"\r\n\r\n")) >= 0:
            head = seen[: end + 4]
            length = _LENGTH.search(head)
            size = len(head) + (int(length[1]) if length else 0)
            if len(seen) < size:
                break
            path = head.split(b" ", 2)[1].decode()
            with self._lock:
                self.bytes[path] += size
            seen = seen[size:]
        return seen
