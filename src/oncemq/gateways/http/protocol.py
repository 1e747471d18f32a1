"""uvicorn's HTTP protocol, with limits for what one connection may send: the size of a head, the number of requests
that are parsed before their turn, and the time that the client takes.

The bytes that arrive are passed to the parser in pieces that end with a head or a body. So at most one request waits
behind the one that is being answered, however many a client sends at once, and a head is measured without the body that
came with it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from oncemq.gateways.http.connections import Connections, Phase
from oncemq.gateways.http.framework.memory import CONNECTION, IS_PIPELINED, SMALL_BYTES
from oncemq.gateways.http.framework.problems import answer_of
from oncemq.protocol import errors

#: Limits of the request line and the headers.
_HEAD_BYTES_MAX = 64 * 1024
_HEADERS_MAX = 200
_HEAD_END = b"\r\n\r\n"
#: How long input is discarded after a refusal. If the connection were closed at once, the client might not get to read
#: the response.
_LINGER_S = 1.0
#: Linux: the first byte of this option is the state of a connection.
_TCP_INFO = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_TCP_ESTABLISHED = 1


class _Flow(FlowControl):
    """Does not resume reading while received bytes wait to be parsed."""

    is_held = False

    def hold(self, is_held: bool) -> None:
        if is_held == self.is_held:
            return
        self.is_held = is_held
        if is_held:
            self.pause_reading()
        else:
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """Implements `connections.Connection` and `framework.memory.ClientConnection`."""

    flow: _Flow

    def __init__(self, *arguments: Any, open_connections: Connections, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.held_bytes = 0
        self._open = open_connections
        #: Received bytes that are not parsed yet, from this index on.
        self._received = b""
        self._parsed = 0
        #: Of the head that is being parsed; in a body that is sent in chunks: what came since the last chunk.
        self._head_bytes = 0
        #: The end of the piece before, if it was a part of a head: the head's end may be split.
        self._tail = b""
        self._is_in_body = False
        #: What is missing of a body with a known length.
        self._body_left = 0
        #: What has arrived of a body.
        self._body_bytes = 0
        self._refusal: tuple[errors.OnceMQError, int] | None = None
        self._is_discarding = False
        #: What is parsed was received before the last response was complete.
        self._is_ahead = False
        #: The request before that of `cycle`. It is being answered while that one waits in `pipeline`.
        self._former_cycle: RequestResponseCycle | None = None

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        if not self._open.add(self):
            # It has no place, so it must not linger.
            self._send_refusal(errors.Overloaded("there are too many connections"), 503)
            self._is_discarding = True
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.remove(self)
        self._received = b""
        self._unset_keepalive_if_required()
        self._end_requests()
        super().connection_lost(exc)

    def abort(self) -> None:
        self._end_requests()
        self.transport.abort()

    def _end_requests(self) -> None:
        """Tell the application that the client is gone. uvicorn tells it for the last request only."""
        for cycle in (self._former_cycle, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    async def drain(self) -> None:
        await self.flow.drain()

    def is_gone(self) -> bool:
        """While nothing is read from it, only the kernel knows whether the client has closed the connection."""
        connected = self.transport.get_extra_info("socket")
        if self.transport.is_closing() or connected is None or _TCP_INFO is None:
            return self.transport.is_closing()
        state: int = connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0]
        return state != _TCP_ESTABLISHED

    @property
    def unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def has_unfinished_request(self) -> bool:
        return self._head_bytes > 0 or self._is_in_body

    # What arrives.

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            return
        self._unset_keepalive_if_required()
        if not self.has_unfinished_request:
            self._open.touch(self)
        self._is_ahead = self._parsed < len(self._received)
        if self._is_ahead:
            data = self._received[self._parsed :] + data
        self._received, self._parsed = data, 0
        self._parse()

    def _parse(self) -> None:
        """Parse what has arrived, but no more than one request ahead."""
        while self._parsed < len(self._received) and not self.is_ended and not self.pipeline:
            end = self._piece_end()
            is_all = not self._parsed and end == len(self._received)
            piece = self._received if is_all else self._received[self._parsed : end]
            self._parsed = end
            self._feed(piece)
        if self._parsed >= len(self._received) or self.is_ended:
            self._received, self._parsed = b"", 0
        if not self.is_ended:
            self.flow.hold(bool(self._received))
            self._note_held()

    @property
    def is_ended(self) -> bool:
        return self._is_discarding or self.parser is None or self.transport.is_closing()

    def _piece_end(self) -> int:
        """Return where the next piece ends: with the body, with the head, or with what has arrived."""
        data, start = self._received, self._parsed
        if self._body_left:
            return min(len(data), start + self._body_left)
        if self._tail:
            split = (self._tail + data[start : start + 3]).find(_HEAD_END)
            if split >= 0:
                return start + split + 4 - len(self._tail)
        end = data.find(_HEAD_END, start)
        return len(data) if end < 0 else end + 4

    def _feed(self, piece: bytes) -> None:
        if self._body_left:
            self._body_left -= len(piece)
            self._tail = b""
        else:
            self._head_bytes += len(piece)
            self._tail = (self._tail + piece[-3:])[-3:]
        if self._head_bytes > _HEAD_BYTES_MAX and not self._is_in_body:
            self._refuse(errors.TooLarge(f"the limit of a request's head is {_HEAD_BYTES_MAX} bytes"), 431)
            return
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # An upgrade is not supported. The request is answered as if it had not asked for one.
        except httptools.HttpParserError:
            self._refusal = self._refusal or (errors.Malformed("this is not a valid HTTP request"), 400)
        if self._is_in_body and self._head_bytes > _HEAD_BYTES_MAX and not self._body_left:
            # Chunks have ended, and endless trailers follow, or one chunk has an endless extension.
            self._refusal = self._refusal or (errors.TooLarge("the body has too much besides its content"), 431)
        if self._refusal is not None:
            self._refuse(*self._refusal)

    def _note_held(self) -> None:
        held_bytes = len(self._received) - self._parsed + self._head_bytes
        if (self._is_in_body or self.pipeline) and not self.cycle.response_complete:
            # The application has taken a part of a small body, and waits for the rest. A large one is counted there.
            held_bytes += max(len(self.cycle.body), min(self._body_bytes, SMALL_BYTES))
        if held_bytes != self.held_bytes:
            self._open.hold(self, held_bytes)

    # The parser's events.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        is_pipelined = self._is_ahead or (self.cycle is not None and not self.cycle.response_complete)
        self.scope["extensions"] = {CONNECTION: self, IS_PIPELINED: is_pipelined}  # type: ignore[dict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= _HEADERS_MAX:
            self._refusal = errors.TooLarge(f"the limit of a request is {_HEADERS_MAX} headers"), 431
        elif not self._is_in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._tail = b""
        self._is_in_body = True
        if self._refusal is None and sum(name == b"host" for name, _ in self.headers) > 1:
            self._refusal = errors.Malformed("the request has more than one Host header"), 400
        if self._refusal is not None:
            return
        self._former_cycle = self.cycle
        super().on_headers_complete()
        self._body_left = _content_length(self.headers)
        self._body_bytes = 0
        if not self.pipeline:
            self._open.move(self, Phase.RECEIVING)
        if self._body_left > SMALL_BYTES:
            # The application reads on when it has reserved space for the body.
            self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_bytes += len(body)
        if self._refusal is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._body_left = self._head_bytes = 0
        self._tail = b""
        if self._refusal is not None:
            return
        super().on_message_complete()
        if not self.pipeline and not self.cycle.response_complete:
            self._open.move(self, Phase.ANSWERING)

    # The end of a response, and of the connection.

    def on_response_complete(self) -> None:
        is_next_started = bool(self.pipeline)
        self._former_cycle = None
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not is_next_started:
            self._open.move(self, Phase.IDLE)
            self._open.hold(self, 0)
            if self._is_discarding or (self._is_in_body and not 0 < self._body_left <= SMALL_BYTES):
                # What came behind it was discarded; or it was answered before it was complete: nobody needs the rest.
                self._linger()
                return
        else:
            self._open.move(self, Phase.RECEIVING if self._is_in_body else Phase.ANSWERING)
            self._note_held()
        if self._received:
            self._is_ahead = True
            self.loop.call_soon(self._parse)

    def drop_next(self) -> None:
        self._is_discarding = True
        self._received, self._parsed = b"", 0
        if self.pipeline:
            assert self._former_cycle is not None
            self.pipeline.clear()
            self.cycle = self._former_cycle
        # What arrives now is discarded, and the end of the connection is noticed.
        self.flow.hold(False)
        self.flow.resume_reading()

    def _refuse(self, error: errors.OnceMQError, status: int) -> None:
        """Send an error response, unless another response is being sent, and end the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._is_discarding = True
            self.abort()
            return
        self._send_refusal(error, status)
        self._linger()

    def _send_refusal(self, error: errors.OnceMQError, status: int) -> None:
        answer = answer_of(error, status)
        head = [STATUS_LINE[status], *(b"%s: %s\r\n" % header for header in answer.headers)]
        head.append(b"content-type: %s\r\ncontent-length: %d\r\n" % (answer.media.encode(), len(answer.body)))
        self.transport.write(b"".join((*head, b"connection: close\r\n\r\n", answer.body)))

    def _linger(self) -> None:
        """Close the connection when the client has read the response, or soon."""
        self._is_discarding = True
        self._received, self._parsed = b"", 0
        self._unset_keepalive_if_required()
        self.flow.hold(False)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self._end_lingering)

    def _end_lingering(self) -> None:
        if self.unread_bytes and not self.transport.is_closing():
            # `Connections` ends it if the client does not read the response at all.
            self.loop.call_later(_LINGER_S, self._end_lingering)
        else:
            self.transport.abort()


def _content_length(headers: list[tuple[bytes, bytes]]) -> int:
    """Return the length of the body; 0 if it is sent in chunks, or if there is none."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return 0
