"""Attackers of the native protocol that send valid requests which are much work for the broker.

Each function runs until `stopping` returns True.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence

import zmq

from oncemq.config.addresses import is_stream
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import (
    Ack,
    Command,
    CreateTopic,
    Envelope,
    Hello,
    Keyed,
    Numbered,
    Operation,
    Put,
    RegistrySet,
    Subscribe,
    Topics,
    Unsubscribe,
)
from oncemq.protocol.frames import Frame, decode_response, encode_request
from oncemq.protocol.replies import HelloReply, Reply, expect
from oncemq.protocol.stream import encode_message
from tests.stream_peer import StreamPeer

Stopping = Callable[[], bool]

_WAIT_MS = 100


class NativePeer:
    """A client without retries: it sends requests, and receives responses in any order."""

    def __init__(self, address: str) -> None:
        self._link = _StreamLink(address) if is_stream(address) else _ZmqLink(address)
        self._requests = 0
        self._epoch = 0
        self._number = 0

    def send(self, commands: Sequence[Command], payloads: Sequence[Frame] = ()) -> int:
        """Send a request. Return its id."""
        self._requests += 1
        self._link.send(encode_request(self._requests, commands, payloads))
        return self._requests

    def receive(self, stopping: Stopping) -> tuple[Reply, ...]:
        """Return the replies of the next response; empty if it is time to stop."""
        while not stopping():
            if self._link.has_message(_WAIT_MS):
                return decode_response(self._link.receive())[0].replies
        return ()

    def answered_count(self) -> int:
        """Receive the responses that have arrived. Return their number."""
        count = 0
        while self._link.has_message(0):
            self._link.receive()
            count += 1
        return count

    def ask(self, commands: Sequence[Command], stopping: Stopping, payloads: Sequence[Frame] = ()) -> tuple[Reply, ...]:
        self.send(commands, payloads)
        return self.receive(stopping)

    def numbered(self, operations: Sequence[Operation]) -> list[Command]:
        """Return the operations under the next numbers of this peer's session."""
        if not self._epoch:
            hello = self.ask([Hello("hostile", 0, 1, 1024)], lambda: False)[0]
            reply = expect(hello, HelloReply)
            self._epoch, self._number = reply.epoch, reply.last_number
        first = self._number + 1
        self._number += len(operations)
        return [
            Numbered("hostile", self._epoch, first + index, first + index, operation)
            for index, operation in enumerate(operations)
        ]

    def close(self) -> None:
        self._link.close()


class _ZmqLink:
    """A connection over ZeroMQ."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)

    def send(self, frames: Sequence[Frame]) -> None:
        self._socket.send_multipart(frames)

    def has_message(self, timeout_ms: int) -> bool:
        return bool(self._socket.poll(timeout_ms))

    def receive(self) -> list[bytes]:
        return self._socket.recv_multipart()

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


class _StreamLink(StreamPeer):
    """A connection of the stream transport. Its queue has no limit: a request that does not fit waits until the next
    call."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._waiting = bytearray()

    def send(self, frames: Sequence[Frame]) -> None:
        self._waiting += b"".join(encode_message(frames))
        self._send_some()

    def has_message(self, timeout_ms: int) -> bool:
        self._send_some()
        return super().has_message(timeout_ms)

    def _send_some(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._waiting:
                del self._waiting[: self.socket.send(self._waiting, socket.MSG_DONTWAIT)]


def create_topics(address: str, count: int) -> None:
    """Create topics, as the target of the attacks."""
    peer = NativePeer(address)
    for first in range(0, count, 500):
        names = [f"region{number % 10}.shop{number}.orders" for number in range(first, min(first + 500, count))]
        peer.ask(peer.numbered([CreateTopic(name) for name in names]), lambda: False)
    peer.close()


def list_topics(address: str, stopping: Stopping) -> None:
    """Requests with a thousand lists each."""
    peer = NativePeer(address)
    while not stopping():
        peer.ask([Topics()] * 1_000, stopping)
    peer.close()


def pipeline_lists(address: str, stopping: Stopping) -> None:
    """Many requests with lists in flight at the same time."""
    peer = NativePeer(address)
    for _ in range(50):
        peer.send([Topics()] * 100)
    while not stopping():
        if peer.receive(stopping):
            peer.send([Topics()] * 100)
    peer.close()


def subscribe_to_all(address: str, stopping: Stopping) -> None:
    """Subscriptions to all topics, 50 per request."""
    peer = NativePeer(address)
    names = [f"s{number}" for number in range(50)]
    while not stopping():
        peer.ask(peer.numbered([Subscribe("#", name) for name in names]), stopping)
        peer.ask(peer.numbered([Unsubscribe("#", name) for name in names]), stopping)
    peer.close()


def send_small_commands(address: str, stopping: Stopping) -> None:
    """Requests with ten thousand commands each."""
    peer = NativePeer(address)
    while not stopping():
        peer.ask([Ack(1, "nobody", 1, 1)] * 10_000, stopping)
    peer.close()


def use_up_keys(address: str, stopping: Stopping) -> None:
    """A new idempotency key with each put."""
    peer = NativePeer(address)
    payload = encode_batch([b"x"])
    put = Put("region0.shop0.orders", Envelope(1, len(payload), checksum(payload)))
    number = 0
    while not stopping():
        commands: list[Command] = [Keyed("hostile", f"key {number + index}", put) for index in range(500)]
        number += 500
        peer.ask(commands, stopping, [payload] * 500)
    peer.close()


def use_up_the_registry(address: str, stopping: Stopping) -> None:
    """A new registry entry with each command."""
    peer = NativePeer(address)
    number = 0
    while not stopping():
        operations = [RegistrySet("hostile", f"key {number + index}", b"x") for index in range(500)]
        number += 500
        peer.ask(peer.numbered(operations), stopping)
    peer.close()


#: Name → attack.
ATTACKS: dict[str, Callable[[str, Stopping], None]] = {
    "lists": list_topics,
    "pipelined lists": pipeline_lists,
    "subscriptions to all topics": subscribe_to_all,
    "small commands": send_small_commands,
    "idempotency keys": use_up_keys,
    "registry entries": use_up_the_registry,
}


def run_endlessly(name: str, address: str) -> None:
    """Run an attack until the process is ended."""
    ATTACKS[name](address, lambda: False)
