"""A stream listener on real sockets of this machine. The test serves it, and sets its clock."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from oncemq.net.counters import Counters
from oncemq.net.gate import Gate
from oncemq.net.lookup import Name
from oncemq.net.policy import ListenerLimits
from oncemq.net.stream.connection import StreamConnection
from oncemq.net.stream.listener import StreamListener
from oncemq.net.system import System
from oncemq.protocol.frames import Frame
from tests.stream_peer import OPENING, StreamPeer

DEADLINE_S = 30.0
MIB = 2**20
ANY_PORT = "oncemq://127.0.0.1:*"
LIMITS = ListenerLimits(connections_max=50, peer_bytes_max=MIB, peers_bytes_max=64 * MIB, write_timeout_s=30.0)


class ManualClock(System):
    """The real system, with a clock that stands still."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


class Rig:
    def __init__(
        self,
        limits: ListenerLimits = LIMITS,
        message_bytes_max: int = 32 * MIB,
        system: ManualClock | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.system = system or ManualClock()
        self.poller = self.system.poller()
        self.counters = Counters(logging.getLogger("oncemq.test"), log_every_s=0.0)
        self.listener = StreamListener(
            self.poller, "the test", limits, message_bytes_max, self.counters, self.system, gate
        )
        #: Requests with their peers, in the order of their arrival.
        self.arrived: list[tuple[bytes, list[Frame]]] = []
        self._peers: list[StreamPeer] = []

    def listen(self, address: str = ANY_PORT, mode: str = "0600") -> str:
        return self.listener.listen(address, mode)

    def peer(self, url: str, opening: bytes = OPENING, *, receive_buffer_bytes: int = 0) -> StreamPeer:
        """Return a peer that the listener has accepted, and whose opening was read."""
        known = {*self.listener._by_peer}
        peer = StreamPeer(url, opening, receive_buffer_bytes=receive_buffer_bytes)
        self._peers.append(peer)
        self.serve_until(lambda: bool({*self.listener._by_peer} - known))
        if opening:
            self.serve()
        return peer

    def name(self) -> bytes:
        """Return the listener's name of the peer that was accepted last."""
        return next(reversed(self.listener._by_peer))

    def connection(self) -> StreamConnection:
        """Return the connection that was accepted last."""
        return next(reversed(self.listener._by_peer.values()))

    def ready(self, timeout_ms: int = 1000) -> list[tuple[int, int]]:
        return self.poller.wait(timeout_ms)

    def serve(self, timeout_ms: int = 1000) -> None:
        """Serve everything that is ready, once."""
        self._serve(self.ready(timeout_ms))

    def _serve(self, ready: list[tuple[int, int]]) -> None:
        waiting = [each for each in self.listener.waiting if each not in ready]
        self.listener.check(ready)
        for descriptor, events in (*ready, *waiting):
            self.serve_one(descriptor, events)

    def serve_one(self, descriptor: int, events: int) -> bool:
        """Serve a descriptor. Return whether more of a large request may wait there."""
        return bool(self.listener.serve(descriptor, events, lambda peer, frames: self.arrived.append((peer, frames))))

    def serve_until(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < until_s, "this did not happen in time"
            self.serve(10)

    def serve_all(self) -> None:
        """Serve until nothing is ready. What was sent over TCP may need a moment before it is."""
        while (ready := self.ready(0)) or self.listener.waiting:
            self._serve(ready)

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and disconnect peers that are stalled."""
        self.system.at_s += seconds
        self.listener.check()

    def requests(self) -> list[list[bytes]]:
        """Return the requests that have arrived since the last call."""
        found = [[bytes(frame) for frame in frames] for _, frames in self.arrived]
        self.arrived.clear()
        return found

    def close(self) -> None:
        self.listener.close()
        self.poller.close()
        for peer in self._peers:
            peer.close()


@contextmanager
def rigged(
    limits: ListenerLimits = LIMITS,
    message_bytes_max: int = 32 * MIB,
    system: ManualClock | None = None,
    gate: Gate | None = None,
) -> Iterator[Rig]:
    rig = Rig(limits, message_bytes_max, system, gate)
    try:
        yield rig
    finally:
        rig.close()


class Names(ManualClock):
    """A system on which every name leads to these addresses."""

    def __init__(self, *hosts: str) -> None:
        super().__init__()
        self._hosts = hosts
        self.asked: list[str] = []

    def names(self, host: str, port: int, flags: int = 0) -> list[Name]:
        self.asked.append(host)
        return [name_of(each, port) for each in self._hosts]


def name_of(host: str, port: int) -> Name:
    return (socket.AF_INET6, (host, port, 0, 0)) if ":" in host else (socket.AF_INET, (host, port))


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


def received(peer: StreamPeer, rig: Rig, count: int) -> list[Sequence[Frame]]:
    """Receive this many messages, while the listener is served."""
    messages: list[Sequence[Frame]] = []
    until_s = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < until_s, "a message is missing"
        rig.serve_all()
        if peer.has_message(0):
            messages.append(peer.receive())
    return messages
