"""The listeners of a broker share its rounds: nobody gets all of them, and nobody makes a round endless."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from oncemq.broker.network import ARRIVALS_MAX, Arrival, listeners
from oncemq.broker.network.listeners import Listeners
from oncemq.config.settings import ServeSettings
from oncemq.net.poller import Poller
from oncemq.net.stream.listener import PEER_PREFIX
from oncemq.net.system import System
from oncemq.protocol.errors import ListenFailed
from oncemq.protocol.stream import encode_message
from tests.stream_peer import StreamPeer

DEADLINE_S = 30.0
MIB = 2**20
SMALL = b"".join(encode_message([b"request"]))
LARGE = b"".join(encode_message([bytes(2 * MIB)]))


class Rig:
    """Listeners at a Unix socket of each transport. What a peer of a Unix socket has sent can be received at once."""

    def __init__(self, folder: Path, system: System | None = None) -> None:
        self.urls = (f"oncemq+unix://{folder}/stream", f"ipc://{folder}/zeromq")
        self.network = Listeners(ServeSettings(listen=self.urls), system=system)
        self.arrived: list[Arrival] = []
        self._peers: list[StreamPeer] = []
        self._dealers: list[Any] = []

    def peer(self) -> StreamPeer:
        """A peer of the stream listener that waits for nothing."""
        peer = StreamPeer(self.urls[0])
        self._peers.append(peer)
        self.take_until(lambda: has_opening(peer))
        return peer

    def dealer(self) -> Any:
        dealer: Any = zmq.Context.instance().socket(zmq.DEALER)
        self._dealers.append(dealer)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDHWM, 0)
        dealer.connect(self.urls[1])
        dealer.send(b"first request")
        self.take_until(lambda: bool(self.arrived))
        self.arrived.clear()
        return dealer

    def take_until(self, condition: Callable[[], bool]) -> int:
        """Run rounds. Return their number. What arrives is added to `arrived`."""
        until_s = time.monotonic() + DEADLINE_S
        count = 0
        while not condition():
            assert time.monotonic() < until_s, "this did not happen in time"
            count += 1
            self.arrived += self.network.take(10)
        return count

    def take_until_arrived(self, frames: list[bytes], number: int = 1) -> int:
        """Run rounds until this request has arrived this often. Return their number."""
        return self.take_until(lambda: sum(found == frames for _, found in self.arrived) == number)

    def close(self) -> None:
        for each in (*self._peers, *self._dealers):
            each.close()
        self.network.close()


def has_opening(peer: StreamPeer) -> bool:
    if not peer.has_message(0):
        return peer.properties is not None
    return True


@contextmanager
def rigged(folder: Path, system: System | None = None) -> Iterator[Rig]:
    rig = Rig(folder, system)
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rigged(tmp_path) as rig:
        yield rig


def counted(arrivals: list[Arrival]) -> Counter[bytes]:
    """Return how many requests each peer has sent."""
    return Counter(peer for peer, _ in arrivals)


# Rounds.


def test_a_round_without_requests_ends(rig: Rig) -> None:
    assert rig.network.take(0) == []
    rig.peer()
    assert rig.network.take(0) == []


def test_what_exceeds_the_requests_of_a_round_comes_first_in_the_next_one(rig: Rig) -> None:
    peers = [rig.peer() for _ in range(5)]
    late = rig.peer()
    for peer in peers:
        peer.socket.sendall(400 * SMALL)
    first = counted(rig.network.take(0))
    assert [*first.values()] == [400] * 3
    assert 2 * 400 < ARRIVALS_MAX <= 3 * 400
    late.send([b"late"])
    second = counted(rig.network.take(0))
    assert [*second.values()] == [400] * 2
    assert len(first | second) == 5
    assert [*counted(rig.network.take(0)).values()] == [1]


def test_what_exceeds_the_bytes_of_a_round_comes_first_in_the_next_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "ARRIVAL_BYTES_MAX", 100_000)
    for peer in [rig.peer() for _ in range(5)]:
        peer.send([bytes(40_000)])
    first, second = (counted(rig.network.take(0)) for _ in range(2))
    assert [*first.values()] == [1] * 3
    assert [*second.values()] == [1] * 2
    assert len(first | second) == 5
    assert rig.network.take(0) == []


def test_a_peer_that_left_while_its_request_waited_for_the_next_round_harms_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "ARRIVAL_BYTES_MAX", 1000)
    peers = [rig.peer() for _ in range(3)]
    for peer in peers:
        peer.send([bytes(2000)])
    assert len(rig.network.take(0)) == 1
    for peer in peers:
        peer.close()
    successor = rig.peer()
    successor.send([b"request"])
    rig.take_until_arrived([b"request"])


def test_a_peer_that_always_has_requests_leaves_others_their_turn(rig: Rig) -> None:
    busy = [rig.peer() for _ in range(4)]
    modest = rig.peer()
    for peer in busy:
        peer.socket.sendall(1500 * SMALL)
    modest.send([b"modest"])
    assert rig.take_until_arrived([b"modest"]) <= 5


def test_a_peer_with_thousands_of_tiny_requests_gets_no_more_than_its_share_of_a_round(rig: Rig) -> None:
    busy, modest = rig.peer(), rig.peer()
    sent = [[b"%d" % number] for number in range(4000)]
    busy.socket.sendall(b"".join(b"".join(encode_message([*frames])) for frames in sent))
    found = rig.network.take(0)
    assert len(found) == ARRIVALS_MAX
    modest.send([b"modest"])
    second = rig.network.take(1000 * int(DEADLINE_S))
    assert len(second) == ARRIVALS_MAX + 1
    assert second[0][1] == [b"modest"]
    found += second
    while len(found) < len(sent) + 1:
        found += rig.network.take(1000 * int(DEADLINE_S))
    assert [frames for _, frames in found if frames != [b"modest"]] == sent
    assert rig.network.take(0) == []


def test_the_requests_of_a_peer_that_has_left_are_served(rig: Rig) -> None:
    with rig.peer() as peer:
        peer.socket.sendall(4000 * SMALL)
    rig.take_until(lambda: len(rig.arrived) == 4000)
    rig.take_until(lambda: not len(rig.network._stream))
    assert rig.network.take(0) == []


@pytest.mark.parametrize("count", [1, 5000])
def test_requests_over_zeromq_leave_those_of_the_stream_transport_their_turn(rig: Rig, count: int) -> None:
    dealer, peer = rig.dealer(), rig.peer()
    for _ in range(count):
        dealer.send(b"request")
    peer.send([b"mine"])
    assert rig.take_until_arrived([b"mine"]) <= 2
    rig.take_until_arrived([b"request"], count)


def test_requests_of_the_stream_transport_leave_those_over_zeromq_their_turn(rig: Rig) -> None:
    dealer, peers = rig.dealer(), [rig.peer() for _ in range(8)]
    dealer.send(b"over ZeroMQ")
    until_s = time.monotonic() + DEADLINE_S
    found: list[Arrival] = []
    rounds = 0
    while not any(frames == [b"over ZeroMQ"] for _, frames in found):
        assert time.monotonic() < until_s, "it has no turn"
        for peer in peers:
            if peer.socket.send(400 * SMALL):
                found += rig.network.take(0)
        # ZeroMQ's own thread may need some time to deliver it.
        assert rig.network._zmq is not None
        rounds += bool(rig.network._zmq.is_readable)
    assert rounds <= 1


# Large requests.


class Feeding(System):
    """A system whose poller calls a function before each look, as if a peer sent between two of them."""

    def __init__(self) -> None:
        self.before_look: Callable[[], object] = lambda: None
        self.looks = 0

    def poller(self) -> Poller:
        return _FeedingPoller(self)


class _FeedingPoller(Poller):
    def __init__(self, system: Feeding) -> None:
        super().__init__()
        self._system = system

    def wait(self, timeout_ms: float) -> list[tuple[int, int]]:
        self._system.looks += 1
        self._system.before_look()
        return super().wait(timeout_ms)


def sending(peer: StreamPeer, data: bytes, part_bytes: int) -> Callable[[], None]:
    """Return a function that sends the next part."""
    position = 0

    def send() -> None:
        nonlocal position
        peer.socket.sendall(data[position : position + part_bytes])
        position += part_bytes

    return send


def test_a_large_request_that_is_alone_is_received_in_one_round(tmp_path: Path) -> None:
    system = Feeding()
    with rigged(tmp_path, system) as rig:
        system.before_look = sending(rig.peer(), LARGE, 40_000)
        [(_, [frame])] = rig.network.take(0)
        assert len(frame) == 2 * MIB


def test_large_requests_of_a_peer_that_is_alone_share_a_round(tmp_path: Path) -> None:
    system = Feeding()
    with rigged(tmp_path, system) as rig:
        system.before_look = sending(rig.peer(), 2 * b"".join(encode_message([bytes(MIB)])), 50_000)
        assert [len(frame) for _, [frame] in rig.network.take(0)] == [MIB, MIB]


def test_a_large_request_in_tiny_parts_does_not_make_a_round_endless(tmp_path: Path) -> None:
    system = Feeding()
    with rigged(tmp_path, system) as rig:
        system.before_look = sending(rig.peer(), LARGE, 10)
        system.looks = 0
        # Deadlines, delayed messages and signals wait for the end of a round.
        assert rig.network.take(0) == []
        assert system.looks < 200


def test_a_request_does_not_wait_for_the_large_one_of_another_peer(tmp_path: Path) -> None:
    system = Feeding()
    with rigged(tmp_path, system) as rig:
        other, feed = rig.peer(), sending(rig.peer(), LARGE, 1000)

        def before_look() -> None:
            feed()
            if system.looks == 3:
                other.send([b"small"])

        system.before_look, system.looks = before_look, 0
        assert [frames for _, frames in rig.network.take(0)] == [[b"small"]]
        assert system.looks == 3


# Peers of both transports.


def test_replies_reach_the_peers_of_both_transports(rig: Rig) -> None:
    peer, dealer = rig.peer(), rig.dealer()
    peer.send([b"stream"])
    dealer.send(b"zeromq")
    rig.take_until(lambda: len(rig.arrived) == 2)
    for name, frames in rig.arrived:
        assert name.startswith(PEER_PREFIX) == (frames == [b"stream"])
        assert rig.network.is_reading(name)
        rig.network.send(name, [b"reply to", *frames])
    assert peer.receive() == [b"reply to", b"stream"]
    assert dealer.recv_multipart() == [b"reply to", b"zeromq"]


def test_a_peer_over_zeromq_can_not_take_the_name_of_another_transport(rig: Rig) -> None:
    rig.peer().send([b"stream"])
    [(name, _)] = rig.network.take(0)
    dealer: Any = zmq.Context.instance().socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.ROUTING_ID, name)
    dealer.connect(rig.urls[1])
    dealer.send(b"zeromq")
    rig.take_until_arrived([b"zeromq"])
    assert rig.arrived[0][0] != name
    dealer.close()


def test_without_zeromq_its_peers_are_gone(tmp_path: Path) -> None:
    network = Listeners(ServeSettings(listen=(f"oncemq+unix://{tmp_path}/stream",)))
    try:
        assert not network.is_reading(b"zpeer")
        network.send(b"zpeer", [b"reply"])
        network.set_held_bytes(lambda: 0)
        with network.own_growth():
            pass
    finally:
        network.close()


def test_addresses_are_named_as_they_are_bound(tmp_path: Path) -> None:
    unix = f"oncemq+unix://{tmp_path}/stream"
    network = Listeners(ServeSettings(listen=("oncemq://127.0.0.1:*", unix, "tcp://127.0.0.1:*")))
    stream, path, zeromq = network.addresses
    network.close()
    assert path == unix
    assert int(stream.removeprefix("oncemq://127.0.0.1:")) > 0
    assert int(zeromq.removeprefix("tcp://127.0.0.1:")) > 0


def test_if_one_address_can_not_be_bound_none_is(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ListenFailed):
        Listeners(ServeSettings(listen=(f"oncemq+unix://{path}", f"oncemq+unix://{tmp_path}/missing/stream")))
    assert not path.exists()
    assert len(os.listdir("/proc/self/fd")) == before
