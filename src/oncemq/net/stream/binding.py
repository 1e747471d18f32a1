"""Binds the sockets of a stream listener."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import Any

from oncemq.net.system import System

ALL_HOSTS = "0.0.0.0"
_NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def bind_tcp(system: System, host: str, port: int) -> list[socket.socket]:
    """Bind all addresses of a host, as far as this machine has them: localhost may have one of IPv4 and one of
    IPv6."""
    bound: list[socket.socket] = []
    failure: OSError | None = None
    found = system.names(ALL_HOSTS if host == "*" else host, port)
    try:
        for family, name in dict.fromkeys(found):
            try:
                chosen = bound[0].getsockname()[1] if bound else port
                bound.append(_bound(system.open_socket(family), (name[0], chosen, *name[2:])))
            except OSError as error:
                if error.errno not in _NO_ADDRESS:
                    raise
                failure = error
        if failure is not None and not bound:
            raise failure
    except OSError:
        for sock in bound:
            sock.close()
        raise
    return bound


def bind_unix(path: str, mode: str) -> socket.socket:
    """Bind a Unix socket. The file of a broker that died is replaced, that of a running one is not."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or path.startswith("\0") or not _is_stale(path):
                raise
            os.unlink(path)
            sock.bind(path)
        if not path.startswith("\0"):
            # Nobody can connect before `listen`.
            os.chmod(path, int(mode, 8))
    except OSError:
        sock.close()
        raise
    return sock


def _is_stale(path: str) -> bool:
    """Return whether a file is a Unix socket that nobody listens at."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A broker that is stopped may have a full queue of connections.
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _bound(sock: socket.socket, name: tuple[Any, ...]) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(name)
    except OSError:
        sock.close()
        raise
    return sock
