"""The ZeroMQ listener of a broker asks its gate who a connection is, and every request carries the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from oncemq.broker.network import Arrival
from oncemq.broker.network.listeners import Listeners
from oncemq.broker.network.zeromq import ZmqListener
from oncemq.client.credentials import CurveKeys
from oncemq.config.settings import ServeSettings
from oncemq.net import admissions, curve
from oncemq.net.guard import Guard
from oncemq.protocol import errors
from oncemq.protocol.commands import CURVE, NO_CREDENTIAL
from tests.secured_broker import DEADLINE_S, client_keys, use_keys

TCP = "tcp://127.0.0.1:*"


class FakeGate:
    """Knows the callers of keys. Without any, there are no users."""

    def __init__(self) -> None:
        self.callers: dict[str, str] = {}
        self.addresses: list[str] = []
        #: Callers of connections that were admitted and have not ended.
        self.connected: list[str] = []
        #: Raised instead of an answer.
        self.error: Exception | None = None

    def admit(self, kind: str, credential: str, address: str) -> str:
        assert kind == (CURVE if credential else NO_CREDENTIAL)
        self.addresses.append(address)
        if self.error is not None:
            raise self.error
        if not self.callers:
            return ""
        caller = self.callers.get(credential)
        if caller is None:
            raise errors.Unauthenticated("the credentials are not valid")
        self.connected.append(caller)
        return caller

    def left(self, caller: str) -> None:
        self.connected.remove(caller)

    def is_valid(self, caller: str) -> bool:
        return caller in self.callers.values() if self.callers else not caller


class Rig:
    def __init__(self, *addresses: str, users: tuple[str, ...] = ("alice/curve=1", "bob/curve=2")) -> None:
        self.gate = FakeGate()
        self.server_keys = curve.generate()
        self.keys: dict[str, CurveKeys] = {}
        for caller in users:
            self.add(caller)
        self.network = Listeners(ServeSettings(listen=addresses or (TCP,)), gate=self.gate, curve=self.server_keys)
        self.urls = self.network.addresses
        self.arrived: list[Arrival] = []
        self._context: Any = zmq.Context()
        #: A socket that nobody refers to is closed.
        self._dealers: list[Any] = []

    def add(self, caller: str) -> None:
        self.keys[caller] = client_keys(self.server_keys)
        self.gate.callers[self.keys[caller].public] = caller

    @property
    def listener(self) -> ZmqListener:
        assert self.network._zmq is not None
        return self.network._zmq

    def dealer(self, caller: str = "", name: bytes = b"", url: str = "") -> Any:
        """A client of a caller; without one, a client without keys."""
        dealer = self._context.socket(zmq.DEALER)
        self._dealers.append(dealer)
        dealer.linger = 0
        if name:
            dealer.setsockopt(zmq.ROUTING_ID, name)
        if caller:
            use_keys(dealer, self.keys.get(caller) or client_keys(self.server_keys))
        dealer.connect(url or self.urls[0])
        return dealer

    def take_until(self, condition: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < until_s, f"not in time: {what}"
            self.arrived += self.network.take(5)

    def request(self, dealer: Any, content: bytes) -> bytes:
        """Send a request and take it. Returns the name of its peer."""
        dealer.send(content)
        found: list[bytes] = []
        self.take_until(lambda: any(frames == [content] for _, frames in self.arrived), "the request")
        found += [peer for peer, frames in self.arrived if frames == [content]]
        return found[0]

    def monitor(self, dealer: Any) -> Any:
        """Events of failed handshakes."""
        events = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        return dealer.get_monitor_socket(events)

    def close(self) -> None:
        self._context.destroy(0)
        self.network.close()


@contextmanager
def rigged(*addresses: str, **options: Any) -> Iterator[Rig]:
    rig = Rig(*addresses, **options)
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with rigged() as rig:
        yield rig


# Who it is.


def test_the_name_of_a_peer_contains_its_caller(rig: Rig) -> None:
    alice, bob = rig.dealer("alice/curve=1"), rig.dealer("bob/curve=2")
    peers = [rig.request(alice, b"from alice"), rig.request(bob, b"from bob"), rig.request(alice, b"again")]
    assert [rig.network.caller_of(peer) for peer in peers] == ["alice/curve=1", "bob/curve=2", "alice/curve=1"]
    assert peers[0] == peers[2] != peers[1]
    assert rig.gate.addresses == ["127.0.0.1", "127.0.0.1"]


def test_replies_go_to_the_peer(rig: Rig) -> None:
    alice, bob = rig.dealer("alice/curve=1"), rig.dealer("bob/curve=2")
    peers = [rig.request(alice, b"from alice"), rig.request(bob, b"from bob")]
    for peer in peers:
        assert rig.network.is_reading(peer)
        rig.network.send(peer, [rig.network.caller_of(peer).encode(), bytes(100_000)])
    assert alice.poll(DEADLINE_S * 1000)
    assert alice.recv_multipart()[0] == b"alice/curve=1"
    assert bob.poll(DEADLINE_S * 1000)
    assert bob.recv_multipart()[0] == b"bob/curve=2"


def test_a_request_that_is_faster_than_the_news_of_its_connection_is_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_known, accept = threading.Event(), Guard._accept

    def accept_late(guard: Guard, listener: Any, descriptor: int) -> None:
        is_known.wait(DEADLINE_S)
        accept(guard, listener, descriptor)

    monkeypatch.setattr(Guard, "_accept", accept_late)
    alice = rig.dealer("alice/curve=1")
    peer = rig.request(alice, b"early")
    rig.network.send(peer, [b"the answer"])
    is_answered = alice.poll(DEADLINE_S * 1000)
    is_known.set()
    assert is_answered
    # From the next message on, the end of the connection is known.
    rig.take_until(lambda: len(rig.listener._listener.connections) == 1, "the news")
    rig.request(alice, b"late")
    alice.close()
    rig.take_until(lambda: not rig.gate.connected, "the end")


@pytest.mark.parametrize(
    ("error", "status"),
    [(errors.Unauthenticated("no"), 400), (errors.QuotaReached("no"), 400), (RuntimeError("a bug"), 500)],
)
def test_a_refused_client_is_told(rig: Rig, error: Exception, status: int) -> None:
    rig.gate.error = error
    dealer = rig.dealer("alice/curve=1")
    news = rig.monitor(dealer)
    dealer.send(b"request")
    rig.take_until(lambda: news.poll(0), "the event")
    assert int.from_bytes(news.recv_multipart()[0][2:], "little") == status
    assert not rig.arrived


def test_a_client_that_is_to_try_again_does_so_by_itself(rig: Rig) -> None:
    rig.gate.error = errors.RateLimited("too many failed logins")
    dealer = rig.dealer("alice/curve=1")
    dealer.send(b"request")
    rig.take_until(lambda: len(rig.gate.addresses) >= 2, "the second attempt")
    rig.gate.error = None
    rig.take_until(lambda: rig.arrived, "the request")


def test_clients_without_keys_and_with_unknown_keys_reach_nothing(rig: Rig) -> None:
    plain, stranger = rig.dealer(), rig.dealer("nobody/curve=3")
    news = rig.monitor(plain), rig.monitor(stranger)
    plain.send(b"plain")
    stranger.send(b"stranger")
    rig.take_until(lambda: all(each.poll(0) for each in news), "the events")
    rig.request(rig.dealer("alice/curve=1"), b"known")
    assert [frames for _, frames in rig.arrived] == [[b"known"]]
    assert len(rig.gate.addresses) == 2, "the plain one has shown no key"


def test_a_caller_of_the_maximum_length_is_a_name(rig: Rig) -> None:
    longest = "u" * 255
    rig.add(longest)
    peer = rig.request(rig.dealer(longest), b"request")
    assert rig.network.caller_of(peer) == longest


def test_a_caller_that_does_not_fit_into_a_name_is_not_admitted(rig: Rig) -> None:
    rig.add("u" * 256)
    dealer = rig.dealer("u" * 256)
    news = rig.monitor(dealer)
    dealer.send(b"request")
    rig.take_until(lambda: news.poll(0), "the event")
    assert not rig.arrived


def test_a_client_can_not_choose_its_routing_id(rig: Rig) -> None:
    named = rig.dealer("alice/curve=1", name=b"worker-1")
    named.send(b"named")
    rig.take_until(lambda: rig.network.counters["peers_cut_named"], "the disconnection")
    rig.request(rig.dealer("alice/curve=1"), b"unnamed")
    assert [frames for _, frames in rig.arrived] == [[b"unnamed"]]


# The end of connections.


def test_a_connection_that_has_ended_has_left(rig: Rig) -> None:
    alice, bob = rig.dealer("alice/curve=1"), rig.dealer("bob/curve=2")
    rig.request(alice, b"from alice")
    rig.request(bob, b"from bob")
    assert sorted(rig.gate.connected) == ["alice/curve=1", "bob/curve=2"]
    alice.close()
    rig.take_until(lambda: rig.gate.connected == ["bob/curve=2"], "the end")
    bob.close()
    rig.take_until(lambda: not rig.gate.connected, "the end")


def test_a_client_that_sends_and_leaves_at_once_has_left(rig: Rig) -> None:
    for number in range(20):
        dealer = rig.dealer("alice/curve=1")
        dealer.linger = -1
        dealer.send(b"%d" % number)
        dealer.close()
    rig.take_until(lambda: len(rig.arrived) == 20, "the requests")
    rig.take_until(lambda: not rig.gate.connected, "the end")


def test_connections_that_were_never_used_leave_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admissions, "_UNKNOWN_S", 0.05)
    monkeypatch.setattr(admissions, "_COUNT_EVERY_S", 0.0)
    used = rig.dealer("alice/curve=1")
    rig.request(used, b"request")
    silent = [rig.dealer("bob/curve=2") for _ in range(3)]
    rig.take_until(lambda: len(rig.gate.connected) == 4, "the connections")
    silent[0].close()
    rig.take_until(lambda: len(rig.gate.connected) == 3, "the end of one")
    rig.request(silent[1], b"a late request")
    silent[1].close()
    silent[2].close()
    rig.take_until(lambda: rig.gate.connected == ["alice/curve=1"], "the end of all")


def test_peers_whose_credentials_were_removed_are_disconnected(rig: Rig) -> None:
    alice, bob = rig.dealer("alice/curve=1"), rig.dealer("bob/curve=2")
    rig.request(alice, b"from alice")
    peer = rig.request(bob, b"from bob")
    del rig.gate.callers[rig.keys["bob/curve=2"].public]
    news = rig.monitor(bob)
    rig.network.drop_invalid()
    rig.take_until(lambda: news.poll(0), "the refusal of the next attempt")
    rig.take_until(lambda: rig.gate.connected == ["alice/curve=1"], "the end")
    assert rig.network.caller_of(peer) == "bob/curve=2", "what was received is still bob's"
    rig.request(alice, b"still here")
    assert rig.network.counters["peers_cut_invalid"] == 1


# With and without users.


def test_users_without_keys_of_the_server_are_an_invalid_setting() -> None:
    gate = FakeGate()
    gate.callers["key"] = "alice/curve=1"
    with pytest.raises(errors.SettingInvalid, match="oncemq auth keys"):
        Listeners(ServeSettings(listen=(TCP,)), gate=gate)


def test_without_users_and_keys_nothing_is_encrypted() -> None:
    network = Listeners(ServeSettings(listen=(TCP,)), gate=FakeGate())
    context: Any = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(network.addresses[0])
    dealer.send(b"request")
    arrived: list[Arrival] = []
    until_s = time.monotonic() + DEADLINE_S
    while not arrived and time.monotonic() < until_s:
        arrived = network.take(5)
    [(peer, frames)] = arrived
    assert (network.caller_of(peer), frames) == ("", [b"request"])
    context.destroy(0)
    network.close()


def test_without_users_keys_encrypt_and_everybody_may_connect() -> None:
    with rigged(users=()) as rig:
        peer = rig.request(rig.dealer("anybody"), b"request")
        assert rig.network.caller_of(peer) == ""
        # Later there are users: what comes from such a connection is nobody's, until it has connected again.
        rig.add("alice/curve=1")
        rig.network.drop_invalid()
        alice = rig.dealer("alice/curve=1")
        assert rig.network.caller_of(rig.request(alice, b"from alice")) == "alice/curve=1"
        assert rig.network.counters["peers_cut_invalid"] == 1


def test_a_unix_socket_needs_keys_if_there_are_users(tmp_path: Path) -> None:
    with rigged(f"ipc://{tmp_path}/s") as rig:
        plain = rig.dealer()
        news = rig.monitor(plain)
        plain.send(b"plain")
        rig.take_until(lambda: news.poll(0), "the event")
        assert rig.network.caller_of(rig.request(rig.dealer("alice/curve=1"), b"request")) == "alice/curve=1"
        assert rig.gate.addresses == ["unix"]


def test_a_unix_socket_needs_no_keys_without_users(tmp_path: Path) -> None:
    with rigged(TCP, f"ipc://{tmp_path}/s", users=()) as rig:
        rig.request(rig.dealer(url=rig.urls[1]), b"plain")
        rig.request(rig.dealer("anybody"), b"encrypted")
        # From now on, nobody can log in there.
        rig.add("alice/curve=1")
        rig.network.drop_invalid()
        rig.arrived.clear()
        plain = rig.dealer(url=rig.urls[1])
        news = rig.monitor(plain)
        plain.send(b"plain")
        rig.take_until(lambda: news.poll(0), "the event")
        assert not rig.arrived


def test_what_encryption_adds_does_not_count_as_unprocessed(rig: Rig) -> None:
    alice = rig.dealer("alice/curve=1")
    rig.request(alice, b"first")
    count = 20_000
    for _ in range(count):
        alice.send_multipart([b"x", b"y" * 230])
    rig.take_until(lambda: len(rig.arrived) == count + 1, "the requests")
    [connection] = rig.listener._listener.connections.values()
    connection.measure(time.monotonic())
    assert connection.unprocessed == 0
    assert 0 <= connection.received - connection.delivered < 4096
    peer = rig.arrived[0][0]
    for _ in range(1000):
        rig.network.send(peer, [b"x", b"y" * 230])
    for _ in range(1000):
        assert alice.poll(DEADLINE_S * 1000)
        alice.recv_multipart()

    def is_all_read() -> bool:
        connection.measure(time.monotonic())
        return connection.unread == 0

    rig.take_until(is_all_read, "the last acknowledgement")
    assert 0 <= connection._surplus < 4096
