"""A proxy to PostgreSQL that can lose what is sent: a request, or its answer."""

from __future__ import annotations

import select
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

Loss = Literal["nothing", "request", "answer"]


class Proxy:
    """On a socket of its own. `loses` counts for what is sent next on a connection, which ends with it."""

    def __init__(self, dsn: str) -> None:
        found = conninfo_to_dict(dsn)
        self._host, self._port = str(found.get("host") or "localhost"), int(str(found.get("port") or 5432))
        # Directly in the temporary folder, because the path of a socket has at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="oncemq-proxy-"))
        self.dsn = make_conninfo(dsn, host=str(self._folder), port=5432)
        self.loses: Loss = "nothing"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = self._connect()
                self._ends += [near, far]
                threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()

    def _connect(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, self._port))
        far = socket.socket(socket.AF_UNIX)
        far.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return far

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while True:
                for end in select.select([near, far], [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data or self.loses == ("request" if end is near else "answer"):
                        near.close()
                        far.close()
                        return
                    (far if end is near else near).sendall(data)

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        shutil.rmtree(self._folder, ignore_errors=True)
