"""A checkpoint that has lost entries, in real pipelines into all targets: each run is exact, or fails loudly."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.lost_entries.campaign import Campaign
from tests.spark.lost_entries.model import make_model_streams
from tests.spark.lost_entries.streams import Stream, TopicStream, make_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("topic", "parquet", "delta", "postgres", "archive")


@pytest.fixture
def streams(client: Client, tmp_path: Path, oncemq_postgres: str) -> dict[str, Stream]:
    # The broker remembers plans with no time limit, and the tests share one broker.
    prefix = f"s{uuid.uuid4().hex[:8]}"
    return dict(zip(KINDS, make_streams(client, tmp_path, oncemq_postgres, prefix), strict=True))


def once(count: int) -> Counter[int]:
    return Counter(range(count))


@pytest.mark.parametrize("kind", KINDS)
def test_no_id_is_lost_when_the_checkpoint_loses_its_last_micro_batch(
    spark: SparkSession, broker: BrokerProcess, client: Client, streams: dict[str, Stream], kind: str
) -> None:
    stream = streams[kind]
    stream.put(200)
    stream.run(broker.url, spark, max_per_trigger=100)
    stream.checkpoint.lose_last()
    stream.put(100)
    if stream.acks_last:
        # The last micro-batch was acked, so it can't be repeated.
        with pytest.raises(errors.CheckpointBehind, match=r"is at offset 100 of topic .* is at 200"):
            stream.run(broker.url, spark)
        assert Counter(stream.found()) == once(200)
        stream.forget_checkpoint()
    stream.run(broker.url, spark)
    assert Counter(stream.found()) == once(300)
    if not stream.acks_last:
        # Without its plan, the last micro-batch gets other messages, and the target refuses it.
        for entry in client.registry_list("spark-plans", stream.name):
            client.registry_set("spark-plans", entry.key, None)
        stream.checkpoint.lose_last()
        stream.put(100)
        with pytest.raises(errors.BatchChanged, match="batch 2"):
            stream.run(broker.url, spark)
        assert Counter(stream.found()) == once(300)


def test_a_checkpoint_that_is_three_micro_batches_old_is_refused_though_the_topic_still_has_the_messages(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    stream = TopicStream(client, f"s{uuid.uuid4().hex[:8]}", tmp_path)
    stream.put(100)
    stream.run(broker.url, spark)
    stream.checkpoint.copy(tmp_path / "old")
    stream.put(300)
    stream.run(broker.url, spark, max_per_trigger=100)
    stream.checkpoint.copy(tmp_path / "newest")
    stream.checkpoint.restore(tmp_path / "old")
    stream.put(100)
    with pytest.raises(errors.CheckpointBehind, match=r"is at offset 100 of topic .* is at 300"):
        stream.run(broker.url, spark)
    assert Counter(stream.found()) == once(400)
    stream.checkpoint.restore(tmp_path / "newest")
    stream.run(broker.url, spark)
    assert Counter(stream.found()) == once(500)


def test_random_damage_is_repaired_or_reported(
    broker: BrokerProcess, client: Client, tmp_path: Path, oncemq_postgres: str
) -> None:
    """A short form of `make crash-checkpoints`, with a model of Spark's driver."""
    streams = make_model_streams(client, broker.url, tmp_path, oncemq_postgres, uuid.uuid4().int % 2**32)
    account = Campaign(broker, None, streams, tmp_path, 7, lambda _: None).run(25)
    assert account.problems == []
    assert account.rounds == 25
    assert {"exact", "CHECKPOINT_BEHIND"} <= set(account.results)
