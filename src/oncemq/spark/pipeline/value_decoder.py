"""Values → columns, in Spark's own expressions: the same for streams and for batches, and no Python per row.

A value that does not fit its format becomes what `malformed` says. Spark's parsers take more than they should (what
follows a JSON object, the bytes of no character), so that they are told what is not to be taken.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from oncemq.spark.pipeline import ddl
from oncemq.spark.pipeline.model import MALFORMED_COLUMN, MESSAGE_COLUMNS, MESSAGE_PREFIX, Pipeline, Value

#: Columns on the way; no schema has such names.
_PARSED, _TEXT, _OBJECT, _BAD = "__parsed", "__text", "__object", "__bad"
_SHOWN_CHARACTERS = 200
_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}


def source_columns(pipeline: Pipeline) -> list[str]:
    """The message's columns that have to be read."""
    wanted = {"value", *pipeline.source.columns}
    if pipeline.value.format != "bytes" and pipeline.value.malformed == "fail":
        # To say which message it is.
        wanted |= {"topic", "offset"}
    return [name for name in (*MESSAGE_COLUMNS, "value") if name in wanted]


def parsed(messages: DataFrame, value: Value, columns: tuple[str, ...] = ()) -> DataFrame:
    """The view `messages`: the value's columns, then those of the message that stay."""
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
        is_good = F.when(is_good, F.lit(True)).otherwise(_raised(value).cast("boolean"))
    return found.filter(is_good).select(*(column.alias(name) for name, column in _columns(value)), *kept)


def _with_json(messages: DataFrame, value: Value) -> DataFrame:
    # Inside another object, what follows the value's own object is an error.
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
    """Never null."""
    # Of the bytes as they came: some functions mend a text in passing.
    is_text = F.is_valid_utf8(_as_text())
    if value.format == "text":
        return is_text
    is_parsed = F.col(f"{_PARSED}.{_BAD}").isNull()
    if value.format == "json":
        return is_text & is_parsed & F.col(f"{_PARSED}.{_OBJECT}").isNotNull()
    is_parsed = is_parsed & F.col(_PARSED).isNotNull()
    if len(ddl.columns_of(value.schema)) > 1:
        # Spark takes a line of nothing for a row of nulls.
        is_parsed = is_parsed & (F.col(_TEXT) != "")
    return is_text & is_parsed


def _columns(value: Value) -> list[tuple[str, Column]]:
    if value.format == "text":
        return [("value", F.col(_TEXT))]
    around = f"{_PARSED}.{_OBJECT}" if value.format == "json" else _PARSED
    names = [column.name for column in ddl.columns_of(value.schema)]
    return [(name, F.col(f"{around}.{ddl.quoted(name)}")) for name in names]


def _raised(value: Value) -> Column:
    what = "not UTF-8" if value.format == "text" else f"not {value.format.upper()} of the schema"
    shown = F.substring(F.make_valid_utf8(F.col(_TEXT)), 1, _SHOWN_CHARACTERS)
    place = (F.lit("topic '"), F.col("topic"), F.lit("', offset "), F.col("offset").cast("string"))
    return F.raise_error(F.concat(*place, F.lit(f": the value is {what}: "), shown))
