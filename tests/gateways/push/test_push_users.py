"""Users of the push gateway: publishers, the feed and requests, each on behalf of the user of the connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import zmq

from oncemq.client.credentials import Credentials, CurveKeys
from oncemq.client.options import ConnectSettings
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.runtime.transport import open_transport
from oncemq.client.sync import Client, make_client
from oncemq.gateways.push.feed import access
from oncemq.gateways.push.gateway import PushGateway
from tests.gateways.hosts import LoopThread
from tests.gateways.push.peers import Asker, Callee, Listener
from tests.gateways.push.processes import settings_here
from tests.secured_broker import DEADLINE_S, GATEWAY, SecuredBroker, client_keys, secured_broker, until, use_keys

ALLOW = {
    "alice": ["all shared.#", "all alice.#"],
    "bob": ["consume shared.#", "all bob.#"],
    "carol": ["all carol.#"],
    "dave": ["consume shared.#", "all dave.#"],
    "erin": ["consume shared.#"],
    "admin": ["role admin"],
}


class PushThread:
    """A gateway in a thread, which can be started again at the same addresses."""

    def __init__(self, broker: SecuredBroker) -> None:
        self._broker = broker
        self.settings = settings_here(curve=broker.server_keys, credentials=broker.credentials(GATEWAY))
        self._opened = ExitStack()
        self._thread = LoopThread()
        self.start()

    def start(self) -> None:
        self.gateway = PushGateway(self._broker.url, self.settings)
        self._thread.call(self.gateway.start())

    def stop(self) -> None:
        self._thread.call(self.gateway.stop())

    def gateway_feed(self) -> Any:
        """The feed, to change its times."""
        return self.gateway._feed

    def listener(self, user: str, *prefixes: bytes) -> Listener:
        listener = Listener(self.settings.feed, *prefixes, keys=self._broker.keys[user])
        self._opened.callback(listener.close)
        return listener

    def asker(self, user: str) -> Asker:
        asker = Asker(self.settings.acks, keys=self._broker.keys[user])
        self._opened.callback(asker.close)
        return asker

    def publisher(self, keys: CurveKeys) -> Any:
        """An XPUB socket: it is told when the gateway listens to it."""
        context: Any = zmq.Context.instance()
        socket = context.socket(zmq.XPUB)
        socket.linger = 0
        use_keys(socket, keys)
        socket.connect(self.settings.publish)
        self._opened.callback(socket.close)
        assert socket.poll(DEADLINE_S * 1000)
        assert socket.recv() == b"\1"
        return socket

    def close(self) -> None:
        self._opened.close()
        self.stop()
        self._thread.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[SecuredBroker]:
    with secured_broker(ALLOW) as broker:
        yield broker


@pytest.fixture(scope="module")
def push(broker: SecuredBroker) -> Iterator[PushThread]:
    push = PushThread(broker)
    yield push
    push.close()


@contextmanager
def connected(broker: SecuredBroker, user: str) -> Iterator[Client]:
    settings = ConnectSettings(urls=[broker.url], credentials=Credentials(curve=broker.keys[user]))
    client = make_client(
        ThreadDriver(settings.make_core(), open_transport(settings.urls, 0, settings.credentials)), settings
    )
    client._driver.run(client._connection.greet())
    with client:
        yield client


@pytest.fixture(scope="module")
def admin(broker: SecuredBroker) -> Iterator[Client]:
    with connected(broker, "admin") as client:
        yield client


def read(client: Client, topic: str) -> list[bytes]:
    return [message.value for message in client.read(topic, start="earliest")]


# Publishers.


def test_publishers_write_as_their_user(
    push: PushThread, broker: SecuredBroker, admin: Client, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic("shared.in", retain_ms=3_600_000)
    alice, bob = push.publisher(broker.keys["alice"]), push.publisher(broker.keys["bob"])
    with caplog.at_level(logging.WARNING, "oncemq.push"):
        refused = push.gateway.counters["publish_refused"]
        for number in range(3):
            bob.send_multipart([b"shared.in", b"from bob %d" % number])
            until(lambda: push.gateway.counters["publish_refused"] == refused + number + 1, "the refusal")  # noqa: B023
    assert caplog.text.count("messages of user 'bob' for 'shared.in' are dropped") == 1
    for number in range(3):
        alice.send_multipart([b"shared.in", b"from alice %d" % number])
    until(lambda: len(read(admin, "shared.in")) == 3, "the messages")
    assert read(admin, "shared.in") == [b"from alice 0", b"from alice 1", b"from alice 2"]


def test_a_stranger_publishes_nothing(push: PushThread, broker: SecuredBroker) -> None:
    for keys in (None, client_keys(broker.server_keys)):
        context: Any = zmq.Context.instance()
        socket = context.socket(zmq.XPUB)
        socket.linger = 0
        if keys is not None:
            use_keys(socket, keys)
        news = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.connect(push.settings.publish)
        assert news.poll(DEADLINE_S * 1000)
        assert not socket.poll(0), "the gateway does not listen to it"
        socket.disable_monitor()
        socket.close()


# The feed.


def test_users_hear_what_they_may(push: PushThread, admin: Client) -> None:
    admin.create_topic("shared.feed")
    admin.create_topic("carol.feed")
    alice, bob = push.listener("alice", b"shared.feed\0"), push.listener("bob", b"shared.feed\0", b"carol.feed\0")
    carol = push.listener("carol", b"shared.feed\0", b"carol.feed\0")
    for listener in (alice, bob, carol):
        listener.heartbeat()
    for number in range(20):
        admin.put("shared.feed", b"%d" % number)
        admin.put("carol.feed", b"%d" % number)
    expected = [(number, b"%d" % number) for number in range(20)]
    # Each message once, although the gateway follows the topic for two users.
    assert alice.messages(20) == expected
    assert bob.messages(20) == expected
    assert carol.messages(20) == expected
    for listener, topic in ((alice, b"shared.feed\0"), (bob, b"shared.feed\0"), (carol, b"carol.feed\0")):
        for _ in range(3):
            frames = listener.frames()
            assert frames[0] == topic
            assert frames[1].startswith(b"next 20 ")


def test_a_subscription_means_one_topic(push: PushThread, admin: Client) -> None:
    for topic in ("shared.order", "shared.orders"):
        admin.create_topic(topic)
    others = push.listener("bob", b"shared.orders\0")
    bare, everything = push.listener("bob", b"shared.order"), push.listener("bob", b"", b"\1shared.order")
    for listener in (others, bare, everything):
        listener.heartbeat()
    admin.put("shared.orders", b"not for it")
    admin.put("shared.order", b"for it")
    assert others.messages(1) == [(0, b"not for it")]
    assert bare.messages(1) == [(0, b"for it")]
    while not (frames := everything.frames())[1].startswith(b"batch"):
        assert frames[0] == b"\1shared.order\0"


def test_more_can_be_subscribed_to_later_and_left(push: PushThread, admin: Client) -> None:
    for number in range(3):
        admin.create_topic(f"shared.later.{number}")
    listener = push.listener("bob", b"shared.later.0\0")
    listener.heartbeat()
    for number in (1, 2):
        listener.socket.setsockopt(zmq.SUBSCRIBE, b"shared.later.%d\0" % number)
        heard = b""
        while heard != b"shared.later.%d\0" % number:
            heard = listener.frames()[0]
    listener.socket.setsockopt(zmq.UNSUBSCRIBE, b"shared.later.1\0")
    until(lambda: not admin.subscriptions("shared.later.1"), "the end of its subscription")
    assert [each.subscriber for each in admin.subscriptions("shared.later.0")] == ["push-feed/bob"]


def test_many_users_may_come_at_once(push: PushThread, admin: Client) -> None:
    topics = [f"shared.many.{number}" for number in range(10)]
    for topic in topics:
        admin.create_topic(topic)
    prefixes = [topic.encode() + b"\0" for topic in topics]
    listeners = [push.listener(user, *prefixes) for user in ("alice", "bob", "dave") for _ in range(4)]
    for listener in listeners:
        heard: set[bytes] = set()
        while len(heard) < len(prefixes):
            heard.add(listener.frames()[0])


def test_a_user_whose_right_is_taken_away_hears_nothing_more(
    push: PushThread, broker: SecuredBroker, admin: Client
) -> None:
    admin.create_topic("shared.taken")
    admin.create_topic("dave.kept")
    bob, dave = push.listener("bob", b"shared.taken\0"), push.listener("dave", b"shared.taken\0", b"dave.kept\0")
    bob.heartbeat()
    heard: set[bytes] = set()
    while len(heard) < 2:
        heard.add(dave.frames()[0])
    revoked = push.gateway.counters["feed_revoked"]
    broker.set_rules("dave", "all dave.#")
    until(lambda: push.gateway.counters["feed_revoked"] > revoked, "the end of the connection")
    admin.put("shared.taken", b"secret")
    assert bob.messages(1) == [(0, b"secret")]
    # It connects again, and repeats its subscriptions.
    count = 0
    while count < 5:
        admin.put("dave.kept", b"for dave")
        frames = dave.frames()
        assert b"secret" not in frames
        count += frames[-1] == b"for dave"
    assert not any(frames[0] == b"shared.taken\0" for frames in (dave.frames() for _ in range(10)))
    broker.set_rules("dave", *ALLOW["dave"])


def test_a_user_whose_key_is_removed_hears_nothing_more(push: PushThread, broker: SecuredBroker, admin: Client) -> None:
    admin.create_topic("shared.removed")
    erin, bob = push.listener("erin", b"shared.removed\0"), push.listener("bob", b"shared.removed\0")
    erin.heartbeat()
    bob.heartbeat()
    cut = push.gateway.counters["peers_cut_invalid"]
    broker.revoke("erin")
    until(lambda: push.gateway.counters["peers_cut_invalid"] > cut, "the end of the connection")
    while erin.socket.poll(0):
        erin.socket.recv_multipart()
    admin.put("shared.removed", b"secret")
    assert bob.messages(1) == [(0, b"secret")]
    assert not erin.socket.poll(500)


def test_a_right_that_is_granted_later_takes_effect(
    push: PushThread, broker: SecuredBroker, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = push.gateway_feed()
    monkeypatch.setattr(access, "_REFUSED_S", 0.0)
    monkeypatch.setattr(access, "_ASK_AGAIN_S", 0.1)
    feed.access._ask_again_at_s = 0.0
    # The topic does not exist, and may not be created by dave.
    dave = push.listener("dave", b"shared.granted\0")
    refused = push.gateway.counters["feed_refused"]
    until(lambda: push.gateway.counters["feed_refused"] > refused, "the refusal")
    admin.create_topic("shared.granted")
    dave.heartbeat()


# Requests.


def test_subscribers_of_the_same_name_belong_to_their_users(push: PushThread, admin: Client) -> None:
    alice, bob = push.asker("alice"), push.asker("bob")
    address = "tcp://127.0.0.1:9"
    hello = {"subscriber": "kitchen", "address": address}
    assert alice.ask("hello", topics=["alice.meals"], **hello)["topics"] == {"alice.meals": 0}
    assert bob.ask("hello", topics=["bob.meals"], **hello)["topics"] == {"bob.meals": 0}
    admin.put("alice.meals", b"soup")
    # None of these reaches what is alice's.
    assert bob.ask("ack_received", subscriber="kitchen", topic="alice.meals", upto=1)["code"] == "NOT_SUBSCRIBED"
    assert bob.ask("hello", topics=["alice.meals"], **hello)["code"] == "FORBIDDEN"
    assert bob.ask("goodbye", subscriber="kitchen")["topics"] == []
    assert alice.insist("ack_received", subscriber="kitchen", topic="alice.meals", upto=1)["acked"] == 1
    assert alice.ask("goodbye", subscriber="kitchen")["topics"] == []


def test_a_subscription_of_somebody_else_is_not_taken_over(push: PushThread) -> None:
    alice, bob = push.asker("alice"), push.asker("bob")
    hello = {"subscriber": "bar", "topics": ["shared.drinks"], "address": "tcp://127.0.0.1:9"}
    assert alice.ask("hello", **hello)["type"] == "ack_welcome"
    assert bob.ask("hello", **hello)["code"] == "FORBIDDEN"
    assert bob.ask("goodbye", subscriber="bar", topics=["shared.drinks"])["topics"] == []
    assert alice.ask("hello", **hello)["topics"] == {"shared.drinks": 0}
    assert alice.ask("goodbye", subscriber="bar")["topics"] == []


def test_origins_belong_to_their_users(push: PushThread, admin: Client) -> None:
    alice, bob = push.asker("alice"), push.asker("bob")
    said = {"origin": "till", "id": "1"}
    assert alice.ask("publish", b"alice's", topic="alice.origin", **said)["offset"] == 0
    # The same origin and id: it is another message, and not that of alice.
    assert bob.ask("publish", b"bob's", topic="bob.origin", **said)["offset"] == 0
    assert bob.ask("publish", b"x", topic="alice.origin", origin="till", id="2")["code"] == "FORBIDDEN"
    for number in (1, 2):
        assert alice.ask("publish", b"n", topic="alice.origin", origin="pos", number=number)["offset"] == number
        assert bob.ask("publish", b"n", topic="bob.origin", origin="pos", number=number)["offset"] == number
    assert sorted(each.name for each in admin.sessions() if each.name.endswith("/pos")) == [
        "alice/push/pos",
        "bob/push/pos",
    ]


def test_messages_are_sent_again_to_the_owner_of_the_key_only(
    push: PushThread, broker: SecuredBroker, admin: Client
) -> None:
    alice = push.asker("alice")
    mine = Callee("kitchen", keys=broker.keys["alice"])
    hello = {"subscriber": "again", "topics": ["alice.again"]}
    assert alice.ask("hello", address=mine.address, **hello)["type"] == "ack_welcome"
    admin.put("alice.again", b"one")
    until(lambda: mine.received, "the message")
    assert mine.received == [("alice.again", 0, b"one")]
    # Whoever else listens at the address gets nothing, with and without keys.
    plain, other = Callee("kitchen"), Callee("kitchen", keys=broker.keys["bob"])
    for address in (plain.address, other.address, mine.address):
        assert alice.ask("hello", address=address, **hello)["type"] == "ack_welcome"
        sent = push.gateway.counters["retransmitted"]
        admin.put("alice.again", b"two")
        until(lambda: push.gateway.counters["retransmitted"] > sent, "the attempt")  # noqa: B023
    until(lambda: len(mine.received) == 4, "all messages")
    assert not plain.received
    assert not other.received
    for callee in (mine, plain, other):
        callee.close()
    alice.ask("goodbye", subscriber="again")


def test_a_gateway_continues_for_its_users_after_a_restart(
    push: PushThread, broker: SecuredBroker, admin: Client
) -> None:
    alice = push.asker("alice")
    callee = Callee("stays", keys=broker.keys["alice"])
    hello = {"subscriber": "stays", "topics": ["alice.stays"], "address": callee.address}
    assert alice.ask("hello", **hello)["type"] == "ack_welcome"
    push.stop()
    admin.put("alice.stays", b"meanwhile")
    push.start()
    until(lambda: callee.received, "the message")
    assert callee.received == [("alice.stays", 0, b"meanwhile")]
    # What was followed for listeners is cleaned up.
    until(lambda: {each.subscriber for each in admin.subscriptions("alice.stays")} == {"stays", "push-feed/alice"}, "")
    assert alice.insist("goodbye", subscriber="stays")["topics"] == []
    callee.close()


def test_a_revoked_key_can_request_nothing(push: PushThread, broker: SecuredBroker) -> None:
    carol = push.asker("carol")
    assert carol.ask("publish", b"x", origin="o", id="1", topic="carol.out")["type"] == "ack_published"
    broker.revoke("carol")
    assert carol.ask("publish", b"x", origin="o", id="2", topic="carol.out")["code"] == "UNAUTHENTICATED"
    hello = {"subscriber": "s", "topics": ["carol.out"], "address": "tcp://127.0.0.1:9"}
    assert carol.ask("hello", **hello)["code"] == "UNAUTHENTICATED"
    broker.revoked.discard("carol")
    broker.reload()


# The client of OnceMQ.


def test_the_client_listens_to_the_feed_with_its_keys(push: PushThread, broker: SecuredBroker, admin: Client) -> None:
    admin.create_topic("shared.client")
    with connected(broker, "bob") as client:
        subscription = client.push("shared.client", "bob-1", feed=push.settings.feed)
        count = 0
        until_s = time.monotonic() + DEADLINE_S
        while not subscription.pushed and time.monotonic() < until_s:
            admin.put("shared.client", b"%d" % count)
            message = subscription.get(timeout_s=DEADLINE_S)
            assert message is not None
            assert message.value == b"%d" % count
            count += 1
        assert subscription.pushed
