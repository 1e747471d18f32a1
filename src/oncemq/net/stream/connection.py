"""One connection of a stream listener: what has arrived, and what waits to be sent."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections import deque
from collections.abc import Sequence
from itertools import groupby, islice, takewhile

from oncemq.net.tls_socket import TlsSocket
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import REQUEST_FRAMES_MAX
from oncemq.protocol.stream import RECEIVE_BYTES, StreamReader, encode_message, remove_sent

#: The rest of a large message is received in parts of at most this size, so that other connections have their turns.
_TURN_BYTES_MAX = 1024 * 1024
#: Thousands of tiny requests may arrive with one call. The others wait for the next turn.
_REQUESTS_PER_TURN = 1_000
#: Maximum number of buffers of one system call (IOV_MAX of Linux and macOS).
_BUFFERS_MAX = 1024
#: Views of a buffer that wait are copied if this many times their size is less than the buffer: a small rest of a reply
#: must not keep the megabytes that were read from the disk for it.
_BUFFER_EXCESS_MAX = 2
#: The address of a peer of a Unix socket.
_UNIX = "unix"


class StreamConnection:
    __slots__ = (
        "_outgoing",
        "accepted_s",
        "arrived_s",
        "caller",
        "descriptor",
        "is_ended",
        "is_late",
        "outgoing_bytes",
        "peer",
        "reader",
        "sent_s",
        "socket",
    )

    #: `receive` must be called although nothing new arrives.
    holds_more = False
    #: Something waits to be sent that is not counted in `outgoing_bytes`.
    has_unsent = False
    #: The common name of the peer's certificate, which was verified; empty if there is none.
    common_name = ""

    def __init__(self, sock: socket.socket | TlsSocket, peer: bytes, message_bytes_max: int, now_s: float) -> None:
        self.socket = sock
        self.descriptor = sock.fileno()
        #: Names it for the broker. It is never used again. After the opening, the caller is a part of it.
        self.peer = peer
        #: Who it is, as the gate says; None until then.
        self.caller: str | None = None
        self.reader = StreamReader(
            message_bytes_max, REQUEST_FRAMES_MAX, as_bytes=False, messages_max=_REQUESTS_PER_TURN
        )
        self._outgoing: deque[memoryview] = deque()
        self.outgoing_bytes = 0
        self.accepted_s = now_s
        #: Its opening is overdue, and it gets one more turn.
        self.is_late = False
        #: When something was received last, and when something was sent last or nothing waited to be sent.
        self.arrived_s = self.sent_s = now_s
        self.is_ended = False

    def receive(self) -> int:
        """Receive once, and return the number of bytes; 0 if the peer has closed the connection. What has arrived
        already comes first. Raises OSError (also BlockingIOError) and StreamBroken."""
        if self.reader.has_more:
            self.reader.feed(b"")
            return 1
        target = self.reader.target
        if target is not None:
            count = self.socket.recv_into(target[:_TURN_BYTES_MAX])
            if count:
                self.reader.filled(count)
            return count
        data = self.socket.recv(RECEIVE_BYTES)
        if data:
            self.reader.feed(data)
        return len(data)

    def send(self, frames: Sequence[Frame]) -> None:
        """Send a message, or as much of it as the system takes now. Raises OSError."""
        self.send_buffers(encode_message(frames))

    def send_buffers(self, buffers: Sequence[Frame]) -> None:
        sent = 0
        if not self._outgoing:
            try:
                if len(buffers) == 1:
                    sent = self.socket.send(buffers[0])
                    if sent == len(buffers[0]):
                        return
                else:
                    sent = self.socket.sendmsg(buffers[:_BUFFERS_MAX])
            except BlockingIOError:
                pass
        waiting: list[memoryview] = []
        for buffer in buffers:
            size = len(buffer)
            if sent >= size:
                sent -= size
            else:
                waiting.append(memoryview(buffer)[sent:])
                self.outgoing_bytes += size - sent
                sent = 0
        for _, views in groupby(waiting, lambda view: id(view.obj)):
            self._outgoing += _without_large_buffer(list(views))

    def send_rest(self) -> bool:
        """Send what waits. Return whether everything is sent. Raises OSError (also BlockingIOError)."""
        outgoing = self._outgoing
        while outgoing:
            try:
                sent = self.socket.sendmsg(list(islice(outgoing, _BUFFERS_MAX)))
            except BlockingIOError:
                self._free_sent()
                raise
            self.outgoing_bytes -= sent
            remove_sent(outgoing, sent)
        return True

    def _free_sent(self) -> None:
        """Free the buffer of the first views if most of it was sent."""
        outgoing = self._outgoing
        buffer = outgoing[0].obj
        views = list(takewhile(lambda view: view.obj is buffer, outgoing))
        kept = _without_large_buffer(views)
        if kept is not views:
            for _ in views:
                outgoing.popleft()
            outgoing.extendleft(kept)

    def try_send(self, data: bytes) -> None:
        """Send the last words before the connection is closed, if the system takes them."""
        with contextlib.suppress(OSError):
            self.socket.send(data)

    @property
    def address(self) -> str:
        """The peer's address without its port; `unix` for a Unix socket. Raises OSError if the peer is gone."""
        name = self.socket.getpeername()
        if not isinstance(name, tuple):
            return _UNIX
        address = ipaddress.ip_address(name[0])
        return str(getattr(address, "ipv4_mapped", None) or address)

    def describe(self) -> str:
        """Return the peer's address for a log line, with a space before it; empty for a Unix socket."""
        try:
            name = self.socket.getpeername()
        except OSError:
            return ""
        return f" {name[0]}:{name[1]}" if isinstance(name, tuple) else ""


def _without_large_buffer(views: list[memoryview]) -> list[memoryview]:
    """Return views of one buffer, or a copy of them if they are only a small part of it."""
    if _BUFFER_EXCESS_MAX * sum(map(len, views)) >= memoryview(views[0].obj).nbytes:
        return views
    return [memoryview(b"".join(views))]
