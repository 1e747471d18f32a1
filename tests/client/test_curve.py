"""Clients of ZeroMQ with CURVE: the right keys, and all kinds of wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from oncemq.client import connect_aio
from oncemq.client.connect_aio import Connecting
from oncemq.client.credentials import NO_CREDENTIALS, Credentials
from oncemq.client.options import ConnectSettings
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.runtime.transport import open_transport
from oncemq.client.sync import Client, make_client
from oncemq.net import curve
from oncemq.protocol import errors
from tests.secured_broker import DEADLINE_S, SecuredBroker, client_keys, secured_broker, until


@pytest.fixture(scope="module")
def broker() -> Iterator[SecuredBroker]:
    allow = {"alice": ["all alice.#"], "bob": ["all bob.#"], "carol": ["all carol.#"]}
    with secured_broker(allow) as broker:
        yield broker


def settings_for(url: str, credentials: Credentials, **options: Any) -> ConnectSettings:
    return ConnectSettings(urls=[url], credentials=credentials, **options)


def refusal_of(url: str, credentials: Credentials) -> errors.OnceMQError:
    """Return the error of a client that would try for long."""
    with pytest.raises(errors.OnceMQError) as refused, connected(url, credentials, tries=1000):
        pass
    return refused.value


@contextmanager
def connected(url: str, credentials: Credentials, **options: Any) -> Iterator[Client]:
    settings = settings_for(url, credentials, **options)
    driver = ThreadDriver(settings.make_core(), open_transport(settings.urls, 0, settings.credentials))
    client = make_client(driver, settings)
    try:
        driver.run(client._connection.greet())
        yield client
    finally:
        client.close()


def test_a_client_with_the_right_keys_does_what_its_user_may(broker: SecuredBroker) -> None:
    with connected(broker.url, broker.credentials("alice")) as client:
        assert client.put("alice.orders", "one pizza", create=True).offset == 0
        with pytest.raises(errors.Forbidden):
            client.put("bob.orders", "one pizza", create=True)


def test_messages_of_any_size_pass(broker: SecuredBroker) -> None:
    values = [bytes([size % 251]) * size for size in (0, 1, 221, 222, 223, 65_536, 1_500_000)]
    with connected(broker.url, broker.credentials("alice")) as client:
        subscription = client.subscribe("alice.sizes", "kitchen")
        for value in values:
            client.put("alice.sizes", value)
        found = [subscription.get(timeout_s=DEADLINE_S) for _ in values]
    assert [message.value for message in found if message is not None] == values


def test_an_unknown_key_is_refused(broker: SecuredBroker) -> None:
    refusal = refusal_of(broker.url, Credentials(curve=client_keys(broker.server_keys)))
    assert isinstance(refusal, errors.Unauthenticated)
    assert "has refused the connection" in refusal.text


def test_a_client_without_keys_is_told_that_it_needs_them(broker: SecuredBroker) -> None:
    # The server may end the connection before the client has seen what it expects: then it is BrokerAway.
    assert "expects CURVE" in refusal_of(broker.url, NO_CREDENTIALS).text


def test_a_wrong_key_of_the_server_is_named_as_a_reason(broker: SecuredBroker) -> None:
    keys = msgspec.structs.replace(broker.keys["alice"], server=curve.generate().public)
    refusal = refusal_of(broker.url, Credentials(curve=keys))
    assert isinstance(refusal, errors.BrokerAway)
    assert "another key than `curve_server`" in refusal.text


def test_a_server_that_does_not_use_curve_is_named_as_a_reason() -> None:
    context: Any = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    refusal = refusal_of(f"tcp://127.0.0.1:{port}", Credentials(curve=client_keys(curve.generate())))
    assert "does not use CURVE" in refusal.text
    router.close(0)
    context.term()


def test_a_key_that_is_none_is_refused_without_being_shown(broker: SecuredBroker) -> None:
    keys = msgspec.structs.replace(broker.keys["alice"], secret="too short")
    with pytest.raises(errors.SettingInvalid, match="curve_secret is not a key") as refused:
        open_transport([broker.url], 0, Credentials(curve=keys))
    assert "too short" not in refused.value.text


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:5555", "ipc:///tmp/nothing"])
def test_a_token_can_not_be_used_with_zeromq(url: str) -> None:
    with pytest.raises(errors.SettingInvalid, match="use oncemq://"):
        open_transport([url], 0, Credentials(token="omq_x"))
    with pytest.raises(errors.SettingInvalid, match="use oncemq://"):
        open_transport([url], 0, Credentials(token_file="token"))


def test_a_revoked_key_ends_the_connection_and_waiting_calls(broker: SecuredBroker) -> None:
    with connected(broker.url, broker.credentials("carol"), tries=1000) as client:
        client.put("carol.orders", "one pizza", create=True)
        broker.revoke("carol")
        with pytest.raises(errors.Unauthenticated):
            client.put("carol.orders", "another one")
        # Not by a broker that is asked again and again.
        with pytest.raises(errors.Unauthenticated):
            client.put("carol.orders", "another one")
        broker.revoked.clear()
        broker.reload()
        assert client.put("carol.orders", "the last one").offset == 1


def test_tasks_get_the_same_errors(broker: SecuredBroker) -> None:
    async def run() -> None:
        stranger = settings_for(broker.url, Credentials(curve=client_keys(broker.server_keys)), tries=1000)
        with pytest.raises(errors.Unauthenticated, match="has refused"):
            await Connecting(stranger, connect_aio._connect)
        async with Connecting(settings_for(broker.url, broker.credentials("bob")), connect_aio._connect) as client:
            await client.put("bob.orders", "one pizza", create=True)

    asyncio.run(run())


def test_a_client_that_was_refused_does_not_ask_again_by_itself(broker: SecuredBroker) -> None:
    stranger = Credentials(curve=client_keys(broker.server_keys))
    transport: Any = open_transport([broker.url], 0, stranger)
    failed = broker.broker.counters["logins_failed"]
    until(lambda: transport.receive() is None and transport.refusal is not None, "the refusal")
    for _ in range(10):
        transport.send([b"request"])
        transport.reconnect()
        transport.wait(5)
        transport.receive()
    assert transport.descriptor == -1
    assert broker.broker.counters["logins_failed"] == failed + 1
    transport.close()
