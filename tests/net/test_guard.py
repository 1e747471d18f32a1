"""What the guard does about memory that no account of a connection explains."""

from __future__ import annotations

import logging
import socket
import time
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
        self.used = self.resident = 100 * MIB
        monkeypatch.setattr(kernel, "used_bytes", lambda: self.used)
        monkeypatch.setattr(kernel, "resident_bytes", lambda: self.resident)
        self.guard = Guard()
        counters = Counters(logging.getLogger(__name__))
        self.listener = Listener("a test", ListenerLimits(connections_max=10, peer_bytes_max=MIB), counters)
        self.guard._listeners[object()] = self.listener
        # All connections are older.
        self._now_s = time.monotonic() + 1000
        self._ends: list[socket.socket] = []

    def connect(self) -> socket.socket:
        here, there = socket.socketpair()
        self._ends += (here, there)
        self.guard._accept(self.listener, here.fileno())
        return there

    def check(self, used_mib: int, after_s: float = 2.0, resident_mib: int = 0) -> None:
        """Use this much memory, all of it resident if nothing else is said."""
        self._now_s += after_s
        self.used = used_mib * MIB
        self.resident = (resident_mib or used_mib) * MIB
        self.guard._check(self._now_s)

    def close(self) -> None:
        for each in self._ends:
            each.close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    # The tests tell the guard the time.
    monkeypatch.setattr(
        "oncemq.net.guard.time", SimpleNamespace(monotonic=lambda: 0.0, thread_time=lambda: 0.0, sleep=lambda _: None)
    )
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


def test_memory_that_is_allocated_and_not_used_does_not_count(watched: Watched) -> None:
    peer = watched.connect()
    watched.check(300, resident_mib=110)
    assert not is_disconnected(peer)


def test_messages_that_wait_in_the_process_explain_memory(watched: Watched) -> None:
    peer = watched.connect()
    watched.listener.held_bytes = lambda: 90 * MIB
    watched.check(200)
    assert not is_disconnected(peer)
    watched.check(260)
    assert is_disconnected(peer)


def test_memory_that_a_recovery_takes_is_no_concern_of_peers(watched: Watched) -> None:
    peer = watched.connect()
    with watched.guard.own_growth():
        watched.check(500)
    watched.check(560)
    assert not is_disconnected(peer)
    watched.check(570)
    assert is_disconnected(peer)


def test_memory_in_use_falls_as_soon_as_it_is_freed() -> None:
    before = kernel.used_bytes()
    block = bytearray(32 * MIB)
    assert kernel.used_bytes() - before >= 32 * MIB
    del block
    assert kernel.used_bytes() - before < 16 * MIB
