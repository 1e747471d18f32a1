"""A bare client for benchmarks that need many commands in one request, or many sessions."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import zmq

from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import Command, Envelope, Hello, Numbered, Operation, Put
from oncemq.protocol.frames import Frame, decode_response, encode_request
from oncemq.protocol.replies import HelloReply, Reply


class RawClient:
    """Sends one request and receives one response. It does not retry: a broker that does not answer is an error."""

    def __init__(self, url: str, session: str = "raw") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, 60_000)
        self._socket.connect(url)
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
        self._socket.close(0)
        self._context.term()

    def call(self, commands: Sequence[Command], payloads: Sequence[Frame] = ()) -> tuple[Reply, ...]:
        self._requests += 1
        self._socket.send_multipart(encode_request(self._requests, commands, payloads))
        return decode_response(self._socket.recv_multipart())[0].replies

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
