"""Builds the streaming query of a pipeline: a view per source and table, the transform, and the rows for the target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from oncemq.spark.broker import Broker
from oncemq.spark.pipeline.model import Input, Pipeline, Source, Table, Value
from oncemq.spark.pipeline.progress import OBSERVED
from oncemq.spark.targets.declarations import TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The broker may be unreachable for this time before a call fails, and the run waits for it or ends.
_CALL_TIMEOUT_S = 30.0


class Streams(NamedTuple):
    #: The rows that the target writes.
    rows: DataFrame
    #: The dead letters, which are messages with their topics; None if there can't be any.
    dead: DataFrame | None


def build_streams(session: SparkSession, pipeline: Pipeline, broker: Broker, folder: str = ".") -> Streams:
    from oncemq.spark.pipeline.values.dead_letters import dead_rows
    from oncemq.spark.pipeline.values.decoder import decode

    messages = {view: _messages(session, pipeline, view, broker) for view in pipeline.inputs}
    decoded = {
        view: decode(messages[view], each.value)
        for view, each in pipeline.inputs.items()
        if each.value.policy == "dead_letter"
    }
    return Streams(_result(session, pipeline, messages, broker, folder), dead_rows(pipeline, decoded))


def _result(
    session: SparkSession, pipeline: Pipeline, messages: Mapping[str, DataFrame], broker: Broker, folder: str
) -> DataFrame:
    from oncemq.spark.pipeline.transform import apply_transform
    from oncemq.spark.pipeline.values.encoder import encode_rows

    views = {view: _input_rows(messages[view], view, each) for view, each in pipeline.inputs.items()}
    views |= {view: _table_rows(session, table, broker) for view, table in pipeline.tables.items()}
    result = apply_transform(views, pipeline.transform, folder)
    if isinstance(pipeline.target, TopicTarget):
        return encode_rows(result, pipeline.encoding, by_row=not pipeline.target.topic)
    return result


def _messages(session: SparkSession, pipeline: Pipeline, view: str, broker: Broker) -> DataFrame:
    return session.readStream.format("oncemq").options(**source_options(pipeline, view, broker)).load()


def _input_rows(messages: DataFrame, view: str, each: Input) -> DataFrame:
    from pyspark.sql import functions as F

    from oncemq.spark.pipeline.transform import apply_watermark
    from oncemq.spark.pipeline.values.decoder import decode_values

    # Spark does not count the rows of Python data sources.
    messages = messages.observe(OBSERVED + view, F.count(F.lit(1)).alias("rows"))
    return apply_watermark(decode_values(messages, each.value, each.source.columns), each.watermark)


def _table_rows(session: SparkSession, table: Table, broker: Broker) -> DataFrame:
    from oncemq.spark.pipeline.values.decoder import decode_values, source_columns

    if table.parquet:
        return session.read.parquet(table.parquet)
    if table.csv:
        return session.read.csv(table.csv, schema=table.schema, header=True, mode="FAILFAST")
    if table.delta:
        from deltalake import DeltaTable

        return session.createDataFrame(DeltaTable(table.delta).to_pyarrow_table())
    columns = ",".join(source_columns(table.value, table.columns))
    reader = session.read.format("oncemq").options(**broker.options, topic=table.topic, columns=columns)
    messages = reader.options(**_typed_options(table.value)).load()
    return decode_values(messages, table.value, table.columns)


def source_options(pipeline: Pipeline, view: str, broker: Broker) -> dict[str, str]:
    """The options of `format("oncemq")` for one of the sources."""
    from oncemq.spark.pipeline.values.decoder import source_columns

    each = pipeline.inputs[view]
    source = each.source
    options = {
        **broker.options,
        "subscription": pipeline.subscription_of(view),
        "startingOffsets": _starting(source),
        "columns": ",".join(source_columns(each.value, source.columns)),
        "checkpointLocation": pipeline.checkpoint,
        "failOnDataLoss": str(source.on_loss == "fail").lower(),
        "timeout": call_timeout(pipeline),
        **_typed_options(each.value),
    }
    if source.pattern:
        options["pattern"] = source.pattern
    else:
        options["topics"] = json.dumps(source.names)
    if source.max_per_trigger:
        options["maxOffsetsPerTrigger"] = str(source.max_per_trigger)
    if source.partitions:
        options["partitions"] = str(source.partitions)
    return options


def _typed_options(value: Value) -> dict[str, str]:
    """The options of a source that decodes the values itself."""
    if not value.has_source_columns:
        return {}
    if value.format == "typed":
        options = {"schema": "topic", "onError": "keep"}
        return options | ({"schemaVersion": str(value.version)} if value.version else {})
    options = {"schema": value.format, "schemaDefinition": value.schema, "onError": "keep"}
    return options | ({"schemaMessage": value.message} if value.message else {})


def call_timeout(pipeline: Pipeline) -> str:
    """The option `timeout` of source and sink."""
    return f"{max(1, round(call_timeout_s(pipeline) * 1000))}ms"


def call_timeout_s(pipeline: Pipeline) -> float:
    """How long one call of the source or sink waits for the broker. The run itself may wait longer."""
    limit_s = pipeline.broker_timeout_s
    return _CALL_TIMEOUT_S if limit_s is None else min(limit_s, _CALL_TIMEOUT_S)


def _starting(source: Source) -> str:
    start = source.start
    if isinstance(start, str):
        return start
    # A topic that is not in the mapping starts at the default of a pipeline, not at that of a stream.
    return json.dumps({name: start.get(name, "earliest") for name in source.names})
