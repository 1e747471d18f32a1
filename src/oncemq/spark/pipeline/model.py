"""The declaration of a pipeline: its source, the format of values, the transform, the target and the trigger.

    Pipeline
    ├── source      Source      topics, and where to start
    ├── value       Value       bytes → columns
    ├── watermark   Watermark   how late a row may arrive
    ├── transform   Transform   SQL on the view `messages`, or a function
    ├── target      Target      spark/targets/declarations.py
    ├── encoding    Encoding    columns → a message, for topics
    └── trigger     Trigger     once, or a micro-batch at intervals

Nothing here needs Spark. The fields have the names of the keys in the file (sections.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec

from oncemq.config.durations import parse_duration_ms
from oncemq.spark.targets.declarations import Target

#: The columns of a message in addition to its value.
MessageColumn = Literal["topic", "offset", "key", "headers", "timestamp", "idempotency_key"]
MESSAGE_COLUMNS: tuple[str, ...] = get_args(MessageColumn)
#: In the view they are named `message_offset` and so on, so that they differ from the value's columns.
MESSAGE_PREFIX = "message_"
#: The column with the text of a value that can't be parsed, if such rows are kept.
MALFORMED_COLUMN = "malformed"
#: The name of the view that SQL reads.
VIEW = "messages"


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

    @property
    def names(self) -> tuple[str, ...]:
        """The topics, if they are named."""
        return (self.topic,) if self.topic else self.topics


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """How a message's value becomes columns. `text` and `bytes` make one column, `value`."""

    format: Literal["json", "csv", "text", "bytes"] = "bytes"
    #: For JSON and CSV, in Spark's DDL: `id BIGINT, tags ARRAY<STRING>`.
    schema: str = ""
    #: For CSV, one character.
    delimiter: str = ","
    #: What happens to a value that can't be parsed: the pipeline fails, the value is dropped, or it becomes a row of
    #: nulls with the text of the value in the column `malformed`.
    malformed: Literal["fail", "drop", "keep"] = "fail"


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are older than the newest row by more than the delay may be left out of aggregates: Spark deletes their
    state."""

    column: str
    #: A duration, such as `10m`.
    delay: str


class Transform(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of the fields is set."""

    #: A query on the view `messages`.
    sql: str = ""
    #: `module:function`, from a DataFrame to a DataFrame. The module may be in the folder of the file.
    python: str = ""
    #: The function itself, if the pipeline is declared in Python.
    function: Callable[[Any], Any] | None = None


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """How a row becomes a message of a topic."""

    #: `json`: the row as an object; `text`, `bytes`: the column `value`.
    #: "" = the column `value` if there is one, else JSON.
    value: Literal["", "json", "text", "bytes"] = ""
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
    name: str
    source: Source
    target: Target
    value: Value = Value()
    watermark: Watermark | None = None
    transform: Transform | None = None
    encoding: Encoding = Encoding()
    trigger: Trigger = Trigger()
    #: The folder in which Spark stores its progress. If it is lost, messages that are not acked are processed again.
    checkpoint: str = ""
    #: After a run of available-now, also ack its last micro-batch. Otherwise the broker keeps that batch until the next
    #: run has new messages. If it is acked, a checkpoint that was reset can't read it again.
    ack_last: bool = False

    @property
    def subscription(self) -> str:
        return self.source.subscription or self.name


class PartialPipeline(msgspec.Struct, kw_only=True):
    """A pipeline in which sections may be missing, because they could not be read."""

    name: str | None = None
    source: Source | None = None
    value: Value | None = Value()
    watermark: Watermark | None = None
    transform: Transform | None = None
    target: Target | None = None
    encoding: Encoding = Encoding()
    trigger: Trigger = Trigger()
    checkpoint: str = ""
    ack_last: bool = False

    def to_pipeline(self) -> Pipeline:
        """The pipeline, if nothing is missing."""
        return Pipeline(**msgspec.structs.asdict(self))
