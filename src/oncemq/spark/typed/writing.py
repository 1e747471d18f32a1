"""Rows of a DataFrame as messages of a typed topic: checked against its schema, then encoded.

The columns are those of the schema, by name. `message_key`, `message_headers` and, with timestamps=keep,
`message_timestamp` become the key, the headers and the time of each message, unless the schema has a column of this
name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from oncemq.arrow.frames import conform
from oncemq.arrow.payloads import MessageColumns, Payload, extra_columns
from oncemq.arrow.typed_payloads import TypedRows
from oncemq.arrow.typed_rows import encode_rows, payload_values
from oncemq.protocol import errors
from oncemq.protocol.schema import Field, SchemaVersion, type_text
from oncemq.protocol.schema.arrow import type_from_arrow
from oncemq.spark.connections import shared_client
from oncemq.spark.options import SinkOptions
from oncemq.spark.schema import MESSAGE_PREFIX
from oncemq.spark.typed.accepted import accepts
from oncemq.spark.typed.schemas import topic_schema
from oncemq.spark.typed.spark_types import arrow_schema_of

#: The size of the batches that are only made to be digested.
_DIGESTED_BYTES = 1024 * 1024


class TypedTarget(msgspec.Struct, frozen=True):
    """The topic's schema, as it was when the query started."""

    topic: str
    topic_id: int
    version: SchemaVersion

    def extras(self, names: Collection[str], *, keeps_times: bool) -> list[str]:
        """Return which of these columns belong to the message, without their prefix."""
        taken = {field.name for field in self.version.schema.fields}
        known = ("key", "headers", "timestamp") if keeps_times else ("key", "headers")
        return [name for name in known if MESSAGE_PREFIX + name in names and MESSAGE_PREFIX + name not in taken]

    def rows(self, batch: Any, *, keeps_times: bool) -> TypedRows:
        """Return the rows of a record batch with exactly the columns of the schema. Raises SchemaMismatch, which names
        the column."""
        table = pa.Table.from_batches([batch])
        extras = self.extras(table.schema.names, keeps_times=keeps_times)
        chosen = [MESSAGE_PREFIX + name for name in extras]
        columns = batch.select(chosen).rename_columns(extras)
        typed = conform(table.drop_columns(chosen), self.version.schema, self.topic)
        (values,) = typed.combine_chunks().to_batches()
        return TypedRows(values, *extra_columns(columns, keeps_times=keeps_times))

    def payloads(self, rows: TypedRows, bytes_max: int) -> Iterator[Payload]:
        """Encode rows as batches."""
        return encode_rows(rows, self.version, self.topic, bytes_max)

    def messages(self, rows: TypedRows) -> MessageColumns:
        """Return rows as the messages that consumers see."""
        payloads = self.payloads(rows, _DIGESTED_BYTES)
        values = [value for payload in payloads for value in payload_values(payload.payload)]
        return MessageColumns(pa.array(values, pa.binary()), rows.keys, rows.headers, rows.times_ms)


def typed_target(options: SinkOptions, struct: StructType) -> TypedTarget:
    """Look up the schema of the sink's topic, and check the columns of the rows against it.

    Raises SchemaUnknown if the topic has none, SchemaMismatch with the column and both types, SettingInvalid."""
    client = shared_client(options.broker, options.timeout_s)
    target = TypedTarget(options.topic, *topic_schema(client, options.topic, options.schema_version))
    extras = target.extras(struct.fieldNames(), keeps_times=options.keeps_times)
    if options.keeps_times and "timestamp" not in extras:
        raise errors.SettingInvalid(
            f"timestamps=keep needs a column '{MESSAGE_PREFIX}timestamp' that is not one of the schema"
        )
    _check_columns(struct, target, {MESSAGE_PREFIX + name for name in extras})
    return target


def _check_columns(struct: StructType, target: TypedTarget, extras: Collection[str]) -> None:
    topic, version, schema = target.topic, target.version.version, target.version.schema
    known = {field.name: field for field in schema.fields}
    given = {field.name: field for field in struct.fields if field.name not in extras}
    for name in given:
        if name not in known:
            names = ", ".join(known)
            raise errors.SchemaMismatch(
                f"column '{name}' is not in the schema of '{topic}', version {version}, which has {names}"
            )
    missing = [field.name for field in schema.fields if field.is_required and field.name not in given]
    if missing:
        raise errors.SchemaMismatch(f"column '{missing[0]}' of '{topic}' is missing, and not nullable")
    arrow_schema = arrow_schema_of(struct)
    for name, spark_field in given.items():
        _check_type(known[name], arrow_schema.field(name).type, spark_field.dataType.simpleString(), topic)


def _check_type(field: Field, arrow_type: Any, shown: str, topic: str) -> None:
    try:
        is_accepted = accepts(type_from_arrow(arrow_type, field.name), field.type)
    except errors.SchemaInvalid:
        is_accepted = False
    if not is_accepted:
        raise errors.SchemaMismatch(
            f"column '{field.name}' is {shown}, and {type_text(field.type)} in the schema of '{topic}': use cast()"
        )
