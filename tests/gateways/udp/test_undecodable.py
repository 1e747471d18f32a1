"""Stored batches that can't be decoded, as datagrams."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from examples.datagrams.peers import FROM_THE_EARLIEST, Refused, Subscriber

import oncemq
from oncemq.protocol.batch import encode_batch
from oncemq.protocol.commands import Put
from tests.client.test_undecodable import envelope, send
from tests.gateways.hosts import TIMEOUT_S
from tests.gateways.udp.rig import GatewayThread, PlainClient

MALFORMED = b"not a batch"
LATER_ENCODING = b"\x09" + encode_batch([b"x"])[1:]


@pytest.fixture
def url() -> str:
    return f"memory:{uuid.uuid4().hex}"


@pytest.fixture
def client(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[oncemq.Client]:
    """A client of a broker that stores everything, and has a topic."""
    monkeypatch.setattr("oncemq.broker.round.batch_problem", lambda *_: None)
    with oncemq.connect(url) as client:
        client.create_topic("orders", retain_ms=3_600_000)
        yield client


@pytest.fixture
def gateway(url: str) -> Iterator[GatewayThread]:
    gateway = GatewayThread([url])
    yield gateway
    gateway.stop()


def store(client: oncemq.Client, bad: bytes) -> None:
    send(client, Put("orders", envelope(bad)), bad)
    client.put("orders", b"behind")


def subscriber_of(gateway: GatewayThread) -> Subscriber:
    return Subscriber(gateway.address, "orders", "reader", position=FROM_THE_EARLIEST)


def test_a_malformed_batch_is_skipped_and_counted(
    client: oncemq.Client, gateway: GatewayThread, caplog: pytest.LogCaptureFixture
) -> None:
    store(client, MALFORMED)
    with closing(subscriber_of(gateway)) as subscriber:
        assert next(subscriber.messages(TIMEOUT_S)) == (1, b"behind")
    assert gateway.counter("batches_unreadable") == 1
    skipped = "offset 0 of 'orders' can't be decoded, and is skipped: "
    assert any(record.getMessage().startswith(skipped) for record in caplog.records)


def test_a_batch_of_a_later_encoding_ends_an_extended_delivery(client: oncemq.Client, gateway: GatewayThread) -> None:
    with closing(subscriber_of(gateway)) as subscriber, pytest.raises(Refused, match="UNSUPPORTED"):
        store(client, LATER_ENCODING)
        next(subscriber.messages(TIMEOUT_S))
    assert client.subscriptions("orders")[0].acked == 0


@pytest.mark.parametrize("bad", [MALFORMED, LATER_ENCODING], ids=["malformed", "later encoding"])
def test_plain_subscribers_get_what_follows(client: oncemq.Client, gateway: GatewayThread, bad: bytes) -> None:
    with closing(PlainClient(gateway.address)) as plain:
        assert plain.ask("2 orders") == "Subscribed to orders!"
        store(client, bad)
        assert plain.receive() == b"orders: behind"
    assert gateway.counter("batches_unreadable") == 1
