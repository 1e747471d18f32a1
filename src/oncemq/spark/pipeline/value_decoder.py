"""Decodes values to columns with Spark's own expressions: the same for streams and batches, without Python per row.

`malformed` defines what happens to a value that can't be parsed. Spark's parsers are too tolerant (they accept text
after a JSON object, and invalid UTF-8), so the expressions reject such values explicitly.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from oncemq.spark.pipeline import ddl
from oncemq.spark.pipeline.model import MALFORMED_COLUMN, MESSAGE_COLUMNS, MESSAGE_PREFIX, Value

#: Temporary columns, with names that no schema has.
_PARSED, _TEXT, _OBJECT, _BAD = "__parsed", "__text", "__object", "__bad"
_SHOWN_CHARACTERS = 200
_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}


def source_columns(value: Value, columns: tuple[str, ...]) -> list[str]:
    """The columns of the message that must be read, given those that are selected."""
    wanted = {"value", *columns}
    if value.format != "bytes" and value.malformed == "fail":
        # For the error message.
        wanted |= {"topic", "offset"}
    return [name for name in (*MESSAGE_COLUMNS, "value") if name in wanted]


def decode_values(messages: DataFrame, value: Value, columns: tuple[str, ...] = ()) -> DataFrame:
    """The view `messages`: the columns of the value, then the selected columns of the message."""
    kept = [F.col(name).alias(MESSAGE_PREFIX + name) for name in columns]
    if value.format == "bytes":
        return messages.select("value", *kept)
    found = {"json": _with_json, "csv": _with_csv, "text": _with_text}[value.format](messages, value)
    is_good = _is_good(value)
    if value.malformed == "keep":
        shown = F.when(~is_good, F.make_valid_utf8(F.col(_TEXT))).alias(MALFORMED_COLUMN)
        rows = [F.when(is_good, column).alias(name) for name, column in _columns(value)]
        return found.select(*rows, shown, *kept)
    if value.malformed == "fail":
        is_good = F.when(is_good, F.lit(True)).otherwise(_error(value).cast("boolean"))
    return found.filter(is_good).select(*(column.alias(name) for name, column in _columns(value)), *kept)


def _with_json(messages: DataFrame, value: Value) -> DataFrame:
    # The value is put into another object, so that text after it is a syntax error.
    text = F.concat(F.lit(f'{{"{_OBJECT}":'), F.col(_TEXT), F.lit("}"))
    options = {**_PERMISSIVE, "allowSingleQuotes": "false"}
    schema = f"{_OBJECT} struct<{value.schema}>, {_BAD} string"
    return messages.withColumn(_TEXT, _as_text()).withColumn(_PARSED, F.from_json(text, schema, options))


def _with_csv(messages: DataFrame, value: Value) -> DataFrame:
    line = F.regexp_replace(_as_text(), r"\r?\n$", "")
    options = {**_PERMISSIVE, "sep": value.delimiter, "quote": '"', "escape": '"'}
    schema = f"{value.schema}, {_BAD} string"
    return messages.withColumn(_TEXT, line).withColumn(_PARSED, F.from_csv(F.col(_TEXT), schema, options))


def _with_text(messages: DataFrame, _: Value) -> DataFrame:
    return messages.withColumn(_TEXT, _as_text())


def _as_text() -> Column:
    return F.col("value").cast("string")


def _is_good(value: Value) -> Column:
    """Whether the value can be parsed. It is never null."""
    # Checked on the original bytes, because some functions repair invalid text silently.
    is_text = F.is_valid_utf8(_as_text())
    if value.format == "text":
        return is_text
    is_parsed = F.col(f"{_PARSED}.{_BAD}").isNull()
    if value.format == "json":
        return is_text & is_parsed & F.col(f"{_PARSED}.{_OBJECT}").isNotNull()
    is_parsed = is_parsed & F.col(_PARSED).isNotNull()
    if len(ddl.parse_columns(value.schema)) > 1:
        # Spark parses an empty line as a row of nulls.
        is_parsed = is_parsed & (F.col(_TEXT) != "")
    return is_text & is_parsed


def _columns(value: Value) -> list[tuple[str, Column]]:
    if value.format == "text":
        return [("value", F.col(_TEXT))]
    struct = f"{_PARSED}.{_OBJECT}" if value.format == "json" else _PARSED
    names = [column.name for column in ddl.parse_columns(value.schema)]
    return [(name, F.col(f"{struct}.{ddl.quoted(name)}")) for name in names]


def _error(value: Value) -> Column:
    """Raises an error that names the message."""
    what = "not UTF-8" if value.format == "text" else f"not {value.format.upper()} of the schema"
    shown = F.substring(F.make_valid_utf8(F.col(_TEXT)), 1, _SHOWN_CHARACTERS)
    message = (F.lit("topic '"), F.col("topic"), F.lit("', offset "), F.col("offset").cast("string"))
    return F.raise_error(F.concat(*message, F.lit(f": the value is {what}: "), shown))
