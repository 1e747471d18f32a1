"""Acks the last micro-batch of a run. Spark commits a micro-batch when the next one begins, so the source does not ack
the last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncemq.spark.broker import Broker
from oncemq.spark.pipeline.model import Pipeline
from oncemq.spark.pipeline.runs.stream import source_options


def ack_last(pipeline: Pipeline, broker: Broker, end_offsets: Mapping[str, Mapping[str, Any]]) -> None:
    """Ack the messages below the ends of the last micro-batch, for each source of the pipeline. The ends of another
    source do not count: it may have read a topic further."""
    from oncemq.spark import options
    from oncemq.spark.source.source import StreamReader

    for view in pipeline.inputs:
        source = options.source_options(source_options(pipeline, view, broker), is_stream=True)
        end = end_offsets.get(source.description)
        if end is not None:
            StreamReader(source).commit(dict(end))
