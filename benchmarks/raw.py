"""A bare client for benchmarks that need many commands in one request, or many sessions."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType

from oncemq.config.addresses import stream_place
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import Command, Envelope, Hello, Numbered, Operation, Put
from oncemq.protocol.frames import Frame, decode_response, encode_request
from oncemq.protocol.replies import HelloReply, Reply
from oncemq.protocol.stream import RECEIVE_BYTES, StreamReader, encode_message, encode_opening

_MESSAGE_BYTES_MAX = 256 * 1024 * 1024
_FRAMES_MAX = 10_000


class RawClient:
    """Sends one request and receives one response. It does not retry: a broker that does not answer is an error."""

    def __init__(self, url: str, session: str = "raw") -> None:
        place = stream_place(url)
        self._socket = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
        self._socket.settimeout(60.0)
        self._socket.connect(place)
        self._socket.sendall(encode_opening({}))
        self._reader = StreamReader(_MESSAGE_BYTES_MAX, _FRAMES_MAX, as_bytes=True)
        self._requests = 0
        self._session = session
        hello = self.call([Hello(session, 0, 1, 1024)])[0]
        assert isinstance(hello, HelloReply), hello
        self._epoch = hello.epoch
        self._number = hello.last_number

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def call(self, commands: Sequence[Command], payloads: Sequence[Frame] = ()) -> tuple[Reply, ...]:
        self._requests += 1
        for part in encode_message(encode_request(self._requests, commands, payloads)):
            self._socket.sendall(part)
        return decode_response(self._receive())[0].replies

    def _receive(self) -> list[Frame]:
        while (frames := self._reader.next()) is None:
            if self._reader.target is not None:
                self._reader.filled(self._socket.recv_into(self._reader.target))
            elif data := self._socket.recv(RECEIVE_BYTES):
                self._reader.feed(data)
            else:
                raise ConnectionError("the broker has closed the connection")
        return frames

    def do(self, operations: Sequence[Operation], payloads: Sequence[Frame] = ()) -> tuple[Reply, ...]:
        """Send numbered commands in one request; at most a window of them."""
        first = self._number + 1
        self._number += len(operations)
        return self.call(
            [
                Numbered(self._session, self._epoch, first + index, first, operation)
                for index, operation in enumerate(operations)
            ],
            payloads,
        )


def put_of(topic: str, count: int, size: int) -> tuple[Put, bytes]:
    payload = encode_batch([b"v" * size] * count)
    return Put(topic, Envelope(count, len(payload), checksum(payload))), payload
