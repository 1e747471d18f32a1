"""Dead letters of a pipeline: messages whose values can't be parsed, on their way to a dead-letter topic.

A dead letter has the format of client/worker/dead_letters.py, so `oncemq dead` lists, retries and deletes it. Its
additional header `oncemq-pipeline` names the pipeline.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from oncemq.protocol.names import DEAD_SUBSCRIBER
from oncemq.spark.broker import Broker
from oncemq.spark.pipeline.model import Pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from oncemq.spark.pipeline.values.decoder import Decoded

_PREFIX = "oncemq-"
_REASON_CHARACTERS_MAX = 500


def dead_topics(pipeline: Pipeline) -> dict[str, str]:
    """The dead-letter topics by the views whose messages they get."""
    return {
        view: each.value.dead_letter or f"{pipeline.name}.dead"
        for view, each in pipeline.inputs.items()
        if each.value.policy == "dead_letter"
    }


def keep_dead_letters(pipeline: Pipeline, broker: Broker) -> None:
    """Create the dead-letter topics, with the subscription that keeps the letters until they are retried or deleted."""
    topics = set(dead_topics(pipeline).values())
    if not topics:
        return
    with broker.connect(label="spark", tries=30, record="") as client:
        for topic in topics:
            client.subscribe_shared(topic, DEAD_SUBSCRIBER, start="earliest").close()


def dead_rows(pipeline: Pipeline, decoded: Mapping[str, Decoded]) -> DataFrame | None:
    """The dead letters of all sources as rows of the topic sink, each with its topic; None if there can't be any."""
    topics = dead_topics(pipeline)
    frames = [_letters(pipeline, view, topic, decoded[view]) for view, topic in topics.items()]
    return reduce(lambda one, other: one.unionByName(other), frames) if frames else None


def _letters(pipeline: Pipeline, view: str, topic: str, decoded: Decoded) -> DataFrame:
    from pyspark.sql import functions as F

    letters = decoded.messages.filter(~decoded.is_good)
    headers = _headers(pipeline.name, pipeline.subscription_of(view), decoded.reason)
    return letters.select(F.lit(topic).alias("topic"), "key", "value", headers.alias("headers"))


def _headers(name: str, subscriber: str, reason: Column) -> Column:
    """The headers of the message, and those of a dead letter."""
    from pyspark.sql import functions as F

    # The key is `TOPIC_ID-OFFSET`, with a hexadecimal id.
    topic_id = F.conv(F.substring_index(F.col("idempotency_key"), "-", 1), 16, 10)
    added = {
        "topic": F.col("topic"),
        "offset": F.col("offset").cast("string"),
        "topic-id": topic_id,
        "timestamp-ms": F.unix_millis(F.col("timestamp")).cast("string"),
        "subscriber": F.lit(subscriber),
        "tries": F.lit("1"),
        "reason": F.substring(reason, 1, _REASON_CHARACTERS_MAX),
        "pipeline": F.lit(name),
    }
    own = F.coalesce(F.col("headers"), F.expr("CAST(map() AS map<string, binary>)"))
    own = F.map_filter(own, lambda key, _: ~key.startswith(_PREFIX))
    pairs = [part for name, value in added.items() for part in (F.lit(_PREFIX + name), value.cast("binary"))]
    return F.map_concat(own, F.create_map(*pairs))
