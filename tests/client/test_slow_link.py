"""A large request or reply over a slow link takes as long as it takes, and is transferred once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncemq
import oncemq.aio
from oncemq.testing.broker_process import BrokerProcess
from tests.client.slow_link import SlowLink
from tests.transports import EACH_TRANSPORT

pytestmark = EACH_TRANSPORT

#: Ten times as long on the link as a client waits for an answer with these options.
_VALUE = bytes(range(256)) * 1200
_BYTES_PER_S = 300_000
_TIMEOUT_S = 0.1


@pytest.fixture
def link(oncemq_broker: BrokerProcess) -> Iterator[SlowLink]:
    with oncemq_broker.connect() as client:
        client.create_topic("t", retain_ms=3_600_000)
    link = SlowLink(oncemq_broker.url, _BYTES_PER_S)
    yield link
    link.close()


def test_a_large_put_over_a_slow_link_is_sent_once(link: SlowLink) -> None:
    with oncemq.connect(link.url, timeout_s=_TIMEOUT_S, tries=2) as client:
        assert client.put("t", _VALUE).offset == 0
        assert client.put("t", b"next").offset == 1
    assert link.sent_bytes < 1.1 * len(_VALUE)


def test_a_large_put_from_an_outbox_is_sent_once(link: SlowLink, tmp_path: Path) -> None:
    with oncemq.connect(link.url, outbox=tmp_path / "outbox", timeout_s=_TIMEOUT_S, tries=2) as client:
        client.put("t", _VALUE)
        client.flush(timeout_s=30)
    assert link.sent_bytes < 1.1 * len(_VALUE)


def test_a_large_reply_over_a_slow_link_arrives(link: SlowLink, oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect() as fast:
        fast.put("t", _VALUE)
    with oncemq.connect(link.url, timeout_s=_TIMEOUT_S, tries=2) as client:
        [message] = client.read("t", start="earliest")
        assert message.value == _VALUE


def test_a_subscription_over_a_slow_link_gets_large_messages(link: SlowLink, oncemq_broker: BrokerProcess) -> None:
    with oncemq.connect(link.url, timeout_s=_TIMEOUT_S, tries=2) as client:
        subscription = client.subscribe("t", "s")
        with oncemq_broker.connect() as fast:
            fast.put("t", _VALUE)
            fast.put("t", b"next")
        assert [message.value for message in subscription.messages(timeout_s=0)] == [_VALUE, b"next"]


def test_an_asyncio_client_puts_a_large_message_over_a_slow_link(link: SlowLink) -> None:
    async def put() -> int:
        async with oncemq.aio.connect(link.url, timeout_s=_TIMEOUT_S, tries=2) as client:
            return (await client.put("t", _VALUE)).offset

    assert asyncio.run(put()) == 0
    assert link.sent_bytes < 1.1 * len(_VALUE)
