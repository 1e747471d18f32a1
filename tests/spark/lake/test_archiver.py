"""There and back with Spark: topics are archived in several runs, collected, and restored as they were."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncemq.protocol.batch import encode_batch
from oncemq.spark.lake import archive, plan, restore, restorer
from tests.spark.lake.archives import seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess

DEADLINE_S = 30
DAY_MS = 24 * 3600 * 1000
ORDERS, STRANGE = "orders", "bills of 2026.ü"


def put(client: Client, topic: str, numbers: range) -> None:
    """Some with keys and headers, in several batches; some have times of their own, one of them from 1999."""
    for number in numbers:
        headers = {"number": b"%d" % number} if number % 2 else None
        client.put(topic, b"%d" % number, key=b"key" if number % 3 else None, headers=headers)
    times_ms = [946_684_799_999, 1_767_225_600_000 + DAY_MS * numbers.start, 1_767_225_600_000]
    payload = encode_batch([b"x", b"", b"z"], [b"", None, b"k"], times_ms=times_ms)
    # The broker remembers writers with no time limit, and the tests share one broker.
    writer = str(uuid.uuid4())
    stager = client.stager(f"{writer}/stage", topic, writer, 0)
    stager.add(3, payload)
    client.commit(writer, 0, topic, [(stager.stage, stager.finish())])


def messages(client: Client, topic: str) -> list[tuple[Any, ...]]:
    return [
        (message.offset, message.value, message.key, dict(message.headers), message.timestamp_ms)
        for message in client.read(topic)
    ]


def wait_until_collected(client: Client) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while any(info.stored_bytes or info.first_offset < info.end_offset for info in client.topics()):
        assert time.monotonic() < deadline_s, client.topics()
        time.sleep(0.02)


def forget_last_batch(lake: Path) -> None:
    """As if the driver had died before it noted that the batch is done."""
    [commits] = lake.glob("_checkpoints/*/commits")
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_what_was_archived_and_collected_comes_back_as_it_was(
    kind: str,
    spark: SparkSession,
    broker: BrokerProcess,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = tmp_path / "lake"

    def run(**rest: Any) -> int:
        chosen = {"pattern": "#"} if kind == "delta" else {"topics": [ORDERS, STRANGE]}
        return archive(str(lake), **chosen, format=kind, max_per_trigger=20, url=broker.url, session=spark, **rest).rows

    for topic in (ORDERS, STRANGE):
        # Without a retention: what nobody needs is collected.
        client.create_topic(topic)
        client.subscribe(topic, "test", "earliest").close()
        put(client, topic, range(15))
    assert run() == 36
    forget_last_batch(lake)
    for topic in (ORDERS, STRANGE):
        put(client, topic, range(15, 20))
    there = {topic: messages(client, topic) for topic in (ORDERS, STRANGE)}
    for topic in (ORDERS, STRANGE):
        client.unsubscribe(topic, "test")
    # 16 are read again: the archive has them, and does not take them twice.
    assert run(ack_last=True) == 16 + 16
    wait_until_collected(client)

    files = sorted(lake.rglob("*.parquet"))
    assert run() == 0
    assert sorted(lake.rglob("*.parquet")) == files
    assert (lake / "topic=bills%20of%202026.%C3%BC" / "date=1999-12-31").is_dir()
    assert seen(lake, kind) == [(topic, offset) for topic in (STRANGE, ORDERS) for offset in range(26)]

    # More than one task for a topic.
    monkeypatch.setattr(
        restorer, "make_plan", lambda incarnations, chosen: plan.make_plan(incarnations, chosen, part_bytes=1000)
    )
    done = restore(str(lake), prefix="again.", create=True, url=broker.url, session=spark)
    assert [(one.target, one.messages, one.first_offset, one.last_offset) for one in done] == [
        (f"again.{STRANGE}", 26, 0, 25),
        (f"again.{ORDERS}", 26, 0, 25),
    ]
    assert {topic: messages(client, f"again.{topic}") for topic in there} == there
    repeated = restore(str(lake), prefix="again.", create=True, url=broker.url, session=spark)
    assert [one.before for one in repeated] == [True, True]
    assert {topic: messages(client, f"again.{topic}") for topic in there} == there
