"""Every request of the text gateway, as everybody."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import zmq

from oncemq.client.sync import Client
from oncemq.net import curve
from tests.auth.listeners.curve_sockets import CurveSockets
from tests.auth.served import ServedBroker
from tests.auth.walk import OTHER, OWNER, STRANGER

_numbers = itertools.count(1)


class TextPeers:
    """A REQ socket for each user."""

    def __init__(self, broker: ServedBroker) -> None:
        self._sockets = CurveSockets(broker)
        self._url = broker.text
        self._opened = {who: self._sockets.connect(zmq.REQ, self._url, who) for who in (STRANGER, OTHER, OWNER)}

    def ask(self, who: str, request: str) -> str:
        self._opened[who].send_string(request)
        return str(self._opened[who].recv_string())

    def failure(self, pair: curve.CurveServerKeys | None, request: str) -> tuple[int, int]:
        return self._sockets.failure(zmq.REQ, self._url, pair, [request.encode()])

    def close(self) -> None:
        self._sockets.close()


@pytest.fixture(scope="module")
def peers(served: ServedBroker) -> Iterator[TextPeers]:
    peers = TextPeers(served)
    yield peers
    peers.close()


class Case:
    """A topic with a subscriber and a message, of OWNER."""

    def __init__(self, peers: TextPeers) -> None:
        self.number = next(_numbers)
        self.topic = f"orders.text{self.number}"
        self._ids = itertools.count()
        assert peers.ask(OWNER, f"sub {self.topic} kitchen").startswith("OK")
        assert peers.ask(OWNER, f"put {self.topic} pizza").startswith("OK")

    def request(self, form: str, operation: str) -> str:
        """Return a request that nobody has sent before."""
        subscriber = "cellar" if operation == "sub" else "kitchen"
        rest = "pizza" if operation == "put" else ""
        if form == "line":
            return f"{operation} {self.topic} {rest or subscriber}"
        lines = [f"id-{self.number}-{next(self._ids)}", operation, subscriber, self.topic]
        return "\n".join([*lines, rest] if rest else lines)


@pytest.fixture
def case(peers: TextPeers) -> Case:
    return Case(peers)


def state_of(administrator: Client, topic: str) -> object:
    subscriptions = [(each.subscriber, each.acked) for each in administrator.subscriptions(topic)]
    return subscriptions, [each.end_offset for each in administrator.topics() if each.name == topic]


@pytest.mark.parametrize("form", ["line", "lines"])
@pytest.mark.parametrize("operation", ["sub", "put", "get", "unsub"])
def test_everybody_sends_every_request(
    peers: TextPeers, administrator: Client, case: Case, form: str, operation: str
) -> None:
    before = state_of(administrator, case.topic)
    assert peers.failure(None, case.request(form, operation))[0] != zmq.EVENT_HANDSHAKE_FAILED_AUTH
    for who in (STRANGER, OTHER):
        answer = peers.ask(who, case.request(form, operation))
        assert answer.split()[:2] in (["ERROR", "FORBIDDEN"], ["ERROR", "TOPIC_UNKNOWN"]), answer
    assert state_of(administrator, case.topic) == before
    assert peers.ask(OWNER, case.request(form, operation)).startswith("OK")


def test_a_new_topic_needs_the_right_to_create_it(peers: TextPeers, administrator: Client) -> None:
    topic = f"orders.new{next(_numbers)}"
    for who in (STRANGER, OTHER):
        for request in (f"sub {topic} kitchen", f"put {topic} pizza", f"get {topic} kitchen"):
            assert peers.ask(who, request).startswith("ERROR")
    assert topic not in {each.name for each in administrator.topics()}
    assert peers.ask(OWNER, f"sub {topic} kitchen").startswith("OK")


def test_a_repeated_id_of_another_user_is_another_request(peers: TextPeers, case: Case) -> None:
    request = case.request("lines", "get")
    first = peers.ask(OWNER, request)
    assert first == "OK pizza"
    assert peers.ask(OTHER, request).startswith("ERROR")
    assert peers.ask(OWNER, request) == first


def test_keys_of_nobody_are_refused(peers: TextPeers) -> None:
    assert peers.failure(curve.generate(), "put orders.x pizza") == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
