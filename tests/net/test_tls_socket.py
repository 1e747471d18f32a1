"""Bytes that are sent through a TLS socket arrive whole, however little the system takes and delivers at a time."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from oncemq.net.tls import client_context, server_context
from oncemq.net.tls_socket import NotTls, TlsSocket
from tests.secure_broker import make_keys

MIB = 2**20


class Choppy:
    """One end of a connection that takes and delivers random parts, and often nothing."""

    family = socket.AF_INET

    def __init__(self, draw: random.Random, *, is_blocked: bool = False) -> None:
        self._draw = draw
        self.arrived = bytearray()
        self.other: Choppy | None = None
        self.is_blocked = is_blocked
        self.is_closed = False

    def _some(self, size: int) -> int:
        if self.is_blocked or self._draw.random() < 0.3:
            raise BlockingIOError
        return self._draw.choice((1, 5, 1000, 20_000, size))

    def send(self, data: memoryview) -> int:
        part = data[: self._some(len(data))]
        assert self.other is not None
        self.other.arrived += part
        return len(part)

    def recv(self, size: int) -> bytes:
        if not self.arrived:
            assert self.other is not None
            if self.other.is_closed:
                return b""
            raise BlockingIOError
        count = min(size, self._some(size))
        data = bytes(self.arrived[:count])
        del self.arrived[:count]
        return data

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self.is_closed = True

    getpeername = getsockname = getsockopt = setsockopt = fileno


class Pair:
    """Both sides of a connection."""

    def __init__(self, keys: Path, seed: int) -> None:
        draw = random.Random(seed)
        self.sockets = Choppy(draw), Choppy(draw)
        self.sockets[0].other, self.sockets[1].other = reversed(self.sockets)
        self.client = TlsSocket(self.sockets[0], client_context(str(keys / "ca.pem")), "localhost")
        self.server = TlsSocket(self.sockets[1], server_context(keys))

    def stop_chopping(self) -> None:
        for side in self.sockets:
            side._some = lambda size: size  # type: ignore[method-assign]

    def shake_hands(self) -> None:
        while not (self.client.is_open and self.server.is_open):
            for side in (self.client, self.server):
                blocked(side.flush if side.is_open else side.handshake)


def blocked(act: Callable[[], object]) -> None:
    """Do something that may have to wait."""
    with contextlib.suppress(BlockingIOError):
        act()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def pair(keys: Path, request: pytest.FixtureRequest) -> Pair:
    return Pair(keys, getattr(request, "param", 1))


class Sender:
    """Sends buffers as their owner does: what was not taken is sent again."""

    def __init__(self, tls: TlsSocket, buffers: list[bytes]) -> None:
        self._tls = tls
        self._waiting = [memoryview(buffer) for buffer in buffers]

    @property
    def is_done(self) -> bool:
        return not self._waiting

    def step(self) -> None:
        try:
            sent = self._tls.sendmsg(self._waiting)
        except BlockingIOError:
            return
        assert 0 < sent <= sum(map(len, self._waiting))
        while sent:
            first = self._waiting[0]
            if sent < len(first):
                self._waiting[0] = first[sent:]
                return
            sent -= len(first)
            self._waiting.pop(0)


class Receiver:
    """Receives into buffers of its own, or takes what there is."""

    def __init__(self, tls: TlsSocket, draw: random.Random) -> None:
        self._tls = tls
        self._draw = draw
        self.received = bytearray()

    def step(self) -> None:
        try:
            if self._draw.random() < 0.5:
                self.received += self._tls.recv(65536)
            else:
                target = memoryview(bytearray(self._draw.choice((1, 100, 16_384, 100_000, MIB))))
                self.received += target[: self._tls.recv_into(target)]
        except BlockingIOError:
            pass


@pytest.mark.parametrize("pair", range(6), indirect=True)
def test_bytes_in_both_directions_arrive_whole(pair: Pair) -> None:
    pair.shake_hands()
    draw = random.Random(7)
    sizes = (1, 20, 0, 5000, 16_384, 65_536, 65_537, 300_000)
    sent = [[os.urandom(draw.choice(sizes)) for _ in range(20)] + [os.urandom(2 * MIB)] for _ in range(2)]
    senders = [Sender(side, buffers) for side, buffers in zip((pair.client, pair.server), sent, strict=True)]
    receivers = [Receiver(side, draw) for side in (pair.server, pair.client)]
    wanted = [b"".join(buffers) for buffers in sent]
    while [len(each.received) for each in receivers] != [*map(len, wanted)]:
        for sender, receiver in zip(senders, receivers, strict=True):
            if not sender.is_done:
                sender.step()
            receiver.step()
    assert [each.received for each in receivers] == wanted
    assert all(sender.is_done for sender in senders)


def test_what_was_received_and_not_read_is_not_forgotten(pair: Pair) -> None:
    pair.shake_hands()
    pair.stop_chopping()
    for _ in range(3):
        pair.client.send(b"x" * 1000)
    target = memoryview(bytearray(10))
    blocked(lambda: pair.server.recv_into(target))
    while pair.sockets[1].arrived:
        pair.server.recv_into(target)
    assert pair.server.has_more
    count = len(pair.server.recv(65536))
    assert count >= 2000
    assert not pair.server.has_more
    with pytest.raises(BlockingIOError):
        pair.server.recv(65536)


def test_many_records_that_have_arrived_together_are_received_together(pair: Pair) -> None:
    pair.shake_hands()
    pair.stop_chopping()
    blocked(lambda: pair.server.recv(65536))
    for number in range(500):
        pair.client.send(b"%03d" % number)
    assert pair.server.recv(65536) == b"".join(b"%03d" % number for number in range(500))


@pytest.mark.parametrize("first", [b"ONCEMQ\x01\0\0\0\0\0", b"GET / HTTP/1.1\r\n", b"\0"])
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_peer_without_tls_is_noticed_at_its_first_byte(pair: Pair, side: str, first: bytes) -> None:
    number = side == "server"
    pair.sockets[number].arrived += first
    with pytest.raises(NotTls):
        for _ in range(100):
            blocked((pair.client, pair.server)[number].handshake)


def test_nonsense_after_a_good_beginning_fails(pair: Pair) -> None:
    pair.sockets[1].arrived += b"\x16\x03\x01\0\x05nonsense that is long enough for a record"
    with pytest.raises(ssl.SSLError):
        for _ in range(100):
            blocked(pair.server.handshake)


def test_the_end_of_a_connection_is_an_end_with_or_without_a_word(pair: Pair) -> None:
    pair.shake_hands()
    pair.stop_chopping()
    for side in (pair.client, pair.server):
        blocked(partial(side.recv, 65536))
    pair.server.send(b"last words")
    pair.server.close()
    assert pair.client.recv(65536) == b"last words"
    assert pair.client.recv(65536) == b""
    assert pair.client.recv_into(memoryview(bytearray(10))) == 0
    pair.client.close()
    assert pair.server.recv(65536) == b""


def test_a_handshake_ends_when_the_peer_leaves(pair: Pair) -> None:
    pair.sockets[0].close()
    with pytest.raises(ConnectionResetError):
        pair.server.handshake()


def test_a_handshake_that_cannot_be_sent_continues_when_it_can(pair: Pair) -> None:
    blocked(pair.client.handshake)
    pair.sockets[1].is_blocked = True
    pair.sockets[1]._some = lambda size: 3 if pair.sockets[1].is_blocked else size  # type: ignore[method-assign]
    while pair.client.has_unsent:
        blocked(pair.client.flush)
    while not pair.server.has_unsent:
        blocked(pair.server.handshake)
    assert not pair.server.is_open
    pair.sockets[1].is_blocked = False
    pair.server.flush()
    assert not pair.server.has_unsent
    pair.shake_hands()


def test_a_peer_that_makes_tls_send_and_does_not_read_is_given_up(pair: Pair) -> None:
    pair.shake_hands()
    pair.sockets[1].is_blocked = True
    # The engine itself has to say this much, as after very many updates of keys.
    pair.server._outgoing.write(bytes(300_000))
    pair.server._incoming.write(b"\x17\x03\x03\0\x13")
    pair.server.has_more = True
    with pytest.raises(ConnectionAbortedError):
        pair.server.recv(65536)
