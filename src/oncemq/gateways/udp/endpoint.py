"""The socket: receives and sends datagrams, and reports addresses at which nobody listens. Knows nothing of packets.

On Linux the socket's error queue tells which address an ICMP error is about. While that queue is not empty the socket
is in an error state, which some event loops treat as its end. So the loop watches an epoll object that watches the
socket.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors

#: Packets that are read in one turn of the event loop, so that other tasks can run.
_PACKETS_PER_TURN = 64
_BUFFER_BYTES = 4 * 1024 * 1024
#: From linux/in.h and linux/in6.h; Python's socket module does not define them on all platforms.
_IP_RECVERR = 11
_IPV6_RECVERR = 25
#: More than the kernel's description of an error.
_ERROR_BYTES = 512
#: The socket itself can't be used. Other errors are about single packets.
_BROKEN = (errno.EBADF, errno.ENOTSOCK)
_HAS_ERROR_QUEUE = sys.platform == "linux"


class Endpoint:
    def __init__(self, host: str, port: int, packet_bytes_max: int) -> None:
        """Bind. Raises ListenFailed."""
        self._packet_bytes_max = packet_bytes_max
        self._is_six = ":" in host
        self._socket = self._bind(host, port)
        self._epoll = select.epoll() if _HAS_ERROR_QUEUE else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_packet: Callable[[bytes, Address], None] | None = None
        self._on_unreachable: Callable[[Address], None] | None = None
        self._on_failure: Callable[[OSError], None] | None = None

    def _bind(self, host: str, port: int) -> socket.socket:
        opened = socket.socket(socket.AF_INET6 if self._is_six else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            with suppress(OSError):
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            if _HAS_ERROR_QUEUE:
                level, option = (
                    (socket.IPPROTO_IPV6, _IPV6_RECVERR) if self._is_six else (socket.IPPROTO_IP, _IP_RECVERR)
                )
                opened.setsockopt(level, option, 1)
            opened.bind((host, port))
        except OSError as error:
            opened.close()
            raise errors.ListenFailed(f"can't listen at {host}:{port} for datagrams: {error.strerror}") from None
        return opened

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"udp://[{host}]:{port}" if self._is_six else f"udp://{host}:{port}"

    def start(
        self,
        on_packet: Callable[[bytes, Address], None],
        on_unreachable: Callable[[Address], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """Start reading. `on_unreachable` is called with addresses at which nobody listens, `on_failure` if nothing
        more can be read."""
        self._on_packet, self._on_unreachable, self._on_failure = on_packet, on_unreachable, on_failure
        self._loop = asyncio.get_running_loop()
        if self._epoll is not None:
            self._epoll.register(self._socket.fileno(), select.EPOLLIN)
            self._loop.add_reader(self._epoll.fileno(), self._drain)
        else:
            self._loop.add_reader(self._socket.fileno(), self._drain)

    def _drain(self) -> None:
        assert self._on_packet is not None
        assert self._on_failure is not None
        for _ in range(_PACKETS_PER_TURN):
            try:
                # One byte more than allowed, so that a packet that is too long can be recognised.
                data, address = self._socket.recvfrom(self._packet_bytes_max + 1)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno in _BROKEN:
                    self._stop_reading()
                    self._on_failure(error)
                    return
                self._read_errors()
                continue
            self._on_packet(data, address[:2])
        self._read_errors()

    def _read_errors(self) -> None:
        if not _HAS_ERROR_QUEUE:
            return
        for _ in range(_PACKETS_PER_TURN):
            try:
                _, told, _, address = self._socket.recvmsg(0, _ERROR_BYTES, socket.MSG_ERRQUEUE)
            except OSError:
                return
            if address and is_port_closed(told) and self._on_unreachable is not None:
                self._on_unreachable(address[:2])

    def send(self, data: bytes, address: Address) -> bool:
        """Send a packet. False: it was not sent."""
        for _ in range(2):
            try:
                self._socket.sendto(data, address)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                # The error may be about an earlier packet.
                self._read_errors()
                continue
            return True
        return False

    def _stop_reading(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._epoll.fileno() if self._epoll is not None else self._socket.fileno())
            self._loop = None

    def close(self) -> None:
        self._stop_reading()
        if self._epoll is not None:
            self._epoll.close()
        self._socket.close()


def is_port_closed(told: Iterable[tuple[int, int, bytes]]) -> bool:
    """Return whether an error says that a port is closed. Other errors, such as a network that is down or a packet that
    is too long, don't tell whether somebody listens."""
    kinds = ((socket.IPPROTO_IP, _IP_RECVERR), (socket.IPPROTO_IPV6, _IPV6_RECVERR))
    # struct sock_extended_err begins with the error number.
    numbers = (int.from_bytes(data[:4], sys.byteorder) for level, kind, data in told if (level, kind) in kinds)
    return errno.ECONNREFUSED in numbers
