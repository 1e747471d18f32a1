"""Why a value can't be parsed, as an expression of Spark that names the first column which does not match.

Spark's parsers do not say it. So the value is parsed again with all columns as text, and the first column whose text
does not become its type is named. That is evaluated only for values that can't be parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from oncemq.spark.pipeline.ddl import quoted

_SHOWN_CHARACTERS = 200
_BAD = "__bad"
_FIELD = "__field"
_END = "__end"
_JSON_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD, "allowSingleQuotes": "false"}


def json_reason(text: Column, is_utf8: Column, parsed: Column, schema: str) -> Column:
    """`parsed` is the struct that the value was parsed to, in which a column that does not match is null."""
    fields = _fields(schema)
    names = [StructField(field.name, StringType()) for field in fields]
    wrapped = F.concat(F.lit(f'{{"{_FIELD}":'), text, F.lit(f',"{_END}":0}}'))
    columns = {_FIELD: StructType(names), _END: StringType(), _BAD: StringType()}
    whole = StructType([StructField(name, kind) for name, kind in columns.items()])

    def detail(texts: Column) -> Column:
        is_whole = texts.getField(_BAD).isNull() & texts.getField(_END).isNotNull()
        is_json = is_whole & texts.getField(_FIELD).isNotNull()
        found = [_json_column(texts.getField(_FIELD).getField(field.name), parsed, field) for field in fields]
        return F.when(is_json, _first(found)).otherwise(F.lit("it is no JSON object"))

    return _reason("JSON", text, is_utf8, _bind(F.from_json(wrapped, whole, _JSON_OPTIONS), detail))


def csv_reason(text: Column, is_utf8: Column, parsed: Column, schema: str, options: Mapping[str, str]) -> Column:
    fields = _fields(schema)
    names = ", ".join(f"{quoted(name)} string" for name in (*(field.name for field in fields), _BAD))

    def detail(texts: Column) -> Column:
        is_line = texts.getField(_BAD).isNull() & (text != "")
        found = [_column(texts.getField(field.name), parsed, field) for field in fields]
        return F.when(is_line, _first(found)).otherwise(F.lit(f"it does not have {len(fields)} columns"))

    return _reason("CSV", text, is_utf8, _bind(F.from_csv(text, names, dict(options)), detail))


def _fields(schema: str) -> list[StructField]:
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    return parsed.fields


def _bind(texts: Column, detail: Callable[[Column], Column]) -> Column:
    """An expression of `texts` that contains it once. Otherwise the plan would contain the parser for each column."""
    return F.element_at(F.transform(F.array(texts), detail), 1)


def _first(columns: list[Column]) -> Column:
    return F.coalesce(*columns, F.lit("a column does not have its type"))


def _reason(kind: str, text: Column, is_utf8: Column, detail: Column) -> Column:
    shown = F.substring(F.make_valid_utf8(text), 1, _SHOWN_CHARACTERS)
    reason = F.concat(F.lit(f"the value is not {kind} of the schema: "), detail, F.lit(": "), shown)
    return F.when(is_utf8, reason).otherwise(F.lit(f"the value is not UTF-8, so it is not {kind}"))


def _json_column(text: Column, parsed: Column, field: StructField) -> Column:
    if not isinstance(field.dataType, StructType | ArrayType | MapType):
        return _column(text, parsed, field)
    # A struct with one bad field is not null, so a nested column is parsed alone.
    schema = StructType([StructField(_FIELD, field.dataType), StructField(_BAD, StringType())])
    again = F.from_json(F.concat(F.lit(f'{{"{_FIELD}":'), text, F.lit("}")), schema, _JSON_OPTIONS)
    return F.when(text.isNotNull() & again.getField(_BAD).isNotNull(), _mismatch(field.name, field.dataType))


def _column(text: Column, parsed: Column, field: StructField) -> Column:
    """What is wrong with a column; null if it matches."""
    is_wrong = text.isNotNull() & parsed.getField(field.name).isNull()
    return F.when(is_wrong, _mismatch(field.name, field.dataType))


def _mismatch(name: str, kind: DataType) -> Column:
    return F.lit(f"column '{name}' is no {kind.simpleString()}")
