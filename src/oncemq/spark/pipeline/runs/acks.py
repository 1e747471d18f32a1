"""Acks the last micro-batch of a run. Spark commits a micro-batch when the next one begins, so the source does not ack
the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncemq.protocol.patterns import matches
from oncemq.spark.pipeline.model import Pipeline, Source
from oncemq.spark.pipeline.runs.stream import source_options
from oncemq.spark.source.offsets import Offsets, Position, parse_offsets


def ack_last(pipeline: Pipeline, url: str, end_offsets: Sequence[Mapping[str, Any]]) -> None:
    """Ack the messages below the ends of the last micro-batch, for each source of the pipeline."""
    from oncemq.spark import options
    from oncemq.spark.source.source import StreamReader

    ends = [parse_offsets(end) for end in end_offsets]
    for view, each in pipeline.inputs.items():
        end = common_end(each.source, ends)
        if end is not None:
            reader = StreamReader(options.source_options(source_options(pipeline, view, url), is_stream=True))
            reader.commit(end.to_json())


def common_end(source: Source, ends: Sequence[Offsets]) -> Offsets | None:
    """Where a source has arrived. Spark does not say whose end an offset is. If several sources read one topic, each of
    them has arrived at the lowest of their ends, or beyond it."""
    found: dict[str, Position] = {}
    for end in ends:
        for topic, at in end.topics.items():
            if not (matches(source.pattern.split("."), topic) if source.pattern else topic in source.names):
                continue
            known = found.get(topic)
            if known is None or at.offset < known.offset:
                found[topic] = at
    return Offsets(ends[0].broker, found) if found else None
