"""What the guard does about memory that no account of a connection explains."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from oncemq.net import kernel
from oncemq.net.counters import Counters
from oncemq.net.guard import Guard
from oncemq.net.listener import Listener
from oncemq.net.policy import ListenerLimits

MIB = 2**20
pytestmark = pytest.mark.skipif(not kernel.IS_MEASURED, reason="memory is measured on Linux only")


class Watched:
    """A guard whose process uses as much memory as the test says, and the peers of its Unix listener."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used = 100 * MIB
        monkeypatch.setattr(kernel, "used_bytes", lambda: self.used)
        self.counters = Counters(logging.getLogger(__name__))
        self._guard = Guard()
        self._listener = Listener("a test", ListenerLimits(connections_max=10, peer_bytes_max=MIB), self.counters)
        self._guard._listeners[object()] = self._listener
        self._now_s = 1000.0
        self._ends: list[socket.socket] = []

    def connect(self) -> socket.socket:
        here, there = socket.socketpair()
        self._ends += (here, there)
        self._guard._accept(self._listener, here.fileno())
        return there

    def check(self, used_mib: int, after_s: float = 2.0) -> None:
        self._now_s += after_s
        self.used = used_mib * MIB
        self._guard._check(self._now_s)

    def close(self) -> None:
        for each in self._ends:
            each.close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    # The tests tell the guard the time.
    monkeypatch.setattr("oncemq.net.guard.time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None))
    made = Watched(monkeypatch)
    yield made
    made.close()


def is_disconnected(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False


def test_unix_peers_are_disconnected_if_memory_is_short_for_no_known_reason(watched: Watched) -> None:
    peers = [watched.connect() for _ in range(3)]
    watched.check(160)
    assert not any(map(is_disconnected, peers))
    watched.check(170)
    assert all(map(is_disconnected, peers))


def test_if_that_helped_the_next_ones_are_disconnected_too(watched: Watched) -> None:
    watched.connect()
    watched.check(170)
    watched.check(100)
    later = watched.connect()
    watched.check(170)
    assert is_disconnected(later)


def test_if_that_did_not_help_the_process_needs_the_memory(watched: Watched) -> None:
    watched.connect()
    watched.check(170)
    later = watched.connect()
    for used_mib in (170, 171, 230):
        watched.check(used_mib)
    assert not is_disconnected(later)
    watched.check(240)
    assert is_disconnected(later)


def test_a_moment_of_less_memory_shows_that_it_helped(watched: Watched) -> None:
    watched.connect()
    watched.check(170)
    watched.check(120, after_s=0.01)
    later = watched.connect()
    watched.check(170)
    assert is_disconnected(later)


def test_memory_that_has_fallen_counts_when_it_grows_again(watched: Watched) -> None:
    watched.check(300)
    watched.check(120, after_s=0.01)
    peer = watched.connect()
    watched.check(190, after_s=0.01)
    assert is_disconnected(peer)


def test_memory_in_use_falls_as_soon_as_it_is_freed() -> None:
    before = kernel.used_bytes()
    block = bytearray(32 * MIB)
    assert kernel.used_bytes() - before >= 32 * MIB
    del block
    assert kernel.used_bytes() - before < 16 * MIB
