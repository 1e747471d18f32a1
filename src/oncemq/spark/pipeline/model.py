"""A pipeline as a person declares it: from where, how values are read, what becomes of them, where to, and when.

    Pipeline
    ├── source      Source      topics, and where to begin
    ├── value       Value       bytes → columns
    ├── watermark   Watermark   how late a row may come
    ├── transform   Transform   SQL on the view `messages`, or a function
    ├── target      Target      spark/targets/declarations.py
    ├── encoding    Encoding    columns → a message, for topics
    └── trigger     Trigger     what is there already, or for ever

Nothing here needs Spark. Fields are named as the keys of the file (sections.py) are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec

from oncemq.config.durations import duration_s
from oncemq.spark.targets.declarations import Target

#: What a message has beside its value.
MessageColumn = Literal["topic", "offset", "key", "headers", "timestamp", "idempotency_key"]
MESSAGE_COLUMNS: tuple[str, ...] = get_args(MessageColumn)
#: They stand beside the value's columns as `message_offset` and so on, so that no two have the same name.
MESSAGE_PREFIX = "message_"
#: The column with the text of a value that can't be parsed, where such rows are kept.
MALFORMED_COLUMN = "malformed"
#: The name under which SQL finds its input.
VIEW = "messages"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of `topic`, `topics` and `pattern`."""

    topic: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    #: The durable subscription that holds what was not processed yet. "" = the pipeline's name.
    subscription: str = ""
    #: Where the first run begins: `earliest`, `latest`, a time with its zone, or one of these or an offset by topic.
    start: str | Mapping[str, int | str] = "earliest"
    #: Messages that one micro-batch takes at the most; None = all that there are.
    max_per_trigger: int | None = None
    #: Tasks that read side by side; None = Spark's parallelism.
    partitions: int | None = None
    #: A topic or messages that are gone, though the checkpoint needs them: stop, or go on with what is left.
    on_loss: Literal["fail", "skip"] = "fail"
    #: The message's columns that stay beside those of its value, as `message_offset` and so on.
    columns: tuple[MessageColumn, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that are named."""
        return (self.topic,) if self.topic else self.topics


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """How a message's value becomes columns. `text` and `bytes` give one column, `value`."""

    format: Literal["json", "csv", "text", "bytes"] = "bytes"
    #: Of JSON and CSV: Spark's DDL, as `id BIGINT, tags ARRAY<STRING>`.
    schema: str = ""
    #: Of CSV: one character.
    delimiter: str = ","
    #: A value that can't be parsed stops the pipeline, is left out, or stays as a row of nulls whose column
    #: `malformed` has its text.
    malformed: Literal["fail", "drop", "keep"] = "fail"


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that come later than this behind the latest may be left out of aggregates: Spark lets go of their state."""

    column: str
    #: As `10m`.
    delay: str


class Transform(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of them."""

    #: A query on the view `messages`.
    sql: str = ""
    #: `module:function`, from a DataFrame to a DataFrame. The module may lie beside the file.
    python: str = ""
    #: The function itself, where the pipeline is made in Python.
    function: Callable[[Any], Any] | None = None


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """How a row becomes a message of a topic."""

    #: `json`: the row is an object; `text`, `bytes`: its column `value` is the message's.
    #: "" = the column `value`, where there is one, else JSON.
    value: Literal["", "json", "text", "bytes"] = ""
    #: The column that is the message's key; "" = the column `key` beside a column `value`, else none.
    key: str = ""


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    #: "" = once, what is there when the run starts (available-now); `5s` = a micro-batch every five seconds.
    every: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """As Spark's `trigger` takes them."""
        span_s = duration_s(self.every)
        return {"availableNow": True} if span_s is None else {"processingTime": f"{round(span_s * 1000)} milliseconds"}


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: Source
    target: Target
    value: Value = Value()
    watermark: Watermark | None = None
    transform: Transform | None = None
    encoding: Encoding = Encoding()
    trigger: Trigger = Trigger()
    #: The folder in which Spark notes how far it is. Whoever loses it processes again what is not acked yet.
    checkpoint: str = ""
    #: After a run of available-now, ack its last micro-batch too. Without it that batch stays in the broker until
    #: the next run has something to do; with it, a checkpoint that is set back can't read it again.
    ack_last: bool = False

    @property
    def subscription(self) -> str:
        return self.source.subscription or self.name
