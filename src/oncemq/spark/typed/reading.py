"""Typed columns of a source: the columns of a schema, then the chosen columns of the message, then the error.

The version of the schema is chosen when the query starts, and stays: rows of later versions are read with it, without
the columns that it does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StringType, StructField, StructType

from oncemq.arrow.columns import TYPES, FetchedBatches, record_batch
from oncemq.arrow.typed_reader import SchemaOf, read_typed
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.schema import Field, Schema
from oncemq.protocol.schema.definitions.parse import parse_definition
from oncemq.spark.connections import shared_client
from oncemq.spark.options import SourceOptions
from oncemq.spark.schema import MESSAGE_PREFIX
from oncemq.spark.source.ranges import Range
from oncemq.spark.source.topic_offsets import selected_topics
from oncemq.spark.typed.options import ERROR_COLUMN, TypedOptions
from oncemq.spark.typed.schemas import all_versions, schema_lookup, topic_schema
from oncemq.spark.typed.spark_types import arrow_schema_of, spark_fields, struct_of


def typed_struct(options: SourceOptions) -> StructType:
    """Return the columns of a typed source. Raises SchemaUnknown, or SettingInvalid if the topics have different
    schemas."""
    assert options.typed is not None
    return _with_message_columns(_fields(options, options.typed), options)


def pinned(options: SourceOptions, struct: StructType) -> SourceOptions:
    """Return options with the columns that Spark was told, of whichever version of the schema they are. Raises
    SettingInvalid if no version has them."""
    typed = options.typed
    assert typed is not None
    # Only here, since the compiler of a Protobuf definition need not be installed where tasks run.
    schema = definition_schema(typed) if typed.definition else None
    for fields in _candidates(options, typed):
        if _with_message_columns(fields, options) == struct:
            known = msgspec.structs.replace(typed, fields=fields, schema=schema)
            return msgspec.structs.replace(options, typed=known)
    raise errors.SettingInvalid(
        f"no version of the schema has the columns {struct.simpleString()}; leave .schema(…) out, or select columns"
    )


def _candidates(options: SourceOptions, typed: TypedOptions) -> Iterator[tuple[Field, ...]]:
    yield _fields(options, typed)
    if not typed.definition and not typed.version:
        # A version may have been added since Spark asked for the columns.
        client = shared_client(options.broker, options.timeout_s)
        topic = _topics(client, options)[0]
        for version in reversed(all_versions(client, topic)):
            yield spark_fields(version.schema.fields)


def _fields(options: SourceOptions, typed: TypedOptions) -> tuple[Field, ...]:
    if typed.definition:
        return spark_fields(definition_schema(typed).fields)
    client = shared_client(options.broker, options.timeout_s)
    found: dict[str, tuple[Field, ...]] = {}
    for topic in _topics(client, options):
        _, version = topic_schema(client, topic, typed.version)
        found[topic] = spark_fields(version.schema.fields)
    first, *others = found
    for topic in others:
        if struct_of(found[topic]) != struct_of(found[first]):
            raise errors.SettingInvalid(
                f"schema=topic: the topics '{first}' and '{topic}' have different columns; read them one by one"
            )
    return found[first]


def _topics(client: Client, options: SourceOptions) -> list[str]:
    topics = list(options.selection.topics) or sorted(selected_topics(client, options.selection))
    if not topics:
        raise errors.SettingInvalid(f"schema=topic: there is no topic yet, and no schema ({options.selection})")
    return topics


def definition_schema(typed: TypedOptions) -> Schema:
    """Return the schema that the options define. Raises SettingInvalid."""
    try:
        return parse_definition(typed.definition, typed.definition_kind, message=typed.message)
    except errors.SchemaInvalid as error:
        raise errors.SettingInvalid(f"'schemaDefinition': {error.text}") from None


def _with_message_columns(fields: tuple[Field, ...], options: SourceOptions) -> StructType:
    struct = struct_of(fields)
    taken = set(struct.fieldNames())
    added: list[tuple[str, DataType]] = [
        (MESSAGE_PREFIX + name, from_arrow_type(TYPES[name], prefer_timestamp_ntz=True)) for name in options.columns
    ]
    if options.typed is not None and options.typed.on_error == "keep":
        added.append((ERROR_COLUMN, StringType()))
    for name, kind in added:
        if name in taken:
            raise errors.SettingInvalid(f"the schema has a column '{name}' already; leave it out of 'columns'")
        struct = struct.add(StructField(name, kind))
    return struct


class TypedColumns:
    """Builds the record batches of a task, which reads one topic."""

    def __init__(self, client: Client, options: SourceOptions, wanted: Range) -> None:
        assert options.typed is not None
        self._typed = options.typed
        self._columns = options.columns
        self._schema = Schema(options.typed.fields)
        self._arrow_schema = arrow_schema_of(_with_message_columns(options.typed.fields, options))
        self._schema_of = _schema_of(client, options.typed, wanted)

    def record_batch(self, fetched: FetchedBatches) -> Any:
        """Return the rows of some batches. With onError=fail, raises SchemaMismatch, which names the first message that
        does not match, and its column."""
        rows = read_typed(fetched.batches, self._schema, self._schema_of)
        reasons = rows.errors
        if reasons is not None and self._typed.on_error == "fail":
            self._fail(fetched, reasons)
        columns = [*rows.columns.columns, *self._message_columns(fetched, reasons)]
        if self._typed.on_error == "keep":
            columns.append(pa.nulls(rows.columns.num_rows, pa.string()) if reasons is None else reasons)
        arrays = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, self._arrow_schema, strict=True)
        ]
        batch = pa.record_batch(arrays, schema=self._arrow_schema)
        return batch.filter(reasons.is_null()) if reasons is not None and self._typed.on_error == "drop" else batch

    def _message_columns(self, fetched: FetchedBatches, reasons: Any) -> list[Any]:
        if self._typed.on_error != "keep" or "value" not in self._columns:
            return list(record_batch(fetched, self._columns).columns)
        # Of rows that match, nobody needs the value, which would have to be made of the columns.
        names = [name for name in self._columns if name != "value" or reasons is not None]
        found = dict(zip(names, record_batch(fetched, names).columns, strict=True))
        count = sum(head.count for head, _ in fetched.batches)
        nothing = pa.nulls(count, TYPES["value"])
        found["value"] = nothing if reasons is None else pc.if_else(reasons.is_valid(), found["value"], nothing)
        return [found[name] for name in self._columns]

    def _fail(self, fetched: FetchedBatches, reasons: Any) -> None:
        index = reasons.is_valid().index(True).as_py()
        offset = record_batch(fetched, ("offset",)).column(0)[index].as_py()
        raise errors.SchemaMismatch(
            f"topic '{fetched.topic}', offset {offset}: {reasons[index].as_py()}. onError=drop leaves such rows out, "
            "onError=keep adds a column with the reason"
        )


def _schema_of(client: Client, typed: TypedOptions, wanted: Range) -> SchemaOf:
    """What says with which schema the values of a topic were written."""
    defined = typed.schema
    if defined is not None:
        return lambda _: defined
    return schema_lookup(client, wanted.topic, wanted.topic_id, typed.version)
