"""A TCP proxy with a limited rate in each direction, and almost no buffer of its own."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from oncemq.config.addresses import split_address

_CHUNK_BYTES = 4096


class SlowLink:
    """A link to a broker that transfers `bytes_per_s` in each direction."""

    def __init__(self, url: str, bytes_per_s: int) -> None:
        self._target = split_address(url)
        self._chunk_s = _CHUNK_BYTES / bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Connections inherit it: what waits in a large buffer looks to the client as if it had arrived.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK_BYTES)
        self._ends: list[socket.socket] = []
        self.url = f"{url.partition('://')[0]}://127.0.0.1:{self._listener.getsockname()[1]}"
        #: Bytes that were sent by clients.
        self.sent_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._transfer, args=(source, sink), daemon=True).start()

    def _transfer(self, source: socket.socket, sink: socket.socket) -> None:
        is_near = source.getsockname() == self._listener.getsockname()
        due_s = time.monotonic()
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self.sent_bytes += len(data) * is_near
                sink.sendall(data)
                due_s = max(due_s, time.monotonic() - self._chunk_s) + self._chunk_s * len(data) / _CHUNK_BYTES
                time.sleep(max(0.0, due_s - time.monotonic()))
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
