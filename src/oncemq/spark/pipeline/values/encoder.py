"""Encodes rows as messages of a topic.

A row with a column `value` is a message with that value, and with its `key` and `headers` if it has them. Any other row
becomes a JSON object of all its columns. Nulls are included, and bytes are base64. With `value: typed`, the columns of
a row are those of the topic's schema.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType, VariantType

from oncemq.protocol.errors import PipelineInvalid
from oncemq.spark.pipeline.ddl import quoted
from oncemq.spark.pipeline.model import MESSAGE_PREFIX, Encoding
from oncemq.spark.pipeline.problems import nearest

_JSON = {"ignoreNullFields": "false"}


def encode_rows(rows: DataFrame, encoding: Encoding, *, by_row: bool = False) -> DataFrame:
    """Return rows with the columns of the topic sink. Raises PipelineInvalid.

    `by_row`: the column `topic` names the topic of each row."""
    names = rows.columns
    if by_row and "topic" not in names:
        raise PipelineInvalid("target: the rows have no column 'topic'; add it to the result, or write `topic: NAME`")
    if encoding.value == "typed":
        return rows.withColumn(MESSAGE_PREFIX + "key", _key(rows, encoding.key)) if encoding.key else rows
    if encoding.value == "json" or (not encoding.value and "value" not in names):
        fields = [F.col(quoted(name)) for name in names if not (by_row and name == "topic")]
        columns = [F.to_json(F.struct(*fields), _JSON).alias("value")]
    else:
        columns = [_value(rows, encoding), *_key_and_headers(rows, encoding, by_row=by_row)]
    if encoding.key:
        columns.append(_key(rows, encoding.key))
    if by_row:
        columns.append(F.col("topic").cast("string"))
    return rows.select(*columns)


def _value(rows: DataFrame, encoding: Encoding) -> Column:
    if "value" not in rows.columns:
        text = f"target: `value: {encoding.value}` needs a column 'value', but the rows have {', '.join(rows.columns)}"
        raise PipelineInvalid(f"{text}; rename one of them (… AS value), or write `value: json`")
    kind = rows.schema["value"].dataType
    if encoding.value == "bytes" and not isinstance(kind, BinaryType | StringType):
        text = f"target: `value: bytes` needs bytes or text, but the column 'value' is {kind.simpleString()}"
        raise PipelineInvalid(f"{text}; cast it, or write `value: text`")
    if encoding.value == "bytes" or (not encoding.value and isinstance(kind, BinaryType)):
        return F.col("value").cast("binary").alias("value")
    return _as_text(rows, "value").alias("value")


def _key_and_headers(rows: DataFrame, encoding: Encoding, *, by_row: bool) -> list[Column]:
    """The other columns of a message, if the rows have them."""
    used = {"value", "key", "headers", *(["topic"] if by_row else []), *([encoding.key] if encoding.key else [])}
    others = [name for name in rows.columns if name not in used]
    if others:
        text = f"target: a message has a 'value', but no column {', '.join(map(repr, others))}"
        raise PipelineInvalid(f"{text}; remove it from the result, or write `value: json` to put all into the value")
    names = [name for name in ("key", "headers") if name in rows.columns and not (name == "key" and encoding.key)]
    return [_key(rows, "key") if name == "key" else F.col(name) for name in names]


def _key(rows: DataFrame, name: str) -> Column:
    if name not in rows.columns:
        advice = nearest(name, rows.columns, f"the rows have {', '.join(rows.columns)}")
        raise PipelineInvalid(f"target.key: the rows have no column {name!r}; {advice}")
    if isinstance(rows.schema[name].dataType, BinaryType):
        return F.col(quoted(name)).alias("key")
    return _as_text(rows, name).alias("key")


def _as_text(rows: DataFrame, name: str) -> Column:
    column = F.col(quoted(name))
    if isinstance(rows.schema[name].dataType, StructType | ArrayType | MapType | VariantType):
        return F.to_json(column, _JSON)
    return column.cast("string")
