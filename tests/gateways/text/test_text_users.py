"""Users of the text gateway: each request is done as the user of its connection, and nothing leaks to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from oncemq.protocol import errors
from tests.gateways.text.rig import GatewayThread, Req, dealing
from tests.secured_broker import DEADLINE_S, GATEWAY, SecuredBroker, client_keys, secured_broker, until, use_keys


@pytest.fixture(scope="module")
def broker() -> Iterator[SecuredBroker]:
    allow = {
        "alice": ["all shared.#", "all alice.#"],
        "bob": ["consume shared.#", "all bob.#"],
        "carol": ["all carol.#"],
    }
    with secured_broker(allow) as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway(broker: SecuredBroker) -> Iterator[GatewayThread]:
    gateway = GatewayThread(broker.url, credentials=broker.credentials(GATEWAY), curve=broker.server_keys)
    yield gateway
    gateway.stop()


@pytest.fixture
def alice(broker: SecuredBroker, gateway: GatewayThread) -> Req:
    return gateway.client(broker.keys["alice"])


@pytest.fixture
def bob(broker: SecuredBroker, gateway: GatewayThread) -> Req:
    return gateway.client(broker.keys["bob"])


def test_a_user_does_what_it_may(alice: Req) -> None:
    assert alice.ask("sub alice.orders kitchen") == "OK SUBSCRIBED"
    assert alice.ask("put alice.orders one pizza") == "OK STORED 1"
    assert alice.ask("get alice.orders kitchen") == "OK one pizza"
    assert alice.lines("1", "put", "till", "alice.orders", "two") == "OK STORED 1"
    assert alice.lines("2", "get", "kitchen", "alice.orders") == "OK two"
    assert alice.ask("unsub alice.orders kitchen") == "OK UNSUBSCRIBED"


def test_a_user_without_the_right_is_refused(alice: Req, bob: Req) -> None:
    assert alice.ask("sub shared.news kitchen") == "OK SUBSCRIBED"
    assert bob.code("put shared.news nothing") == "FORBIDDEN"
    assert bob.code_of_lines("1", "put", "till", "shared.news", "nothing") == "FORBIDDEN"
    assert bob.code("sub alice.news bar") == "FORBIDDEN"
    assert bob.code("get alice.news bar") == "FORBIDDEN"
    assert bob.ask("sub shared.news bar") == "OK SUBSCRIBED"
    assert alice.ask("put shared.news hello") == "OK STORED 2"
    assert bob.ask("get shared.news bar") == "OK hello"


def test_a_subscriber_belongs_to_its_user(alice: Req, bob: Req) -> None:
    alice.ask("sub shared.own kitchen")
    alice.ask("put shared.own one")
    alice.ask("put shared.own two")
    assert alice.ask("get shared.own kitchen") == "OK one"
    for request in ("sub", "get", "unsub"):
        assert bob.code(f"{request} shared.own kitchen") == "FORBIDDEN"
        assert bob.code_of_lines(f"{request}-1", request, "kitchen", "shared.own") == "FORBIDDEN"
    # Bob has confirmed nothing, and has taken nothing over.
    assert alice.ask("get shared.own kitchen") == "OK two"


def test_the_same_ids_and_names_of_two_users_have_nothing_in_common(alice: Req, bob: Req) -> None:
    for name, client in (("alice", alice), ("bob", bob)):
        topic = f"{name}.ids"
        assert client.lines("s", "sub", "kitchen", topic) == "OK SUBSCRIBED"
        assert client.lines("p", "put", "till", topic, f"for {name}") == "OK STORED 1"
        assert client.lines("g", "get", "kitchen", topic) == f"OK for {name}"
        assert client.lines("g", "get", "kitchen", topic) == f"OK for {name}", "it is the same request"
    for name, client in (("alice", alice), ("bob", bob)):
        assert client.lines("u", "unsub", "kitchen", f"{name}.ids") == "OK UNSUBSCRIBED"


def test_what_is_remembered_of_a_user_is_not_used_for_another(
    broker: SecuredBroker, gateway: GatewayThread, alice: Req, bob: Req
) -> None:
    # The gateway has opened it for alice, and has the message at hand.
    alice.ask("sub shared.cache kitchen")
    alice.ask("put shared.cache secret")
    assert alice.lines("1", "get", "kitchen", "shared.cache") == "OK secret"
    # The same id would get the same message again.
    assert bob.code_of_lines("1", "get", "kitchen", "shared.cache") == "FORBIDDEN"
    servers = gateway.gateway._servers._servers
    mine, others = (servers[f"{user}/curve={broker.keys[user].public}"] for user in ("alice", "bob"))
    assert ("shared.cache", "kitchen") in mine._subscriptions.opened
    assert ("shared.cache", "kitchen") not in others._subscriptions.opened


def test_a_get_in_progress_is_shared_with_nobody_else(
    broker: SecuredBroker, gateway: GatewayThread, alice: Req
) -> None:
    alice.ask("sub shared.unnamed kitchen")
    alice.ask("put shared.unnamed secret")
    # Both send the same request at the same time, many times.
    with (
        dealing(gateway.url, keys=broker.keys["alice"]) as mine,
        dealing(gateway.url, keys=broker.keys["bob"]) as other,
    ):
        for _ in range(50):
            mine.send(b"get shared.unnamed kitchen")
            other.send(b"get shared.unnamed kitchen")
        replies = [other.recv() for _ in range(50)]
    assert {reply.split(b" ")[1] for reply in replies} == {b"FORBIDDEN"}


def test_strangers_get_no_answer(broker: SecuredBroker, gateway: GatewayThread) -> None:
    for keys in (None, client_keys(broker.server_keys)):
        socket: Any = zmq.Context.instance().socket(zmq.REQ)
        socket.linger = 0
        if keys is not None:
            use_keys(socket, keys)
        events = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        news = socket.get_monitor_socket(events | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        socket.connect(gateway.url)
        socket.send(b"sub shared.news stranger")
        assert news.poll(int(DEADLINE_S * 1000)), "it is told that it is not accepted"
        assert not socket.poll(0)
        socket.disable_monitor()
        socket.close()


def test_a_client_that_chooses_its_routing_id_is_disconnected(broker: SecuredBroker, gateway: GatewayThread) -> None:
    with dealing(gateway.url, name=b"worker", keys=broker.keys["alice"]) as dealer:
        dealer.send(b"put shared.named x")
        until(lambda: gateway.gateway._peers.counters["peers_cut_named"], "the disconnection")
        assert not dealer.poll(0)


def test_a_revoked_key_can_do_nothing_any_more(broker: SecuredBroker, gateway: GatewayThread) -> None:
    carol = gateway.client(broker.keys["carol"])
    assert carol.ask("sub carol.orders kitchen") == "OK SUBSCRIBED"
    broker.revoke("carol")
    # The connection is still there.
    assert carol.code("put carol.orders x") == "UNAUTHENTICATED"
    assert carol.code_of_lines("1", "put", "till", "carol.orders", "x") == "UNAUTHENTICATED"
    assert carol.code("get carol.orders kitchen") == "UNAUTHENTICATED"


def test_while_the_broker_is_away_clients_wait_for_their_login(broker: SecuredBroker) -> None:
    nowhere = "tcp://127.0.0.1:9"
    gateway = GatewayThread(nowhere, credentials=broker.credentials(GATEWAY), curve=broker.server_keys)
    client = gateway.client(broker.keys["alice"])
    client._socket.send(b"put shared.news x")
    # It is neither accepted nor refused for good.
    news = client._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    assert news.poll(int(DEADLINE_S * 1000))
    assert int.from_bytes(news.recv_multipart()[0][:2], "little") == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    client._socket.disable_monitor()
    gateway.stop()


def test_a_gateway_without_keys_allows_nothing_if_the_broker_has_users(broker: SecuredBroker) -> None:
    gateway = GatewayThread(broker.url, credentials=broker.credentials(GATEWAY))
    client = gateway.client()
    for request in ("sub shared.news kitchen", "put shared.news x", "get shared.news kitchen"):
        assert client.code(request) == errors.Forbidden.code
    gateway.stop()
