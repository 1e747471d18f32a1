"""Hostile peers: the gateway's memory is bounded, and others are served."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from examples.datagrams.peers import FROM_THE_EARLIEST, Publisher, Subscriber

from oncemq.gateways.subscription import OpenSubscription
from oncemq.gateways.udp.extended.delivery import Delivery
from oncemq.gateways.udp.settings import WINDOW
from oncemq.testing.broker_process import BrokerProcess
from tests.gateways.hosts import TIMEOUT_S
from tests.gateways.udp.rig import GatewayProcess, GatewayThread, note_gets, wait_until
from tests.hostile import udp_peers

_MEMORY_BYTES_MAX = 100 * 1024 * 1024


@pytest.fixture
def gateway(broker: BrokerProcess) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess([broker.url])
    gateway.start()
    yield gateway
    gateway.kill()


def serve_somebody(gateway: tuple[str, int], name: str) -> None:
    """Another publisher and subscriber get through."""
    with closing(Publisher(gateway, name, timeout_s=TIMEOUT_S)) as publisher:
        publisher.put(name, b"0", create=True)
        publisher.flush()
        with closing(Subscriber(gateway, name, "honest", timeout_s=TIMEOUT_S)) as subscriber:
            for number in range(20):
                publisher.put(name, b"%d" % number)
            publisher.flush()
            got = [content for _, (_, content) in zip(range(20), subscriber.messages(TIMEOUT_S), strict=False)]
            assert got == [b"%d" % number for number in range(20)]


def test_a_flood_from_many_ports_takes_bounded_memory(gateway: GatewayProcess) -> None:
    before = gateway.memory_bytes
    flood = threading.Thread(target=udp_peers.flood, args=(gateway.address, 50, 3000))
    flood.start()
    serve_somebody(gateway.address, "beside the flood")
    flood.join()
    assert gateway.memory_bytes - before < _MEMORY_BYTES_MAX


def test_puts_that_wait_for_a_missing_one_take_bounded_memory(gateway: GatewayProcess) -> None:
    before = gateway.memory_bytes
    # More than twice the bound.
    udp_peers.withhold_first_put(gateway.address, 60, 63)
    serve_somebody(gateway.address, "beside withheld puts")
    assert gateway.memory_bytes - before < _MEMORY_BYTES_MAX


def test_subscribers_that_ack_nothing_hold_bounded_memory(broker: BrokerProcess, gateway: GatewayProcess) -> None:
    with broker.connect(batch_bytes=3_500_000, batch_messages=4000, linger_ms=1000) as client:
        client.create_topic("bulky", retain_ms=3_600_000)
        for _ in range(3000):
            client.put_nowait("bulky", bytes(1000))
        client.flush()
    before = gateway.memory_bytes
    assert udp_peers.ack_nothing(gateway.address, "bulky", 60, 0.5) == 60
    serve_somebody(gateway.address, "beside mute subscribers")
    assert gateway.memory_bytes - before < _MEMORY_BYTES_MAX


def test_what_is_held_for_a_subscriber_that_acks_nothing_is_dropped_and_fetched_again(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemq.gateways.udp.extended.delivery._HOLD_S", 0.01)
    monkeypatch.setattr("oncemq.gateways.udp.context.HELD_BYTES_FREE", 0)
    with broker.connect() as client:
        client.create_topic("held", retain_ms=3_600_000)
        client.put_many("held", [b"%d" % number for number in range(500)])
    positions = note_gets(monkeypatch)
    gateway = GatewayThread([broker.url], name="holding")
    try:
        with closing(Subscriber(gateway.address, "held", "slow", position=FROM_THE_EARLIEST)) as subscriber:
            wait_until(lambda: gateway.counter("messages_out") > 0, "a message is sent")
            # Nothing is acked before the rest is dropped.
            wait_until(lambda: gateway.gateway._context._held_bytes == 0, "nothing is held")
            got = [int(content) for _, (_, content) in zip(range(500), subscriber.messages(TIMEOUT_S), strict=False)]
        assert got == list(range(500))
        # They are one batch.
        assert any(0 < position < 500 for position in positions)
        wait_until(lambda: gateway.gateway._context._held_bytes == 0, "nothing is held")
    finally:
        gateway.stop()


def store_batch(broker: BrokerProcess, topic: str, count: int) -> None:
    with broker.connect() as client:
        client.create_topic(topic, retain_ms=3_600_000)
        client.put_many(topic, [b"%d" % number for number in range(count)])


def test_a_subscriber_with_a_full_window_delays_no_other(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemq.gateways.udp.extended.delivery._HOLD_S", 10 * TIMEOUT_S)
    monkeypatch.setattr("oncemq.gateways.udp.extended.delivery._HOLD_TOTAL_S", 10 * TIMEOUT_S)
    monkeypatch.setattr("oncemq.gateways.udp.context.FETCHES_MAX", 1)
    store_batch(broker, "backlog", 500)
    gateway = GatewayThread([broker.url], name="patient")
    try:
        with closing(Subscriber(gateway.address, "backlog", "slow", position=FROM_THE_EARLIEST)):
            wait_until(lambda: gateway.counter("messages_out") == WINDOW, "the window is full")
            serve_somebody(gateway.address, "beside a full window")
    finally:
        gateway.stop()


@pytest.mark.parametrize("limit", ["_HOLD_S", "_HOLD_TOTAL_S"])
def test_a_slow_subscriber_has_its_batch_fetched_once_for_many_messages(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"oncemq.gateways.udp.extended.delivery.{limit}", 0.0)
    fetches = 0
    get = OpenSubscription.get

    async def note(self: OpenSubscription, position: int, bytes_max: int, wait_ms: int = 0, ack: int = -1) -> Any:
        nonlocal fetches
        fetches += wait_ms == 0
        return await get(self, position, bytes_max, wait_ms, ack)

    monkeypatch.setattr(OpenSubscription, "get", note)
    store_batch(broker, f"slowly {limit}", 320)
    gateway = GatewayThread([broker.url], name="slowly")
    try:
        with closing(Subscriber(gateway.address, f"slowly {limit}", "slow", position=FROM_THE_EARLIEST)) as subscriber:
            for number in range(320):
                subscriber.wait(lambda number=number: subscriber._next > number, TIMEOUT_S)  # type: ignore[misc]
                subscriber.position = number + 1
                subscriber.finish()
        assert 1 < fetches <= 320 // (WINDOW // 2)
    finally:
        gateway.stop()


def test_one_source_leaves_room_for_others(broker: BrokerProcess) -> None:
    gateway = GatewayThread([broker.url], name="roomy", peers_max=40, plain_subscriptions_max=40)
    try:
        assert udp_peers.claim_names(gateway.address, 40) == 16
        assert udp_peers.subscribe_from_one_port(gateway.address, 20) == 16
        serve_somebody(gateway.address, "beside a claimer")
    finally:
        gateway.stop()


def test_a_peer_that_leaves_or_moves_makes_room_for_others_of_its_source(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All ports of a remote host are one source.
    monkeypatch.setattr("oncemq.gateways.udp.tokens.is_loopback", lambda _: False)
    gateway = GatewayThread([broker.url], name="moving", peers_max=40)
    server, names = gateway.gateway._extended, itertools.count()
    with ExitStack() as opened:
        opened.callback(gateway.stop)
        peer = udp_peers.HostilePeer(gateway.address)
        opened.callback(peer.socket.close)

        def is_accepted() -> bool:
            return bool(peer.hello(1, f"newcomer {next(names)}"))

        publishers = [opened.enter_context(closing(Publisher(gateway.address, f"mover {n}"))) for n in range(16)]
        assert not is_accepted()
        publishers.pop().close()
        wait_until(lambda: len(server.peers) == 15, "it has left")
        assert [is_accepted(), is_accepted()] == [True, False]
        mover = publishers.pop()
        mover.socket.close()
        mover.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        mover.socket.bind(("127.0.0.2", 0))
        mover.socket.connect(gateway.address)
        mover.socket.setblocking(False)
        mover.put("moving", b"1", create=True)
        mover.flush()
        assert [is_accepted(), is_accepted()] == [True, False]
    assert not server.peers._source_counts


@pytest.mark.parametrize("turns", range(4))
def test_a_delivery_that_is_cancelled_when_an_ack_arrives_ends(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr("oncemq.gateways.udp.extended.delivery._HOLD_S", 10 * TIMEOUT_S)
    monkeypatch.setattr("oncemq.gateways.udp.extended.delivery._HOLD_TOTAL_S", 10 * TIMEOUT_S)
    topic = f"cancelled {turns}"
    store_batch(broker, topic, 500)
    gateway = GatewayThread([broker.url], name="cancelling")
    try:
        with closing(Subscriber(gateway.address, topic, "slow", position=FROM_THE_EARLIEST)):
            wait_until(lambda: gateway.counter("messages_out") == WINDOW, "the window is full")
            [delivery] = gateway.gateway._extended.peers
            assert isinstance(delivery, Delivery)

            async def cancel() -> None:
                delivery._has_space.set()
                for _ in range(turns):
                    await asyncio.sleep(0)
                delivery._task.cancel()

            gateway._thread.call(cancel())
            wait_until(delivery._task.done, "it ends")
    finally:
        gateway.stop()
