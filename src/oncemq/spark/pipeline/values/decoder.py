"""Decodes values to columns with Spark's own expressions: the same for streams and batches, without Python per row.
Values in Avro and Protobuf, and those of topics with a schema, are decoded by the source.

`on_error` and `malformed` define what happens to a value that can't be parsed. Spark's parsers are too tolerant (they
accept text after a JSON object, and invalid UTF-8), so the expressions reject such values explicitly.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from oncemq.spark.pipeline import ddl
from oncemq.spark.pipeline.model import MALFORMED_COLUMN, MESSAGE_COLUMNS, MESSAGE_PREFIX, Value
from oncemq.spark.pipeline.values.reasons import csv_reason, json_reason
from oncemq.spark.typed.options import ERROR_COLUMN

#: Temporary columns, with names that no schema has.
_PARSED, _TEXT, _OBJECT, _END, _BAD = "__parsed", "__text", "__object", "__end", "__bad"
_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
_JSON_OPTIONS = {**_PERMISSIVE, "allowSingleQuotes": "false"}


class Decoded(NamedTuple):
    """Messages with what their values were parsed to."""

    #: All columns of the messages, and temporary ones.
    messages: DataFrame
    #: Whether the value can be parsed. It is never null.
    is_good: Column
    #: Why it can't be parsed. It is evaluated only for values that can't.
    reason: Column
    #: The columns of the value by their names.
    columns: list[tuple[str, Column]]


def source_columns(value: Value, columns: tuple[str, ...]) -> list[str]:
    """The columns of the message that must be read, given those that are selected."""
    wanted = {*columns} if value.has_source_columns else {"value", *columns}
    if value.has_source_columns and value.policy in ("keep", "dead_letter"):
        wanted.add("value")
    if value.format != "bytes" and value.policy == "fail":
        # For the error message.
        wanted |= {"topic", "offset"}
    if value.policy == "dead_letter":
        wanted |= set(MESSAGE_COLUMNS)
    return [name for name in (*MESSAGE_COLUMNS, "value") if name in wanted]


def decode_values(messages: DataFrame, value: Value, columns: tuple[str, ...] = ()) -> DataFrame:
    """The view `messages`: the columns of the value, then the selected columns of the message."""
    if value.format == "bytes":
        return messages.select("value", *_kept(columns))
    return good_rows(decode(messages, value), value, columns)


def decode(messages: DataFrame, value: Value) -> Decoded:
    if value.has_source_columns:
        return _decode_typed(messages)
    return {"json": _decode_json, "csv": _decode_csv, "text": _decode_text}[value.format](messages, value)


def good_rows(decoded: Decoded, value: Value, columns: tuple[str, ...]) -> DataFrame:
    """The rows of the values that can be parsed. With the policy `keep`, also a row of nulls for each other value. With
    the policy `fail`, such a value raises an error when it is read."""
    is_good, kept = decoded.is_good, _kept(columns)
    if value.policy == "keep":
        shown = F.when(~is_good, F.make_valid_utf8(_as_text())).alias(MALFORMED_COLUMN)
        rows = [F.when(is_good, column).alias(name) for name, column in decoded.columns]
        return decoded.messages.select(*rows, shown, *kept)
    if value.policy == "fail":
        message = (F.lit("topic '"), F.col("topic"), F.lit("', offset "), F.col("offset").cast("string"))
        error = F.raise_error(F.concat(*message, F.lit(": "), decoded.reason))
        is_good = F.when(is_good, F.lit(True)).otherwise(error.cast("boolean"))
    rows = [column.alias(name) for name, column in decoded.columns]
    return decoded.messages.filter(is_good).select(*rows, *kept)


def _kept(columns: tuple[str, ...]) -> list[Column]:
    return [F.col(name).alias(MESSAGE_PREFIX + name) for name in columns]


def _decode_json(messages: DataFrame, value: Value) -> Decoded:
    # The value is put into another object, so that text after it is a syntax error. If the value itself closes that
    # object, the parser does not see its second field.
    text = F.concat(F.lit(f'{{"{_OBJECT}":'), F.col(_TEXT), F.lit(f',"{_END}":0}}'))
    schema = f"{_OBJECT} struct<{value.schema}>, {_END} int, {_BAD} string"
    found = messages.withColumn(_TEXT, _as_text()).withColumn(_PARSED, F.from_json(text, schema, _JSON_OPTIONS))
    parsed = F.col(f"{_PARSED}.{_OBJECT}")
    is_whole = F.col(f"{_PARSED}.{_BAD}").isNull() & F.col(f"{_PARSED}.{_END}").isNotNull()
    is_good = _is_utf8() & is_whole & parsed.isNotNull()
    return Decoded(found, is_good, json_reason(F.col(_TEXT), _is_utf8(), parsed, value.schema), _fields(value, parsed))


def _decode_csv(messages: DataFrame, value: Value) -> Decoded:
    line = F.regexp_replace(_as_text(), r"\r?\n$", "")
    options = {**_PERMISSIVE, "sep": value.delimiter, "quote": '"', "escape": '"'}
    schema = f"{value.schema}, {_BAD} string"
    found = messages.withColumn(_TEXT, line).withColumn(_PARSED, F.from_csv(F.col(_TEXT), schema, options))
    parsed = F.col(_PARSED)
    is_good = _is_utf8() & F.col(f"{_PARSED}.{_BAD}").isNull() & parsed.isNotNull()
    if len(ddl.parse_columns(value.schema)) > 1:
        # Spark parses an empty line as a row of nulls.
        is_good = is_good & (F.col(_TEXT) != "")
    reason = csv_reason(F.col(_TEXT), _is_utf8(), parsed, value.schema, options)
    return Decoded(found, is_good, reason, _fields(value, parsed))


def _decode_text(messages: DataFrame, _: Value) -> Decoded:
    return Decoded(messages, _is_utf8(), F.lit("the value is not UTF-8"), [("value", _as_text())])


def _decode_typed(messages: DataFrame) -> Decoded:
    """The source has decoded the values; messages that do not match have a reason."""
    chosen = [name for name in (*MESSAGE_COLUMNS, "value") if MESSAGE_PREFIX + name in messages.columns]
    # In this order, the columns of the message and the error are the last ones.
    names = messages.columns[: len(messages.columns) - len(chosen) - 1]
    found = messages.select(
        F.struct(*(F.col(ddl.quoted(name)) for name in names)).alias(_PARSED),
        F.col(ERROR_COLUMN).alias(_BAD),
        *(F.col(MESSAGE_PREFIX + name).alias(name) for name in chosen),
    )
    columns = [(name, F.col(_PARSED).getField(name)) for name in names]
    return Decoded(found, F.col(_BAD).isNull(), F.col(_BAD), columns)


def _as_text() -> Column:
    return F.col("value").cast("string")


def _is_utf8() -> Column:
    """Checked on the original bytes, because some functions repair invalid text silently."""
    return F.is_valid_utf8(_as_text())


def _fields(value: Value, parsed: Column) -> list[tuple[str, Column]]:
    return [(column.name, parsed.getField(column.name)) for column in ddl.parse_columns(value.schema)]
