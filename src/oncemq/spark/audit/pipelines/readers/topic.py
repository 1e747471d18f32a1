"""A topic. Its messages contain the columns of a row as JSON, and a column may be their key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import Column
from pyspark.sql import functions as F

from oncemq.client.internal import internal_api
from oncemq.protocol import errors
from oncemq.protocol.commands import Writer
from oncemq.protocol.replies import WriterReply
from oncemq.spark.audit.pipelines.identity import Identity
from oncemq.spark.audit.pipelines.subject import Subject
from oncemq.spark.audit.pipelines.targets import TargetContent
from oncemq.spark.pipeline.model import Encoding
from oncemq.spark.sink.writers import stream_writer_name, write_writer_name
from oncemq.spark.source.topic_offsets import TopicBounds, topic_bounds
from oncemq.spark.targets.start import upsert_id


def read_topic(
    subject: Subject,
    topic: str,
    query_id: str,
    by_name: Mapping[str, Column],
    identity: Identity | None,
    only_topic: str,
) -> TargetContent:
    """`topic`: "" if each row names its topic; then only the micro-batches are read. `by_name`: see `topic_columns`."""
    try:
        bounds = topic_bounds(subject.client, topic) if topic else None
    except errors.TopicUnknown:
        return TargetContent(rows=None, count=0, last_batch=-1, records_empty_batches=True)
    recorded = _recorded(subject, query_id, topic, bounds)
    if bounds is None:
        return msgspec.structs.replace(recorded, remarks=("the rows name their topics",))
    # Asked again, because the topic must have all rows of the micro-batches that are recorded.
    bounds = topic_bounds(subject.client, topic)
    rows = None
    if identity is not None and by_name.keys() >= set(identity.columns):
        ends = json.dumps({topic: bounds.end})
        reader = subject.spark.read.format("oncemq").options(
            **subject.broker.options, topics=json.dumps([topic]), endingOffsets=ends
        )
        rows = reader.option("columns", "key,value").load().select(*identity.select(dict(by_name), only_topic))
    deleted = (f"'{topic}' has deleted its first {bounds.first:,} messages",) if bounds.first else ()
    return msgspec.structs.replace(recorded, rows=rows, count=bounds.end, is_trimmed=bounds.first > 0, remarks=deleted)


def _recorded(subject: Subject, query_id: str, topic: str, bounds: TopicBounds | None) -> TargetContent:
    """The micro-batches that the broker remembers."""
    is_update = subject.pipeline.output == "update"
    name = stream_writer_name(query_id, topic)
    if is_update:
        name = write_writer_name(upsert_id(query_id), topic, bounds.topic_id if bounds else 0)
    state = internal_api(subject.client).ask(Writer(name), WriterReply)
    # A write of the output mode `update` is recognised by other digests.
    contents = {} if is_update else dict(state.commits)
    return TargetContent(rows=None, last_batch=state.batch, records_empty_batches=True, contents=contents)


def topic_columns(encoding: Encoding, names: Sequence[str]) -> dict[str, Column]:
    """Where the columns of a row are in a message."""
    found: dict[str, Column] = {}
    # The rows of a typed topic are JSON for everybody who does not ask for columns.
    if encoding.value in ("json", "typed") or (not encoding.value and "value" not in names):
        text = F.col("value").cast("string")
        found = {name: F.get_json_object(text, f"$['{name}']") for name in names}
    if encoding.key:
        found[encoding.key] = F.col("key").cast("string")
    return found
