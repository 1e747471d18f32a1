"""The declaration of a pipeline: its source, the format of values, the transform, the target and the trigger.

    Pipeline
    ├── source      Source      topics, and where to start
    ├── value       Value       bytes → columns
    ├── watermark   Watermark   how late a row may arrive
    ├── sources     Input       instead of the three above: several of them, each with a name
    ├── tables      Table       tables that are joined with the streams
    ├── transform   Transform   SQL on the view `messages` or on the named views, or a function
    ├── target      Target      spark/targets/declarations.py
    ├── encoding    Encoding    columns → a message, for topics
    ├── output      Output      the rows that a micro-batch writes: new ones, changed ones, or all
    └── trigger     Trigger     once, or a micro-batch at intervals

Nothing here needs Spark. The fields have the names of the keys in the file (sections.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec

from oncemq.config.durations import parse_duration_ms
from oncemq.spark.schema import MESSAGE_PREFIX as MESSAGE_PREFIX
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget, PostgresTarget, Target, TopicTarget

#: The columns of a message in addition to its value.
MessageColumn = Literal["topic", "offset", "key", "headers", "timestamp", "idempotency_key", "schema_version"]
MESSAGE_COLUMNS: tuple[str, ...] = get_args(MessageColumn)
#: The column with the text of a value that can't be parsed, if such rows are kept.
MALFORMED_COLUMN = "malformed"
#: The name of the view that SQL reads, if the pipeline has one source.
VIEW = "messages"
#: How long the broker may be unreachable in a run that ends, if the pipeline does not say it.
BROKER_TIMEOUT = "30s"

Output = Literal["append", "update", "complete"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of `topic`, `topics` and `pattern` is set."""

    topic: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    #: The durable subscription that keeps the messages which are not processed yet. "" = the pipeline's name.
    subscription: str = ""
    #: Where the first run starts: `earliest`, `latest`, a time with a zone, or one of these or an offset by topic.
    start: str | Mapping[str, int | str] = "earliest"
    #: The maximum number of messages in one micro-batch; None = no limit.
    max_per_trigger: int | None = None
    #: The number of tasks that read in parallel; None = Spark's parallelism.
    partitions: int | None = None
    #: If the checkpoint needs a topic or messages that no longer exist: fail, or continue with what is left.
    on_loss: Literal["fail", "skip"] = "fail"
    #: The message's columns to add to those of its value, as `message_offset` and so on.
    columns: tuple[MessageColumn, ...] = ()
    #: Create the topics that do not exist. Otherwise a topic that does not exist is an error.
    create: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The topics, if they are named."""
        return (self.topic,) if self.topic else self.topics


Format = Literal["json", "csv", "text", "bytes", "avro", "protobuf", "typed"]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """How a message's value becomes columns. `text` and `bytes` make one column, `value`."""

    #: `typed`: the columns of the topic's schema.
    format: Format = "bytes"
    #: For JSON and CSV, in Spark's DDL: `id BIGINT, tags ARRAY<STRING>`. For Avro and Protobuf, the definition.
    schema: str = ""
    #: For CSV, one character.
    delimiter: str = ","
    #: What happens to a value that can't be parsed: the pipeline fails, the value is dropped, or it becomes a row of
    #: nulls with the text of the value in the column `malformed`.
    malformed: Literal["fail", "drop", "keep"] = "fail"
    #: The same for a value that can't be parsed, or goes to the dead-letter topic; "" = `malformed` says it.
    on_error: Literal["", "fail", "dead_letter", "drop"] = ""
    #: The dead-letter topic. "" = the pipeline's name with `.dead`.
    dead_letter: str = ""
    #: For Protobuf: the name of the message.
    message: str = ""
    #: For `typed`: the version of the topic's schema; 0 = the newest when the run starts.
    version: int = 0

    @property
    def has_source_columns(self) -> bool:
        """Whether the source itself decodes the values."""
        return self.format in ("avro", "protobuf", "typed")

    @property
    def policy(self) -> Literal["fail", "drop", "keep", "dead_letter"]:
        """What happens to a value that can't be parsed."""
        return self.on_error or self.malformed


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are older than the newest row by more than the delay may be left out of aggregates: Spark deletes their
    state."""

    column: str
    #: A duration, such as `10m`.
    delay: str


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of rows: the topics, how their values become columns, and how late a row may arrive."""

    source: Source
    value: Value = Value()
    watermark: Watermark | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that do not stream, to be joined with the streams. Exactly one of the first four fields is set."""

    #: A Parquet file or a folder of them, as it is when the run starts.
    parquet: str = ""
    #: A CSV file or a folder of them. Its first line names the columns.
    csv: str = ""
    #: A Delta table, which is read into memory when the run starts.
    delta: str = ""
    #: All messages that the topic has when a micro-batch starts.
    topic: str = ""
    #: The columns of the CSV files, in Spark's DDL.
    schema: str = ""
    #: How the values of the topic become columns.
    value: Value = Value()
    #: The message's columns to add, for a topic.
    columns: tuple[MessageColumn, ...] = ()


class Transform(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of the fields is set."""

    #: A query on the view `messages`, or on the views that `sources` and `tables` name.
    sql: str = ""
    #: `module:function`, from a DataFrame to a DataFrame. The module may be in the folder of the file. With `sources`,
    #: the argument is a mapping from the names to DataFrames.
    python: str = ""
    #: The function itself, if the pipeline is declared in Python.
    function: Callable[[Any], Any] | None = None


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """How a row becomes a message of a topic."""

    #: `json`: the row as an object; `text`, `bytes`: the column `value`; `typed`: the columns of the topic's schema.
    #: "" = the column `value` if there is one, else JSON.
    value: Literal["", "json", "text", "bytes", "typed"] = ""
    #: The column with the message's key; "" = the column `key` if there is a column `value`, else none.
    key: str = ""


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    #: "" = process what is available at the start, then end (available-now); `5s` = a micro-batch every five seconds.
    every: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of Spark's `trigger`."""
        if not self.every:
            return {"availableNow": True}
        return {"processingTime": f"{parse_duration_ms(self.every)} milliseconds"}


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Either `source`, with `value` and `watermark`, or `sources` is set."""

    name: str
    target: Target
    source: Source | None = None
    value: Value = Value()
    watermark: Watermark | None = None
    #: Streams by the names of their views.
    sources: Mapping[str, Input] = {}
    #: Tables by the names of their views.
    tables: Mapping[str, Table] = {}
    transform: Transform | None = None
    encoding: Encoding = Encoding()
    #: `append`: rows that are final. `update`: the rows that changed. `complete`: all rows of the result.
    output: Output = "append"
    trigger: Trigger = Trigger()
    #: The folder in which Spark stores its progress. If it is lost, messages that are not acked are processed again.
    checkpoint: str = ""
    #: After a run of available-now, also ack its last micro-batch. Otherwise the broker keeps that batch until the next
    #: run has new messages. If it is acked, a checkpoint that was reset can't read it again.
    ack_last: bool = False
    #: How long the broker may be unreachable. "" = without limit if the pipeline runs continuously, else 30 seconds.
    broker_timeout: str = ""
    #: The name of the context with the broker's address and credentials, on each machine. "" = the current one, or
    #: none. Arguments of a run, ONCEMQ_URL and ONCEMQ_CONTEXT override it.
    context: str = ""

    @property
    def written_target(self) -> Target:
        """The target with what the other sections say about it."""
        target = self.target
        if isinstance(target, TopicTarget):
            return msgspec.structs.replace(target, is_typed=self.encoding.value == "typed")
        has_schema = any(each.value.format == "typed" for each in self.inputs.values())
        if isinstance(target, ParquetTarget | DeltaTarget | PostgresTarget) and not target.evolve and has_schema:
            return msgspec.structs.replace(target, evolve="add")
        return target

    @property
    def inputs(self) -> dict[str, Input]:
        """The streams by the names of their views."""
        if self.source is None:
            return dict(self.sources)
        return {VIEW: Input(source=self.source, value=self.value, watermark=self.watermark)}

    @property
    def subscription(self) -> str:
        """The name of the durable subscription of `source`."""
        return self.subscription_of(VIEW)

    def subscription_of(self, view: str) -> str:
        """The name of the durable subscription of an input. It is the same in every run."""
        if self.source is not None:
            return self.source.subscription or self.name
        return self.sources[view].source.subscription or f"{self.name}.{view}"

    @property
    def broker_timeout_s(self) -> float | None:
        """How long the broker may be unreachable; None = without limit."""
        if self.broker_timeout:
            return parse_duration_ms(self.broker_timeout) / 1000
        return None if self.trigger.every else parse_duration_ms(BROKER_TIMEOUT) / 1000


class PartialInput(msgspec.Struct, kw_only=True):
    """An input in which sections may be missing, because they could not be read."""

    source: Source | None = None
    value: Value | None = Value()
    watermark: Watermark | None = None
    #: The paths of its sections in the file.
    source_path: tuple[str | int, ...] = ("source",)
    value_path: tuple[str | int, ...] = ("value",)
    watermark_path: tuple[str | int, ...] = ("watermark",)


class PartialPipeline(msgspec.Struct, kw_only=True):
    """A pipeline in which sections may be missing, because they could not be read."""

    name: str | None = None
    source: Source | None = None
    value: Value | None = Value()
    watermark: Watermark | None = None
    sources: Mapping[str, PartialInput] = {}
    tables: Mapping[str, Table] = {}
    transform: Transform | None = None
    target: Target | None = None
    encoding: Encoding = Encoding()
    output: Output = "append"
    trigger: Trigger = Trigger()
    checkpoint: str = ""
    ack_last: bool = False
    broker_timeout: str = ""
    context: str = ""

    @property
    def inputs(self) -> dict[str, PartialInput]:
        """The streams by the names of their views, as far as they could be read."""
        if self.sources:
            return dict(self.sources)
        return {VIEW: PartialInput(source=self.source, value=self.value, watermark=self.watermark)}

    @property
    def views(self) -> tuple[str, ...]:
        """The names of all views."""
        return (*self.inputs, *self.tables)

    def to_pipeline(self) -> Pipeline:
        """The pipeline, if nothing is missing."""
        fields = msgspec.structs.asdict(self)
        fields["sources"] = {
            name: Input(source=each.source, value=each.value, watermark=each.watermark)  # type: ignore[arg-type]
            for name, each in self.sources.items()
        }
        return Pipeline(**fields)


def partial_of(pipeline: Pipeline) -> PartialPipeline:
    """A pipeline that was made in Python, for the checks."""
    fields = msgspec.structs.asdict(pipeline)
    fields["sources"] = {
        name: partial_input(name, source=each.source, value=each.value, watermark=each.watermark)
        for name, each in pipeline.sources.items()
    }
    return PartialPipeline(**fields)


def partial_input(
    name: str, *, source: Source | None, value: Value | None, watermark: Watermark | None
) -> PartialInput:
    """A part of `sources`, with the paths of its sections."""
    path = ("sources", name)
    return PartialInput(
        source=source,
        value=value,
        watermark=watermark,
        source_path=path,
        value_path=(*path, "value"),
        watermark_path=(*path, "watermark"),
    )
