"""Everything that the three sockets of the push gateway do, as everybody. A PUB socket gets no answer, and a SUB socket
no refusal: what they cause is looked at."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from oncemq.client.sync import Client
from oncemq.net import curve
from tests.acceptance.processes import wait_until
from tests.auth.listeners.curve_sockets import CurveSockets
from tests.auth.served import ServedBroker
from tests.auth.walk import OTHER, OWNER, STRANGER

_numbers = itertools.count(1)
_AUTH = zmq.EVENT_HANDSHAKE_FAILED_AUTH


@pytest.fixture
def sockets(served: ServedBroker) -> Iterator[CurveSockets]:
    sockets = CurveSockets(served)
    yield sockets
    sockets.close()


@pytest.fixture
def topic(administrator: Client) -> str:
    name = f"orders.push{next(_numbers)}"
    administrator.create_topic(name, retain_ms=3_600_000)
    return name


def stored(administrator: Client, topic: str) -> list[bytes]:
    return [message.value for message in administrator.read(topic, start="earliest")]


def names(administrator: Client) -> set[str]:
    return {each.name for each in administrator.topics()}


# Publishing without an answer.


def publisher(sockets: CurveSockets, served: ServedBroker, who: str) -> Any:
    """An XPUB socket: unlike PUB, it is told when the gateway listens to it."""
    socket = sockets.connect(zmq.XPUB, served.publish, who)
    assert socket.recv() == b"\1"
    return socket


def test_everybody_publishes(sockets: CurveSockets, served: ServedBroker, administrator: Client, topic: str) -> None:
    frames = [topic.encode(), b"forged"]
    assert sockets.failure(zmq.PUB, served.publish, None, frames)[0] != _AUTH
    for who in (STRANGER, OTHER):
        socket = publisher(sockets, served, who)
        for target in (topic, f"{topic}.new"):
            before = refusals(administrator)
            socket.send_multipart([target.encode(), b"forged"])
            wait_until(lambda before=before: refusals(administrator) > before, "it is refused")  # type: ignore[misc]
    assert stored(administrator, topic) == []
    assert f"{topic}.new" not in names(administrator)
    socket = publisher(sockets, served, OWNER)
    socket.send_multipart([topic.encode(), b"one"])
    socket.send_multipart([f"{topic}.new".encode(), b"one"])
    wait_until(lambda: stored(administrator, topic) == [b"one"], "it is stored")
    wait_until(lambda: f"{topic}.new" in names(administrator), "the topic is created")


def refusals(administrator: Client) -> int:
    return administrator.health().counters.get("refused_forbidden", 0)


# The feed.


def listener(sockets: CurveSockets, served: ServedBroker, who: str, *prefixes: bytes) -> Any:
    socket = sockets.connect(zmq.SUB, served.feed, who)
    for prefix in prefixes:
        socket.setsockopt(zmq.SUBSCRIBE, prefix)
    return socket


def heard_until(socket: Any, topic: str, content: bytes) -> set[bytes]:
    """Receive until this message arrives. Return the topics of everything that has arrived."""
    heard = set()
    while True:
        first, _, *rest = socket.recv_multipart()
        heard.add(first)
        if first == topic.encode() + b"\0" and rest == [content]:
            return heard


def test_everybody_listens(sockets: CurveSockets, served: ServedBroker, administrator: Client, topic: str) -> None:
    bills = f"bills.push{next(_numbers)}"
    administrator.create_topic(bills, retain_ms=3_600_000)
    frame, batches = topic.encode() + b"\0", b"\1" + topic.encode() + b"\0"
    own = bills.encode() + b"\0"
    assert sockets.failure(zmq.SUB, served.feed, None, [frame])[0] != _AUTH
    prefixes = (b"", b"orders", topic.encode(), frame, b"\1", batches)
    stranger = listener(sockets, served, STRANGER, *prefixes)
    other = listener(sockets, served, OTHER, *prefixes, own)
    owner = listener(sockets, served, OWNER, frame)
    # Heartbeats: both are listening.
    assert owner.recv_multipart()[0] == frame
    assert other.recv_multipart()[0] == own
    administrator.put(topic, b"for the owner")
    assert heard_until(owner, topic, b"for the owner") == {frame}
    # It was sent to all that listen before this is.
    administrator.put(bills, b"for the other")
    assert heard_until(other, bills, b"for the other") == {own}
    assert not stranger.poll(0)


# Requests with an answer.


class Asker:
    def __init__(self, sockets: CurveSockets, served: ServedBroker, who: str) -> None:
        self._socket = sockets.connect(zmq.REQ, served.acks, who)

    def ask(self, kind: str, *content: bytes, **fields: Any) -> dict[str, Any]:
        self._socket.send_multipart(request(kind, *content, **fields))
        answer: dict[str, Any] = json.loads(self._socket.recv())
        return answer


def request(kind: str, *content: bytes, **fields: Any) -> list[bytes]:
    return [json.dumps({"type": kind, **fields}).encode(), *content]


class Requests:
    """Examples of all requests, about a subscription of OWNER."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.kitchen = {"subscriber": "kitchen", "topics": [topic]}
        self.hello = {**self.kitchen, "address": "tcp://127.0.0.1:1", "start": "earliest"}
        self._ids = itertools.count()

    def examples(self, kind: str) -> list[tuple[list[bytes], dict[str, Any]]]:
        """Return contents and fields."""
        if kind == "hello":
            return [([], self.hello), ([], {**self.hello, "subscriber": "cellar"})]
        if kind == "goodbye":
            return [([], self.kitchen)]
        if kind == "ack_received":
            ack = {"subscriber": "kitchen", "topic": self.topic}
            return [([], {**ack, "offset": 0}), ([], {**ack, "upto": 1})]
        message = {"origin": "till", "topic": self.topic}
        return [([b"x"], {**message, "id": f"{next(self._ids)}"}), ([b"x"], {**message, "number": 1})]


@pytest.mark.parametrize("kind", ["hello", "goodbye", "ack_received", "publish"])
def test_everybody_sends_every_request(
    sockets: CurveSockets, served: ServedBroker, administrator: Client, topic: str, kind: str
) -> None:
    owner = Asker(sockets, served, OWNER)
    requests = Requests(topic)
    administrator.put(topic, b"one")
    assert owner.ask("hello", **requests.hello)["type"] == "ack_welcome"
    before = state_of(administrator, topic)
    for content, fields in requests.examples(kind):
        assert sockets.failure(zmq.REQ, served.acks, None, request(kind, *content, **fields))[0] != _AUTH
        for who in (STRANGER, OTHER):
            answer = Asker(sockets, served, who).ask(kind, *content, **fields)
            if kind == "goodbye":
                # Nobody of this name is known, of this user.
                assert answer == {"type": "ack_goodbye", "subscriber": "kitchen", "topics": []}
            else:
                assert answer["type"] == "error", answer
                assert answer["code"] in ("FORBIDDEN", "NOT_SUBSCRIBED"), answer
        assert state_of(administrator, topic) == before
    for content, fields in requests.examples(kind):
        assert owner.ask(kind, *content, **fields)["type"].startswith("ack_")


def state_of(administrator: Client, topic: str) -> object:
    subscriptions = [(each.subscriber, each.acked) for each in administrator.subscriptions(topic)]
    return subscriptions, stored(administrator, topic)


def test_keys_of_nobody_are_refused(sockets: CurveSockets, served: ServedBroker) -> None:
    for kind, url in ((zmq.PUB, served.publish), (zmq.SUB, served.feed), (zmq.REQ, served.acks)):
        assert sockets.failure(kind, url, curve.generate(), [b"orders.x", b"x"]) == (_AUTH, 400)
