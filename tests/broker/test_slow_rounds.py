"""A round may wait long for its disk. Peers that were not served meanwhile are not taken for stalled ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.broker.network import ARRIVALS_MAX
from oncemq.broker.network.listeners import Listeners
from oncemq.config.settings import ServeSettings
from oncemq.net.system import System
from oncemq.protocol.stream import encode_message
from tests.stream_peer import OPENING, StreamPeer

SMALL = b"".join(encode_message([b"request"]))
LARGE = b"".join(encode_message([bytes(1_000_000)]))
#: Longer than `write_timeout_ms`, and than a peer may take for its opening.
LONG_S = 31.0


class ManualClock(System):
    at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


class Rig:
    def __init__(self, folder: Path) -> None:
        self.system = ManualClock()
        self.url = f"oncemq+unix://{folder}/socket"
        self.network = Listeners(ServeSettings(listen=(self.url,)), system=self.system)
        self.peers: list[StreamPeer] = []

    def peer(self, opening: bytes = OPENING) -> StreamPeer:
        """Return a peer that was accepted, and whose opening was read."""
        peer = StreamPeer(self.url, opening)
        self.peers.append(peer)
        for _ in range(2):
            self.network.take(0)
        return peer

    def leave_a_rest(self) -> None:
        """Run a round that takes as much as a round may, so that a peer is left for the next one."""
        for peer in (self.peer(), self.peer()):
            peer.socket.sendall(SMALL * ARRIVALS_MAX)
        assert len(self.network.take(0)) == ARRIVALS_MAX

    def take_rest_after_long(self) -> None:
        self.system.at_s += LONG_S
        assert len(self.network.take(0)) == ARRIVALS_MAX

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
        self.network.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def is_disconnected(peer: StreamPeer) -> bool:
    """Read all that has arrived. Return whether the connection has ended."""
    peer.socket.setblocking(False)
    try:
        while peer.socket.recv(2**20):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_a_request_that_goes_on_during_a_slow_round_is_received(rig: Rig) -> None:
    sender = rig.peer()
    sender.socket.sendall(LARGE[:1_000])
    assert rig.network.take(0) == []
    rig.leave_a_rest()
    sender.socket.sendall(LARGE[1_000:50_000])
    rig.take_rest_after_long()
    rig.network.take(0)
    assert not is_disconnected(sender)


def test_an_opening_that_arrives_during_a_slow_round_is_answered(rig: Rig) -> None:
    newcomer = rig.peer(b"")
    rig.leave_a_rest()
    newcomer.socket.sendall(OPENING)
    rig.take_rest_after_long()
    rig.network.take(0)
    newcomer.receive_some()
    assert newcomer.properties is not None


def test_a_peer_that_reads_during_a_slow_round_gets_the_rest_of_its_reply(rig: Rig) -> None:
    reader = rig.peer()
    reader.send([b"request"])
    [(name, _)] = rig.network.take(0)
    rig.network.send(name, [bytes(2 * 2**20)])
    rig.leave_a_rest()
    assert not is_disconnected(reader)
    rig.take_rest_after_long()
    rig.network.take(0)
    assert not is_disconnected(reader)


def test_a_peer_that_does_nothing_during_slow_rounds_is_disconnected(rig: Rig) -> None:
    sender = rig.peer()
    sender.socket.sendall(LARGE[:1_000])
    assert rig.network.take(0) == []
    rig.leave_a_rest()
    rig.take_rest_after_long()
    rig.network.take(0)
    assert is_disconnected(sender)
