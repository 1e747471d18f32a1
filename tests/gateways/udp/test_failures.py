"""Background tasks that fail: the peer is told, the failure is counted, and what can continue does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from examples.datagrams.peers import Publisher, Refused, Subscriber

from oncemq.testing.broker_process import BrokerProcess
from tests.gateways.hosts import TIMEOUT_S
from tests.gateways.udp.proxy import LossyProxy
from tests.gateways.udp.rig import GatewayThread, PlainClient, wait_until


class PlainHandle:
    """What uvloop returns for a timer that is due at once: it has no `when`."""

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.cancel = timer.cancel


class PlainHandleLoop(asyncio.SelectorEventLoop):
    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        timer = super().call_at(when, callback, *args, context=context)
        # asyncio's own coroutines know what its timers are.
        return timer if callback.__module__.startswith("asyncio") else PlainHandle(timer)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)


@pytest.fixture
def gateway(broker: BrokerProcess) -> Iterator[GatewayThread]:
    gateway = GatewayThread([broker.url])
    yield gateway
    gateway.stop()


def publish(address: tuple[str, int], topic: str, count: int) -> None:
    with closing(Publisher(address, f"publisher of {topic}")) as publisher:
        for number in range(count):
            publisher.put(topic, b"%d" % number, create=True)
        publisher.flush()


def fail(*_: object) -> None:
    raise RuntimeError("planted")


def test_messages_are_sent_again_on_a_loop_whose_timers_are_plain_handles(broker: BrokerProcess) -> None:
    gateway = GatewayThread([broker.url], name="eager", make_loop=PlainHandleLoop)
    proxy = LossyProxy(gateway.address, 1, loss=0.15, doubling=0.0, delay_s=0.005)
    try:
        publish(gateway.address, "eager", 1)
        with closing(Subscriber(proxy.address, "eager", "reader")) as subscriber:
            publish(gateway.address, "eager", 200)
            contents = [content for _, (_, content) in zip(range(200), subscriber.messages(TIMEOUT_S), strict=False)]
        assert contents == [b"%d" % number for number in range(200)]
        assert gateway.counter("bugs") == 0
    finally:
        proxy.close()
        gateway.stop()


def test_a_delivery_that_fails_ends_the_subscribers_session(
    gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(gateway.address, "failing", 1)
    with closing(Subscriber(gateway.address, "failing", "reader")) as subscriber:
        with monkeypatch.context() as patch:
            patch.setattr("oncemq.gateways.udp.extended.delivery.iterate_values", fail)
            publish(gateway.address, "failing", 2)
            with pytest.raises(Refused, match="BROKER_BUG"):
                next(subscriber.messages(TIMEOUT_S))
            assert gateway.counter("bugs") >= 1
        # The subscriber says hello again, and continues.
        subscriber.is_welcome = False
        assert next(subscriber.messages(TIMEOUT_S)) == (1, b"0")


def test_a_timer_that_fails_ends_the_subscribers_session(
    gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(gateway.address, "timed", 1)
    with closing(Subscriber(gateway.address, "timed", "reader")) as subscriber:
        monkeypatch.setattr("oncemq.gateways.udp.extended.send_window.SendWindow.due", fail)
        publish(gateway.address, "timed", 2)
        with pytest.raises(Refused, match="BROKER_BUG"):
            while True:
                subscriber.step(TIMEOUT_S)


def test_a_feed_of_plain_packets_that_fails_continues(gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(PlainClient(gateway.address)) as one:
        assert one.ask("1 unlucky") == "Acknowledged!"
        assert one.ask("2 unlucky") == "Subscribed to unlucky!"
        with monkeypatch.context() as patch:
            patch.setattr("oncemq.gateways.udp.plain.feed.verified_batches", fail)
            assert one.ask("1 unlucky 1") == "Acknowledged!"
            wait_until(lambda: gateway.counter("bugs") > 0, "the failure is counted")
        assert one.receive() == b"unlucky: 1"
