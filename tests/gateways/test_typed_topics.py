"""Values that other protocols put to a topic with a schema are checked by their gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import oncemq
from oncemq import errors
from oncemq.client.gateway_api import Pending, make_put
from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.publishers.intake import Intake
from oncemq.protocol.commands import Keyed
from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker
from tests.gateways.text.rig import GatewayThread
from tests.gateways.udp.rig import GatewayThread as UdpThread
from tests.gateways.udp.rig import PlainClient, wait_until

GOOD, BAD = b'{"id": 1}', b'{"id": "x"}'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = ForkedBroker(tmp_path_factory.mktemp("broker") / "data")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[oncemq.Client]:
    with broker.connect() as client:
        client.create_topic("orders", retain_ms=10**9)
        client.put_schema("orders", "id: int64 not null")
        yield client
        client.delete_topic("orders")


def _stored(client: oncemq.Client) -> list[tuple[bytes, int]]:
    return [(message.value, message.schema_version) for message in client.read("orders", "earliest")]


def test_a_caller_s_bad_value_fails_no_other_caller(broker: BrokerProcess, client: oncemq.Client) -> None:
    async def put() -> list[object]:
        link = Link([broker.url], label="test")
        try:
            first = await asyncio.gather(*(link.put("orders", v) for v in (GOOD, BAD, GOOD)), return_exceptions=True)
            second = await asyncio.gather(*(link.put("orders", v) for v in (BAD, GOOD)), return_exceptions=True)
            return [*first, *second]
        finally:
            link.close()

    found = asyncio.run(put())
    assert [isinstance(each, errors.SchemaMismatch) for each in found] == [False, True, False, True, False]
    assert _stored(client) == [(GOOD, 1)] * 3


def test_a_keyed_put_claims_the_lowest_version_that_it_matches(broker: BrokerProcess, client: oncemq.Client) -> None:
    async def put(value: bytes, key: str) -> object:
        link = Link([broker.url], label="test")
        try:
            operation, payload = make_put("orders", False, [value])
            return (await link.ask(Keyed("test", key, operation), payload))[0]
        finally:
            link.close()

    first = asyncio.run(put(GOOD, "k"))
    client.put_schema("orders", "id: int64 not null, name: string")
    assert asyncio.run(put(GOOD, "k")) == first
    asyncio.run(put(b'{"id": 2, "name": "x"}', "other"))
    assert [version for _, version in _stored(client)] == [1, 2]
    with pytest.raises(errors.SchemaMismatch):
        asyncio.run(put(BAD, "third"))


async def _publish(intake: Intake, *values: bytes) -> None:
    for value in values:
        intake.add([b"orders", value])
    intake.flush()
    async with asyncio.timeout(30):
        while not intake.is_empty:
            await asyncio.sleep(0.01)


def test_the_intake_of_publishers_drops_only_what_does_not_match(broker: BrokerProcess, client: oncemq.Client) -> None:
    counters = Counters()

    async def publish() -> None:
        intake = Intake([broker.url], counters, buffer_bytes_max=2**20)
        await _publish(intake, GOOD, BAD, GOOD)
        intake.close()

    asyncio.run(publish())
    assert (counters["publish_stored"], counters["publish_dropped"]) == (2, 1)
    assert _stored(client) == [(GOOD, 1)] * 2


def test_the_intake_of_publishers_finds_a_new_version_when_a_value_needs_it(
    broker: BrokerProcess, client: oncemq.Client
) -> None:
    counters = Counters()
    newer = b'{"id": 2, "name": "x"}'

    async def publish() -> None:
        intake = Intake([broker.url], counters, buffer_bytes_max=2**20)
        await _publish(intake, GOOD, BAD)
        await asyncio.to_thread(client.put_schema, "orders", "id: int64 not null, name: string")
        await _publish(intake, newer, BAD, newer)
        intake.close()

    asyncio.run(publish())
    assert (counters["publish_stored"], counters["publish_dropped"]) == (3, 2)
    assert _stored(client) == [(GOOD, 1), (newer, 2), (newer, 2)]


def test_the_intake_of_publishers_drops_nothing_when_a_lookup_fails(
    broker: BrokerProcess, client: oncemq.Client
) -> None:
    counters = Counters()

    async def publish() -> None:
        intake = Intake([broker.url], counters, buffer_bytes_max=2**20)
        core = intake._session.driver().core
        ask = core.ask

        def fail_once(*_arguments: Any, **_options: Any) -> Pending:
            core.ask = ask  # type: ignore[method-assign]
            pending = Pending(0.0)
            pending.fail(errors.BrokerAway("at this moment"))
            return pending

        core.ask = fail_once  # type: ignore[method-assign]
        await _publish(intake, GOOD)
        intake.close()

    asyncio.run(publish())
    assert (counters["publish_stored"], counters["publish_dropped"]) == (1, 0)


def test_datagrams_are_checked(broker: BrokerProcess, client: oncemq.Client) -> None:
    gateway = UdpThread([broker.url])
    try:
        with closing(PlainClient(gateway.address)) as peer:
            for value in (BAD, GOOD):
                peer.send(b"0 orders " + value)
            wait_until(lambda: _stored(client) == [(GOOD, 1)])
    finally:
        gateway.stop()


def test_lines_of_text_are_checked() -> None:
    gateway = GatewayThread()
    try:
        peer = gateway.client()
        peer.ask("sub orders alice")
        with oncemq.connect(gateway.broker) as client:
            client.put_schema("orders", "id: int64 not null")
        assert peer.ask("put orders " + GOOD.decode()) == "OK STORED 1"
        assert peer.ask("put orders " + BAD.decode()).startswith("ERROR SCHEMA_MISMATCH")
    finally:
        gateway.stop()
