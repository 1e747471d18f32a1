"""Rows of frames are messages like any others: for workers, gateways, recorders, filters, partial reads and times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

import oncemq
from oncemq.client.recording.records import digest_of, digests_of_payload
from oncemq.gateways.batches import iterate_values
from oncemq.protocol import errors
from oncemq.protocol.replies import BatchHead
from tests.protocol.vectors import TYPED_BATCHES, typed_payload


@pytest.fixture
def client() -> Iterator[oncemq.Client]:
    with oncemq.connect("memory:") as client:
        client.create_topic("orders", retain_ms=3_600_000)
        client.put_schema("orders", "id: int64 not null")
        yield client


def test_workers_share_the_rows_of_a_frame_in_the_order_of_their_keys(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("orders", "w", key_order=True)
    client.put_frame("orders", pa.table({"id": [1, 1, 2]}), key="id")
    first, second = workers.take(timeout_s=1), workers.take(timeout_s=1)
    assert first is not None
    assert second is not None
    assert [(task.offset, task.text) for task in (first, second)] == [(0, '{"id":1}'), (2, '{"id":2}')]
    first.ack()
    second.ack()
    last = workers.take(timeout_s=1)
    assert last is not None
    assert (last.offset, last.key) == (1, b"1")
    last.ack()
    workers.close()


def test_a_subscription_continues_in_the_middle_of_a_frame(client: oncemq.Client) -> None:
    client.subscribe("orders", "s").close()
    client.put_frame("orders", pa.table({"id": list(range(10))}))
    with client.subscription("orders", "s", auto_ack=False) as subscription:
        messages = subscription.get_many(10, timeout_s=1)
        subscription.ack(messages[3], wait=True)
    with client.subscription("orders", "s", filter=lambda message: message.offset % 2 == 0) as subscription:
        assert [message.text for message in subscription.messages(timeout_s=0.1)] == [
            '{"id":4}',
            '{"id":6}',
            '{"id":8}',
        ]


def test_the_rows_of_a_frame_have_a_time_to_live_and_a_delay(client: oncemq.Client) -> None:
    assert client.put_frame("orders", pa.table({"id": [1]}), delay_s=3600).offset == -1
    client.put_frame("orders", pa.table({"id": [2]}), ttl_s=0.001)
    client.put_frame("orders", pa.table({"id": [3]}), ttl_s=3600)
    time.sleep(0.005)
    subscription = client.subscribe("orders", "s", start="earliest")
    message = subscription.get(timeout_s=1)
    assert message is not None
    assert message.text == '{"id":3}'


def test_gateways_and_recorders_see_the_rows(client: oncemq.Client) -> None:
    _, fields, version, rows, texts = TYPED_BATCHES[1]
    payload = typed_payload(fields, version, rows)
    batches = [(BatchHead(7, 1, 1, 0, 0), payload)]
    found = list(iterate_values("orders", batches, errors.Malformed, Counter()))
    assert found == [(7, texts[1].encode())]
    assert digests_of_payload(payload, len(rows)) == [digest_of(text.encode(), None, None) for text in texts]
