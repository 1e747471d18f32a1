"""Planted bugs in the stream transport, on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncemq.client.runtime.stream import StreamTransport
from oncemq.net.stream.connection import StreamConnection
from oncemq.net.stream.listener import StreamListener
from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import StreamReader
from tests.simulation.bugs.registry import Patch, bug


@bug("a client does not notice that its connection was replaced")
def client_does_not_notice_a_new_connection() -> Sequence[Patch]:
    real: Any = StreamTransport._opened

    def opened(self: StreamTransport) -> None:
        real(self)
        self.is_renewed = False

    return [(StreamTransport, "_opened", opened)]


@bug("the broker forgets what the system did not take of a reply")
def listener_drops_the_rest_of_a_reply() -> Sequence[Patch]:
    real: Any = StreamConnection.send_buffers

    def send_buffers(self: StreamConnection, buffers: Sequence[Frame]) -> None:
        real(self, buffers)
        self._outgoing.clear()
        self.outgoing_bytes = 0

    return [(StreamConnection, "send_buffers", send_buffers)]


@bug("the broker does not send what waits when its peer reads again")
def listener_does_not_send_the_rest() -> Sequence[Patch]:
    return [(StreamListener, "_send_rest", lambda _self, _connection: None)]


@bug("a reply overtakes the one before it, which was sent in part")
def listener_overtakes_a_partial_reply() -> Sequence[Patch]:
    def send_buffers(self: StreamConnection, buffers: Sequence[Frame]) -> None:
        waiting, self._outgoing = self._outgoing, type(self._outgoing)()
        real(self, buffers)
        self._outgoing.extend(waiting)

    real: Any = StreamConnection.send_buffers
    return [(StreamConnection, "send_buffers", send_buffers)]


@bug("the name of a connection that has ended is given to the next one")
def listener_reuses_names_of_peers() -> Sequence[Patch]:
    real: Any = StreamListener._end

    def end(self: StreamListener, connection: StreamConnection) -> None:
        was_open = not connection.is_ended
        real(self, connection)
        if was_open and connection.peer[1:] == self._last_peer.to_bytes(8, "big"):
            self._last_peer -= 1

    return [(StreamListener, "_end", end)]


@bug("bytes behind a complete message are lost if they are not a complete one")
def reader_loses_the_beginning_of_a_message() -> Sequence[Patch]:
    real: Any = StreamReader.feed

    def feed(self: StreamReader, data: bytes) -> None:
        before = len(self._messages)
        real(self, data)
        if len(self._messages) > before:
            self._rest = b""

    return [(StreamReader, "feed", feed)]


@bug("the frames of a large message are cut at the wrong place")
def reader_cuts_large_messages_wrongly() -> Sequence[Patch]:
    real: Any = StreamReader._split_large

    def split_large(self: StreamReader, body: memoryview) -> list[Frame]:
        frames: list[Frame] = real(self, body)
        if len(frames) > 1:
            frames[-1] = frames[-1][1:]
        return frames

    return [(StreamReader, "_split_large", split_large)]
