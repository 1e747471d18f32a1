"""The limits of a stream listener, in both directions: who exceeds them is disconnected, and nobody else."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from oncemq.net.policy import ListenerLimits
from oncemq.protocol.stream import encode_message
from tests.net.stream_rig import ANY_PORT, LIMITS, MIB, Rig, received, rigged
from tests.stream_peer import OPENING, StreamPeer

#: As many bytes as no socket takes.
FULL = 8 * MIB
_REQUEST = b"".join(encode_message([bytes(3 * MIB)]))


def limited(**limits: int | float) -> ListenerLimits:
    return msgspec.structs.replace(LIMITS, **limits)


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rigged(getattr(request, "param", LIMITS)) as rig:
        yield rig


@pytest.fixture(params=["tcp", "unix"])
def url(rig: Rig, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return rig.listen(ANY_PORT if request.param == "tcp" else f"oncemq+unix://{tmp_path}/broker.sock")


def silent_peer(rig: Rig, url: str, unread_bytes: int = FULL) -> tuple[StreamPeer, bytes]:
    """A peer that reads nothing of what was sent to it, and its name."""
    peer = rig.peer(url, receive_buffer_bytes=4096)
    # Almost everything waits in the process.
    rig.connection().socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    rig.listener.send(rig.name(), [bytes(unread_bytes)])
    assert rig.listener.buffered_bytes
    return peer, rig.name()


class Unfinished:
    """A peer with a request that is not complete."""

    def __init__(self, rig: Rig, url: str, size: int) -> None:
        self._rig = rig
        self.peer = rig.peer(url)
        self.name = rig.name()
        self._connection = rig.connection()
        self._sent = 0
        self.send(size)

    def send(self, size: int) -> None:
        """Send more of it."""
        data = _REQUEST[self._sent : self._sent + size]
        self._sent += size
        for begin in range(0, len(data), 50_000):
            self.peer.socket.sendall(data[begin : begin + 50_000])
            self._rig.serve_all()
        arrived_bytes = min(self._sent, len(_REQUEST)) - 4
        self._rig.serve_until(
            lambda: (
                bool(self._rig.arrived)
                or self._connection.is_ended
                or self._connection.reader.incomplete_bytes in (arrived_bytes, arrived_bytes + 4)
            )
        )


def names(rig: Rig) -> set[bytes]:
    return {*rig.listener._by_peer}


# What peers do not read.


def test_replies_to_a_peer_that_does_not_read_are_dropped_beyond_its_limit(rig: Rig, url: str) -> None:
    peer, name = silent_peer(rig, url)
    assert not rig.listener.is_reading(name)
    assert not rig.listener.is_reading(name)
    assert rig.counters["replies_dropped"] == 2
    # It reads, and is served again.
    assert len(received(peer, rig, 1)[0][0]) == FULL
    assert rig.listener.is_reading(name)
    assert rig.counters["replies_dropped"] == 2


def test_replies_below_the_limit_wait(rig: Rig, url: str) -> None:
    _, name = silent_peer(rig, url, MIB // 2 + 500_000)
    assert rig.listener.is_reading(name)
    assert not rig.counters.counts


@pytest.mark.parametrize("rig", [limited(peer_bytes_max=100 * MIB, peers_bytes_max=20 * MIB)], indirect=True)
def test_if_all_peers_are_over_their_limit_only_those_with_little_are_served(rig: Rig, url: str) -> None:
    small = silent_peer(rig, url, 1_000_000)[1]
    large = [silent_peer(rig, url)[1] for _ in range(3)]
    assert rig.listener.buffered_bytes > 20 * MIB
    assert rig.listener.is_reading(small)
    assert not any(map(rig.listener.is_reading, large))
    assert rig.counters["replies_dropped"] == 3
    reading = rig.peer(url)
    rig.listener.send(rig.name(), [b"reply"])
    assert reading.receive() == [b"reply"]


@pytest.mark.parametrize("rig", [limited(peers_bytes_max=20 * MIB)], indirect=True)
def test_if_all_peers_are_over_their_limit_those_that_were_stalled_longest_are_disconnected(rig: Rig, url: str) -> None:
    first, second = silent_peer(rig, url)[1], silent_peer(rig, url)[1]
    rig.system.at_s += 2.0
    third = silent_peer(rig, url)[1]
    assert names(rig) == {second, third}
    assert rig.counters["peers_cut_unread"] == 1
    assert rig.listener.buffered_bytes <= 20 * MIB
    assert first not in names(rig)


@pytest.mark.parametrize("rig", [limited(peers_bytes_max=20 * MIB)], indirect=True)
def test_a_peer_that_has_read_something_is_not_the_first_one_to_go(rig: Rig, url: str) -> None:
    peer, reading = silent_peer(rig, url)
    silent = silent_peer(rig, url)[1]
    # The kernel still takes some bytes for both.
    while ready := rig.ready(20):
        for descriptor, events in ready:
            rig.serve_one(descriptor, events)
    rig.system.at_s += 2.0
    while next(iter(rig.listener._unread)).peer != silent:
        peer.socket.recv(100_000)
        rig.serve_all()
    third = silent_peer(rig, url)[1]
    assert names(rig) == {reading, third}
    assert silent not in names(rig)


@pytest.mark.parametrize("rig", [limited(peers_bytes_max=20 * MIB)], indirect=True)
def test_peers_that_were_stalled_for_a_moment_are_kept_up_to_twice_the_limit(rig: Rig, url: str) -> None:
    found = [silent_peer(rig, url)[1] for _ in range(4)]
    assert rig.listener.buffered_bytes > 20 * MIB
    assert names(rig) == {*found}
    while rig.listener.buffered_bytes <= 40 * MIB and not rig.counters["peers_cut_unread"]:
        found.append(silent_peer(rig, url)[1])
    assert rig.counters["peers_cut_unread"] >= 1
    assert found[0] not in names(rig)
    assert found[-1] in names(rig)
    assert rig.listener.buffered_bytes <= 40 * MIB


def test_a_peer_that_reads_nothing_in_time_is_disconnected(rig: Rig, url: str) -> None:
    peer, _ = silent_peer(rig, url)
    rig.pass_s(29.0)
    assert len(rig.listener) == 1
    rig.pass_s(2.0)
    assert len(rig.listener) == 0
    assert rig.counters["peers_cut_unread"] == 1
    assert rig.listener.buffered_bytes == 0
    assert peer.wait_until_disconnected()


def test_a_peer_that_reads_slowly_is_served(rig: Rig, url: str) -> None:
    peer, _ = silent_peer(rig, url)
    for _ in range(5):
        before = rig.listener.buffered_bytes
        while rig.listener.buffered_bytes >= before:
            peer.receive_some()
            rig.serve_all()
        rig.pass_s(25.0)
    assert len(received(peer, rig, 1)[0][0]) == FULL
    rig.pass_s(100.0)
    assert len(rig.listener) == 1
    assert not rig.counters.counts


# What peers do not complete.


def test_a_request_that_makes_no_progress_is_cut_off(rig: Rig, url: str) -> None:
    unfinished = Unfinished(rig, url, 100_000)
    rig.pass_s(29.0)
    unfinished.send(1)
    rig.pass_s(29.0)
    assert len(rig.listener) == 1
    rig.pass_s(2.0)
    assert len(rig.listener) == 0
    assert rig.listener.buffered_bytes == 0
    assert rig.counters["peers_cut_unfinished"] == 1


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_a_small_request_that_makes_no_progress_is_cut_off(rig: Rig, url: str, size: int) -> None:
    peer = rig.peer(url)
    peer.socket.sendall(b"".join(encode_message([bytes(2000)]))[:size])
    rig.serve()
    rig.pass_s(31.0)
    assert len(rig.listener) == 0
    assert rig.counters["peers_cut_unfinished"] == 1


def test_a_slow_request_arrives(rig: Rig, url: str) -> None:
    unfinished = Unfinished(rig, url, 100_000)
    while not rig.arrived:
        rig.pass_s(25.0)
        unfinished.send(500_000)
    assert [len(frame) for [frame] in rig.requests()] == [3 * MIB]
    rig.pass_s(1000.0)
    assert len(rig.listener) == 1
    assert not rig.counters.counts


def test_a_connection_without_traffic_is_kept(rig: Rig, url: str) -> None:
    peer = rig.peer(url)
    peer.send([b"request"])
    rig.serve()
    for _ in range(10):
        rig.pass_s(1000.0)
    peer.send([b"request"])
    rig.serve()
    assert rig.requests() == [[b"request"]] * 2


@pytest.mark.parametrize("rig", [limited(peers_bytes_max=4 * MIB)], indirect=True)
def test_if_unfinished_requests_exceed_their_limit_the_one_that_was_stalled_longest_goes(rig: Rig, url: str) -> None:
    first, second = (Unfinished(rig, url, 600_000) for _ in range(2))
    first.send(10_000)
    third = Unfinished(rig, url, MIB)
    # The second one has made no progress for longest.
    assert names(rig) == {first.name, third.name}
    assert second.peer.wait_until_disconnected()
    assert rig.counters["peers_cut_unfinished"] == 1
    assert rig.listener.buffered_bytes <= 4 * MIB
    third.send(2 * MIB + 100)
    assert [len(frame) for [frame] in rig.requests()] == [3 * MIB]


@pytest.mark.parametrize("rig", [limited(connections_max=500, peers_bytes_max=2 * MIB)], indirect=True)
def test_many_claims_of_large_requests_take_no_more_than_the_limit(rig: Rig, url: str) -> None:
    for _ in range(100):
        Unfinished(rig, url, 4)
    assert rig.listener.buffered_bytes <= 2 * MIB
    assert rig.counters["peers_cut_unfinished"] == 100 - 32
    good = rig.peer(url)
    good.send([bytes(10_000)])
    rig.serve_until(lambda: bool(rig.arrived))


# Openings.


@pytest.mark.parametrize("sent", [b"", OPENING[:3], OPENING[:-1]], ids=["nothing", "half", "almost all"])
def test_a_peer_without_an_opening_is_cut_off(rig: Rig, url: str, sent: bytes) -> None:
    peer = rig.peer(url, b"")
    peer.socket.sendall(sent)
    rig.serve(0)
    rig.pass_s(9.0)
    assert len(rig.listener) == 1
    rig.pass_s(2.0)
    assert len(rig.listener) == 0
    assert rig.counters["peers_cut_unfinished"] == 1
    assert rig.listener.buffered_bytes == 0
    assert peer.wait_until_disconnected()


def test_a_slow_opening_gains_no_time(rig: Rig, url: str) -> None:
    peer = rig.peer(url, b"")
    for byte in OPENING[:5]:
        peer.socket.sendall(bytes((byte,)))
        rig.serve()
        rig.pass_s(2.0)
    rig.pass_s(1.0)
    assert len(rig.listener) == 0


def test_only_peers_without_an_opening_are_cut_off(rig: Rig, url: str) -> None:
    late = rig.peer(url, b"")
    rig.peer(url)
    good = rig.name()
    rig.pass_s(5.0)
    rig.peer(url, b"")
    later = rig.name()
    rig.pass_s(6.0)
    assert names(rig) == {good, later}
    assert late.wait_until_disconnected()


# The number of connections.


@pytest.mark.parametrize("rig", [limited(connections_max=2)], indirect=True)
@pytest.mark.parametrize("opening", [OPENING, b""], ids=["with its opening sent", "silent"])
def test_a_connection_beyond_the_limit_is_told_why_it_is_refused(rig: Rig, url: str, opening: bytes) -> None:
    peers = [rig.peer(url) for _ in range(2)]
    refused = StreamPeer(url, opening)
    rig.serve()
    refused.receive_some()
    assert refused.properties == {"error": ["LIMIT_REACHED", "there are too many connections"]}
    assert refused.wait_until_disconnected()
    assert len(rig.listener) == 2
    assert rig.counters["connections_refused"] == 1
    peers[0].close()
    rig.serve_until(lambda: len(rig.listener) == 1)
    late = rig.peer(url)
    late.send([b"request"])
    rig.serve_until(lambda: bool(rig.arrived))


def test_a_connection_that_would_use_the_last_descriptors_is_refused(rig: Rig, url: str) -> None:
    rig.peer(url)
    rig.listener._descriptors_max = rig.connection().descriptor + 1
    refused = StreamPeer(url)
    rig.serve()
    refused.receive_some()
    assert refused.properties is not None
    code, text = refused.properties["error"]
    assert (code, "too many open files" in text) == ("LIMIT_REACHED", True)
    assert rig.counters["connections_refused"] == 1
    assert len(rig.listener) == 1


@pytest.mark.parametrize("rig", [limited(connections_max=1000)], indirect=True)
def test_a_flood_of_connections_is_accepted_in_turns(rig: Rig, url: str) -> None:
    flood = [StreamPeer(url, b"") for _ in range(150)]
    [(listening, events)] = rig.ready()
    rig.serve_one(listening, events)
    assert 0 < len(rig.listener) < 150
    rig.serve_until(lambda: len(rig.listener) == 150)
    for peer in flood:
        peer.close()
    rig.serve_until(lambda: not len(rig.listener))


@pytest.mark.parametrize("leave", [StreamPeer.close, lambda peer: peer.socket.shutdown(socket.SHUT_RDWR)])
def test_a_peer_that_leaves_in_the_middle_of_everything_leaves_nothing(
    rig: Rig, url: str, leave: Callable[[StreamPeer], object]
) -> None:
    peer, _ = silent_peer(rig, url)
    peer.socket.sendall(_REQUEST[:100_000])
    rig.serve_all()
    leave(peer)
    rig.serve_until(lambda: not len(rig.listener))
    assert rig.listener.buffered_bytes == 0
    assert not rig.listener._unread
    assert not rig.listener._incomplete
