"""Who is disconnected, and who is not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from oncemq.net import policy
from oncemq.net.connection import Connection
from oncemq.net.policy import ListenerLimits, Memory

MIB = 2**20
LIMITS = ListenerLimits(connections_max=10, peer_bytes_max=10 * MIB, peers_bytes_max=25 * MIB, write_timeout_s=5.0)
NOW_S = 100.0


class Peers:
    def __init__(self) -> None:
        self._pairs: list[socket.socket] = []

    def add(
        self,
        *,
        unprocessed: int = 0,
        unread: int = 0,
        stalled_s: float = 0.0,
        silent_s: float = 0.0,
        is_unix: bool = False,
    ) -> Connection:
        ends = socket.socketpair()
        self._pairs += ends
        made = Connection(ends[0].fileno(), NOW_S)
        made.is_unix = is_unix
        made.unprocessed, made.sent = unprocessed, unread
        made.stalled_since_s, made.progress_s = NOW_S - stalled_s, NOW_S - silent_s
        return made

    def close(self) -> None:
        for each in self._pairs:
            each.close()


@pytest.fixture
def peers() -> Iterator[Peers]:
    made = Peers()
    yield made
    made.close()


def ended(cuts: list[policy.Cut]) -> list[Connection]:
    return [cut.connection for cut in cuts]


def memory(growth_mib: int, unexplained_mib: int) -> Memory:
    return Memory(growth_mib * MIB, unexplained_mib * MIB, growth_mib * MIB, policy.UNEXPLAINED_BYTES_MAX)


def test_a_peer_with_too_many_unprocessed_bytes_is_ended(peers: Peers) -> None:
    bad, good = peers.add(unprocessed=11 * MIB), peers.add(unprocessed=9 * MIB, stalled_s=60)
    assert ended(policy.over_limit([bad, good], LIMITS, NOW_S)) == [bad]


def test_a_peer_that_reads_nothing_for_too_long_is_ended(peers: Peers) -> None:
    bad, slow = peers.add(unread=1, silent_s=6), peers.add(unread=9 * MIB, silent_s=4)
    assert ended(policy.over_limit([bad, slow], LIMITS, NOW_S)) == [bad]


def test_over_the_limit_of_all_peers_those_go_first_that_are_stalled_longest(peers: Peers) -> None:
    busy = [peers.add(unprocessed=9 * MIB) for _ in range(2)]
    stalled = peers.add(unprocessed=7 * MIB, stalled_s=3)
    assert ended(policy.over_total([*busy, stalled], LIMITS, NOW_S)) == []
    busy[0].unprocessed += MIB
    assert ended(policy.over_total([*busy, stalled], LIMITS, NOW_S)) == [stalled]


def test_over_the_limit_of_unread_replies_only_those_go_that_do_not_read(peers: Peers) -> None:
    reading = [peers.add(unread=10 * MIB) for _ in range(2)]
    silent = peers.add(unread=6 * MIB, silent_s=2)
    assert ended(policy.over_total([*reading, silent], LIMITS, NOW_S)) == [silent]
    assert ended(policy.over_total([*reading, *reading], LIMITS, NOW_S)) == []


def test_if_memory_is_short_peers_with_short_frames_go_before_slow_ones(peers: Peers) -> None:
    tiny, slow, fast = (
        peers.add(unprocessed=4 * MIB),
        peers.add(unprocessed=MIB, stalled_s=9),
        peers.add(unprocessed=MIB),
    )
    received = {tiny: b"\1\1x" * 100, slow: b"x" * 300, fast: b"x" * 300}
    cuts = policy.under_pressure([slow, tiny, fast], memory(100, 95), received.__getitem__, NOW_S)
    assert ended(cuts) == [tiny]
    cuts = policy.under_pressure([slow, tiny, fast], memory(130, 125), received.__getitem__, NOW_S)
    assert ended(cuts) == [tiny, slow]
    cuts = policy.under_pressure([slow, tiny, fast], memory(30, 25), received.__getitem__, NOW_S)
    assert ended(cuts) == [tiny]
    cuts = policy.under_pressure([slow, fast], memory(30, 25), received.__getitem__, NOW_S)
    assert ended(cuts) == []


def test_a_large_request_over_a_slow_link_is_no_suspect(peers: Peers) -> None:
    slow = peers.add(unprocessed=5 * MIB, stalled_s=9)
    slow.stalled_at_bytes = 72 * MIB
    assert not policy.under_pressure([slow], memory(80, 75), lambda _: b"x" * 300, NOW_S)
    assert ended(policy.under_pressure([slow], memory(90, 85), lambda _: b"x" * 300, NOW_S)) == [slow]


def test_memory_that_no_peer_can_explain_ends_nobody(peers: Peers) -> None:
    good = peers.add(unprocessed=MIB)
    assert not policy.can_explain([good], 64 * MIB)
    assert policy.can_explain([good], 20 * MIB)
    assert not policy.under_pressure([good], memory(64, 63), lambda _: b"x" * 300, NOW_S)


def test_memory_that_nothing_explains_ends_only_connections_whose_bytes_nobody_counts(peers: Peers) -> None:
    counted, uncounted, active = (
        peers.add(unprocessed=MIB, stalled_s=0.1),
        peers.add(stalled_s=0.1, is_unix=True),
        peers.add(stalled_s=0.01, is_unix=True),
    )
    everyone = [counted, uncounted, active]
    assert not policy.under_pressure(everyone, memory(130, 129), lambda _: b"x" * 300, NOW_S)
    assert not policy.can_explain(everyone, 64 * MIB)
    assert ended(policy.uncounted(everyone, NOW_S)) == [uncounted]


def test_unix_sockets_that_send_complete_messages_may_have_some_in_flight(peers: Peers) -> None:
    active, idle, silent = (peers.add(stalled_s=stalled_s, is_unix=True) for stalled_s in (0.1, 2, 0.1))
    active.delivered = idle.delivered = 1
    assert policy.unexplained_bytes_max([active, idle, silent], NOW_S) == (64 + 24) * MIB
    assert policy.unexplained_bytes_max([active] * 100, NOW_S) == (64 + 192) * MIB


def test_a_unix_socket_whose_bytes_were_seen_explains_any_memory(peers: Peers) -> None:
    seen = peers.add(unprocessed=1, stalled_s=0.1, is_unix=True)
    assert policy.can_explain([seen], 500 * MIB)
    assert ended(policy.under_pressure([seen], memory(90, 89), lambda _: b"x" * 300, NOW_S)) == [seen]


def test_the_shorter_memory_is_the_sooner_a_unix_socket_is_ended(peers: Peers) -> None:
    seen = peers.add(unprocessed=1, stalled_s=0.05, is_unix=True)
    assert not policy.under_pressure([seen], memory(90, 89), lambda _: b"x" * 300, NOW_S)
    assert ended(policy.under_pressure([seen], memory(98, 97), lambda _: b"x" * 300, NOW_S)) == [seen]


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (b"\1\0" * 100, True),
        (b"x\1\1x\1\1" + b"x\1\1" * 100, True),
        (b"\0\1x" * 100, False),
        (b"", False),
        (bytes(4096), False),
        (b'{"price": 12.5, "size": "large"}' * 100, False),
    ],
)
def test_a_series_of_short_frames_is_recognized(received: bytes, expected: bool) -> None:
    assert policy.are_short_frames(received) is expected
