"""Every kind of datagram, as everybody: extended packets with a MAC, and plain ones."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from examples.datagrams.peers import (
    ACK,
    ASK,
    BYE,
    FROM_THE_EARLIEST,
    HELLO,
    PUT,
    Peer,
    Publisher,
    Refused,
    Subscriber,
    find_end,
)

from oncemq.client.credentials import Credentials, TlsSettings
from oncemq.client.sync import Client
from tests.acceptance.processes import DEADLINE_S, wait_until
from tests.auth.served import ServedBroker
from tests.auth.walk import ANONYMOUS, GATE, OTHER, OWNER, STRANGER
from tests.gateways.udp.rig import GatewayThread, PlainClient

_numbers = itertools.count(1)
#: How others are refused.
_FORBIDDEN = r"FORBIDDEN|TOPIC_UNKNOWN"


@pytest.fixture
def topic(administrator: Client) -> str:
    """A topic with one message."""
    name = f"orders.0udp{next(_numbers)}"
    administrator.create_topic(name, retain_ms=3_600_000)
    administrator.put(name, b"0")
    return name


def token_of(served: ServedBroker, who: str) -> str:
    return served.accounts.tokens.get(who, "")


def end_of(administrator: Client, topic: str) -> int:
    [found] = [each for each in administrator.topics() if each.name == topic]
    return found.end_offset


# Extended packets.


def ask(served: ServedBroker, who: str, topic: str) -> None:
    assert find_end(served.udp, topic, access_token=token_of(served, who)) == 1


def publish(served: ServedBroker, who: str, topic: str) -> None:
    with closing(Publisher(served.udp, "p", access_token=token_of(served, who))) as publisher:
        publisher.put(topic, b"x")
        publisher.flush()
        for code in publisher.refusals.values():
            raise Refused(code)


def create(served: ServedBroker, who: str, topic: str) -> None:
    with closing(Publisher(served.udp, "p", access_token=token_of(served, who))) as publisher:
        publisher.put(f"{topic}.new", b"x", create=True)
        publisher.flush()
        for code in publisher.refusals.values():
            raise Refused(code)


def subscribe(served: ServedBroker, who: str, topic: str) -> None:
    token = token_of(served, who)
    with closing(Subscriber(served.udp, topic, "s", position=FROM_THE_EARLIEST, access_token=token)) as subscriber:
        assert next(subscriber.messages(DEADLINE_S)) == (0, b"0")
        # An ack.
        subscriber.position = 1
        subscriber.finish()


@pytest.mark.parametrize("operation", [ask, publish, create, subscribe])
def test_everybody_sends_hellos_and_puts(
    served: ServedBroker,
    administrator: Client,
    topic: str,
    operation: Callable[[ServedBroker, str, str], None],
) -> None:
    before = {each.name for each in administrator.topics()}
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        operation(served, ANONYMOUS, topic)
    for who in (STRANGER, OTHER):
        with pytest.raises(Refused, match=_FORBIDDEN):
            operation(served, who, topic)
    assert end_of(administrator, topic) == 1
    assert {each.name for each in administrator.topics()} == before
    assert not administrator.subscriptions(topic)
    operation(served, OWNER, topic)


class Visitor(Peer):
    """Proves its address, and then sends packets in the name of others."""

    is_refused = False

    def welcome(self, position: int) -> None:
        pass

    def received(self, kind: int, body: bytes) -> None:
        pass

    def refused(self, number: int, code: str, text: str) -> None:
        self.is_refused = True

    def send_again(self) -> None:
        pass

    def greet(self) -> None:
        """Wait for an answer to a hello. Everything that was sent before has arrived then."""
        self.is_welcome = self.is_refused = False
        self.say_hello()
        self.wait(lambda: self.is_welcome or self.is_refused, DEADLINE_S)


def test_acks_and_byes_of_others_have_no_effect(served: ServedBroker, administrator: Client, topic: str) -> None:
    token = token_of(served, OWNER)
    subscriber = Subscriber(served.udp, topic, "s", position=FROM_THE_EARLIEST, access_token=token)
    publisher = Publisher(served.udp, "p", access_token=token)
    number = publisher.last_number + 1
    for who in (ANONYMOUS, STRANGER, OTHER):
        with closing(Visitor(served.udp, ASK, "", access_token=token_of(served, who))) as visitor:
            visitor.greet()
            visitor.send(ACK, struct.pack(">QQQ", subscriber.epoch, 1, 0))
            for epoch in (subscriber.epoch, publisher.epoch):
                visitor.send(BYE, struct.pack(">QB", epoch, 1))
            put = struct.pack(">QQBB", publisher.epoch, number, 0, len(topic)) + topic.encode() + b"forged"
            visitor.send(PUT, put)
            visitor.send(HELLO, b"")
            visitor.greet()
            assert visitor.is_refused == (who == ANONYMOUS)
    [found] = administrator.subscriptions(topic)
    assert found.acked == 0
    assert end_of(administrator, topic) == 1
    assert publisher.put(topic, b"1") == number
    publisher.flush()
    assert publisher.refusals == {}
    assert [*itertools.islice(subscriber.messages(DEADLINE_S), 2)] == [(0, b"0"), (1, b"1")]
    publisher.close()
    # The owner deletes it.
    subscriber.send(BYE, struct.pack(">QB", subscriber.epoch, 1))
    wait_until(lambda: not administrator.subscriptions(topic), "the subscription is deleted")
    subscriber.socket.close()


# Plain packets.


def plain_packets(topic: str) -> list[str]:
    return [f"0 {topic} x", f"1 {topic}", f"1 {topic} x", f"1 {topic}.new", f"2 {topic}", f"3 {topic}", "4 list"]


def test_plain_packets_are_refused(served: ServedBroker, administrator: Client, topic: str) -> None:
    with closing(PlainClient(served.udp)) as client:
        for packet in plain_packets(topic):
            assert client.ask(packet).startswith("Error UNAUTHENTICATED")
    assert end_of(administrator, topic) == 1
    assert f"{topic}.new" not in {each.name for each in administrator.topics()}


@pytest.fixture(params=[STRANGER, OTHER, OWNER])
def gateway_of_user(served: ServedBroker, request: pytest.FixtureRequest) -> Iterator[tuple[str, GatewayThread]]:
    """A gateway where everybody who sends plain packets is this user."""
    accounts = served.accounts
    shown = Credentials(token=accounts.tokens[GATE], tls=TlsSettings(ca=accounts.ca))
    name = f"udp{next(_numbers)}"
    gateway = GatewayThread([served.url], credentials=shown, plain_user=request.param, name=name)
    yield request.param, gateway
    gateway.stop()


def test_plain_packets_have_the_rights_of_a_user(
    gateway_of_user: tuple[str, GatewayThread], administrator: Client, topic: str
) -> None:
    who, gateway = gateway_of_user
    with closing(PlainClient(gateway.address)) as client:
        answers = [client.ask(packet) for packet in plain_packets(topic)]
    *done, listed = answers
    if who == OWNER:
        assert done == [
            "Acknowledged!",
            "Acknowledged!",
            "Acknowledged!",
            "Acknowledged!",
            f"Subscribed to {topic}!",
            "Unsubscribed!",
        ]
        assert topic in listed
        return
    assert all(answer.startswith("Error FORBIDDEN") or answer == "Topic does not exist." for answer in done), done
    assert topic not in listed
    assert end_of(administrator, topic) == 1
    assert not administrator.subscriptions(topic)
