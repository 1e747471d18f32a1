"""What the stream transport needs from the operating system: sockets, polls and a clock. The simulator has its own."""

from __future__ import annotations

import select
import socket
import time
from functools import partial
from typing import Any

from oncemq.net.lookup import KnownNames, Lookup, Name
from oncemq.net.poller import Poller


class System:
    #: A monotonic clock.
    now_s = staticmethod(time.monotonic)

    def open_socket(self, family: int) -> socket.socket:
        return socket.socket(family, socket.SOCK_STREAM)

    def socketpair(self) -> tuple[socket.socket, socket.socket]:
        return socket.socketpair()

    def names(self, host: str, port: int, flags: int = 0) -> list[Name]:
        """Return what a host and a port lead to: families of sockets, and the names to bind or connect them to. Raises
        OSError."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        except UnicodeError as error:
            raise OSError(f"{host!r} is not the name of a host: {error}") from None
        return [(family, name) for family, _, _, _, name in found]

    def look_up(self, host: str, port: int) -> Lookup | KnownNames:
        """As `names`, but a name server may take its time. Raises OSError, now or later."""
        try:
            return KnownNames(self.names(host, port, socket.AI_NUMERICHOST))
        except OSError:
            return Lookup(partial(self.names, host, port))

    def poll(self) -> Any:
        """Return an object with the methods of `select.poll`. None: there is only `select.select` (Windows)."""
        return select.poll() if hasattr(select, "poll") else None

    def poller(self) -> Poller:
        return Poller()
