"""Gateway and broker are killed: reliable publishers and subscribers lose and duplicate nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import wait_until
from tests.gateways.push.peers import Asker, Callee, Listener, Publisher, Subscriber
from tests.gateways.push.processes import GatewayProcess


@pytest.fixture
def gateway(broker_process: BrokerProcess) -> Iterator[GatewayProcess]:
    broker_process.start()
    gateway = GatewayProcess(broker_process.url)
    gateway.start()
    yield gateway
    gateway.kill()


def test_every_message_is_processed_once_and_in_order_through_kills(
    broker_process: BrokerProcess, gateway: GatewayProcess
) -> None:
    settings = gateway.settings
    subscribers = [Subscriber(name, "orders", settings.feed, settings.acks) for name in ("kitchen", "billing")]
    till = Asker(settings.acks)
    contents = [b"order %d" % number for number in range(60)]
    for number, content in enumerate(contents):
        if number in (15, 45):
            gateway.restart()
        if number == 30:
            broker_process.kill()
            broker_process.start(wait=False)
        answer = till.insist("publish", content, origin="till", topic="orders", id=f"m{number}")
        assert answer["offset"] == number, answer
    for subscriber in subscribers:
        wait_until(lambda s=subscriber: len(s.processed) >= len(contents), "all came")  # type: ignore[misc]
        assert subscriber.processed == contents
    with broker_process.connect() as client:
        wait_until(lambda: not any(each.lag for each in client.subscriptions("orders")), "all is acknowledged")
    for subscriber in subscribers:
        subscriber.close()
    till.close()


def test_what_arrived_while_the_broker_was_away_is_stored_once_and_in_order(
    broker_process: BrokerProcess, gateway: GatewayProcess
) -> None:
    with broker_process.connect() as client:
        client.create_topic("orders", retain_ms=3_600_000)
    publisher = Publisher(gateway.settings.publish, gateway.settings.feed)
    contents = [b"%d" % number for number in range(400)]
    for number, content in enumerate(contents):
        if number == 100:
            broker_process.kill()
        publisher.send(b"orders", content)
    broker_process.start()
    with broker_process.connect() as client:
        wait_until(lambda: _end_of(broker_process) >= len(contents), "all are stored")
        assert [message.value for message in client.read("orders")] == contents
    publisher.close()


def test_a_killed_gateway_leaves_no_subscription_that_nobody_wants(
    broker_process: BrokerProcess, gateway: GatewayProcess
) -> None:
    callee = Callee("kitchen")
    asker = Asker(gateway.settings.acks)
    asker.ask("hello", subscriber="kitchen", topics=["kept"], address=callee.address)
    listener = Listener(gateway.settings.feed, b"left\0")
    listener.heartbeat()
    gateway.kill()
    listener.close()
    with broker_process.connect() as client:
        assert {topic.name for topic in client.topics()} == {"kept", "left"}
        client.put("kept", b"x")
        gateway.start()
        wait_until(lambda: [topic.name for topic in client.topics()] == ["kept"], "what nobody wants has ended")
        wait_until(lambda: callee.offsets == [0], "who is reliable goes on")
    assert gateway.stop() == 0
    callee.close()
    asker.close()


def _end_of(broker: BrokerProcess) -> int:
    with broker.connect() as client:
        return next(topic.end_offset for topic in client.topics() if topic.name == "orders")


def test_a_message_that_is_too_large_does_not_hold_up_the_others(
    broker_process: BrokerProcess, gateway: GatewayProcess
) -> None:
    with broker_process.connect() as client:
        client.create_topic("orders", retain_ms=3_600_000)
    publisher = Publisher(gateway.settings.publish, gateway.settings.feed)
    contents = [b"small", bytes(200_000), bytes(300_000), bytes(100_000), bytes(100_000), b"last"]
    for content in contents:
        publisher.send(b"orders", content)
    wait_until(lambda: _end_of(broker_process) == 5, "all but one are stored")
    with broker_process.connect() as client:
        stored = [len(message.value) for message in client.read("orders")]
    assert stored == [5, 200_000, 100_000, 100_000, 4]
    publisher.close()
