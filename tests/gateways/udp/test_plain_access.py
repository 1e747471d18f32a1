"""Who may send plain packets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from examples.datagrams.peers import Publisher

from oncemq.gateways.udp.settings import UdpSettings
from oncemq.testing.broker_process import BrokerProcess
from tests.gateways.udp.rig import GatewayThread, PlainClient, wait_until
from tests.gateways.udp.users import BrokerWithUsers


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWithUsers]:
    broker = BrokerWithUsers(tmp_path_factory.mktemp("users"))
    yield broker
    broker.stop()


@pytest.mark.parametrize(
    ("plain", "listen", "is_served"),
    [
        ("auto", "127.0.0.1:5560", True),
        ("auto", "[::1]:5560", True),
        ("auto", "0.0.0.0:5560", False),
        ("auto", "192.0.2.1:5560", False),
        ("true", "0.0.0.0:5560", True),
        ("false", "127.0.0.1:5560", False),
    ],
)
def test_plain_packets_are_served_on_loopback_or_if_a_setting_says_so(
    plain: Literal["auto", "true", "false"], listen: str, is_served: bool
) -> None:
    assert UdpSettings(plain=plain, listen=listen).serves_plain == is_served


def test_where_plain_packets_are_off_extended_ones_are_served(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = GatewayThread([broker.url], is_plain=False, plain="false")
    try:
        with closing(PlainClient(gateway.address)) as client:
            assert client.ask("1 off").startswith("Error FORBIDDEN: plain packets are off here")
            assert client.ask("2 off").startswith("Error FORBIDDEN")
            # A program that answers everything gets no answer.
            client.send("Error FORBIDDEN")
            client.send(b"1 " + bytes(65_505))
            assert client.ask("4 list").startswith("Error FORBIDDEN")
        with closing(Publisher(gateway.address, "on")) as publisher:
            publisher.put("on", b"1", create=True)
            publisher.flush()
        assert gateway.counter("unauthenticated") == 5
        assert caplog.text.count("plain packets are refused") == 1
    finally:
        gateway.stop()


def test_a_broker_with_users_refuses_plain_packets(users: BrokerWithUsers, caplog: pytest.LogCaptureFixture) -> None:
    gateway = GatewayThread([users.url], is_plain=False)
    try:
        wait_until(lambda: not gateway.gateway._callers.is_open, "it is known that there are users")
        with closing(PlainClient(gateway.address)) as client:
            for _ in range(3):
                assert client.ask("1 topic content").startswith("Error UNAUTHENTICATED: plain packets have no")
        assert caplog.text.count("plain packets are refused") == 1
        assert "topic" not in users.broker.engine.state.topics
    finally:
        gateway.stop()


def test_a_refusal_is_not_longer_than_the_packet_that_anybody_may_have_sent(users: BrokerWithUsers) -> None:
    gateway = GatewayThread([users.url], is_plain=False, loopback_is_validated=False)
    try:
        wait_until(lambda: not gateway.gateway._callers.is_open, "it is known that there are users")
        with closing(PlainClient(gateway.address)) as client:
            client.send("4 list")
            client.send("1 topic a longer content")
            assert client.receive() == b"Error UNAUTHENTICATED"
            client.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.receive()
        assert gateway.counter("unauthenticated") == 2
    finally:
        gateway.stop()


def test_refusals_are_not_sent_often(users: BrokerWithUsers) -> None:
    gateway = GatewayThread([users.url], is_plain=False)
    try:
        wait_until(lambda: not gateway.gateway._callers.is_open, "it is known that there are users")
        with closing(PlainClient(gateway.address)) as client:
            while gateway.counter("unauthenticated") - gateway.counter("packets_out") < 100:
                client.send("1 topic content")
    finally:
        gateway.stop()


def test_plain_packets_are_done_by_the_user_of_the_setting(users: BrokerWithUsers) -> None:
    gateway = GatewayThread([users.url], plain_user="visitor")
    with closing(Publisher(gateway.address, "p", access_token=users.token("alice"))) as publisher:
        publisher.put("private", b"1", create=True)
        publisher.flush()
    client = PlainClient(gateway.address)
    assert client.ask("1 public.board") == "Acknowledged!"
    assert client.ask("4 list") == "[public.board]"
    assert client.ask("1 private x").startswith("Error FORBIDDEN: user 'visitor' may not write 'private'")
    assert client.ask("1 secret x").startswith("Error FORBIDDEN")
    assert client.ask("2 private").startswith("Error FORBIDDEN")
    assert client.ask("2 public.board") == "Subscribed to public.board!"
    owners = users.broker.engine.state.owners
    assert owners.get("subscription", "public.board", "udp/plain") == "visitor"
    gateway.stop()
    # The subscribers are found again.
    gateway = GatewayThread([users.url], plain_user="visitor", listen=gateway.settings.listen)
    try:
        with closing(PlainClient(gateway.address)) as other:
            assert other.ask("1 public.board hello") == "Acknowledged!"
        assert client.receive() == b"public.board: hello"
        assert client.ask("3 public.board") == "Unsubscribed!"
        assert client.ask("3 public.board") == "You are not currently subscribed to this topic."
    finally:
        client.close()
        gateway.stop()


def test_a_setting_that_names_nobody_is_an_error_of_each_packet(
    users: BrokerWithUsers, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = GatewayThread([users.url], is_plain=False, plain_user="nobody")
    try:
        wait_until(lambda: not gateway.gateway._callers.is_open, "it is known that there are users")
        with closing(PlainClient(gateway.address)) as client:
            wait_until(lambda: "no user 'nobody'" in client.ask("4 list"), "it is refused")
        assert caplog.text.count("plain packets are refused: the broker has no user 'nobody'") == 1
    finally:
        gateway.stop()


def test_plain_subscribers_from_before_there_were_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.gateways.udp.callers.KNOWN_MS", 100)
    monkeypatch.setattr("oncemq.gateways.udp.plain.feed._FORBIDDEN_PAUSE_S", 0.1)
    users = BrokerWithUsers(tmp_path, has_users=False)
    gateway = GatewayThread([users.url], plain_user="visitor")
    client, other = PlainClient(gateway.address), PlainClient(gateway.address)
    try:
        assert client.ask("1 public.old") == "Acknowledged!"
        assert client.ask("2 public.old") == "Subscribed to public.old!"
        users.reload()
        wait_until(lambda: other.ask("1 public.old first") == "Acknowledged!", "the user logs in")
        assert client.receive() == b"public.old: first"
        gateway.stop()
        gateway = GatewayThread([users.url], plain_user="visitor", listen=gateway.settings.listen)
        assert other.ask("1 public.old second") == "Acknowledged!"
        assert client.receive() == b"public.old: second"
        assert users.broker.engine.state.owners.get("subscription", "public.old", "udp/plain") == "visitor"
    finally:
        client.close()
        other.close()
        gateway.stop()
        users.stop()
