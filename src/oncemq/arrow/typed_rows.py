"""Rows for a typed topic as payloads, in the encoding of its schema: typed batches for JSON, and values row by row for
Avro and Protobuf."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from oncemq.arrow.payloads import MessageColumns, Payload, build_payloads
from oncemq.arrow.typed_payloads import TypedRows, build_typed_payloads
from oncemq.protocol.batch import split
from oncemq.protocol.schema import Field, Schema, SchemaVersion
from oncemq.protocol.schema.constraints import NUMBER
from oncemq.protocol.schema.model import nested_fields
from oncemq.protocol.schema.values.codec import codec_of
from oncemq.protocol.schema.values.payload import check_values


def is_checked_by_row(schema: Schema) -> bool:
    """Whether rows, whose columns are those of the schema, may still contain a value that it does not allow."""
    return schema.encoding != "json" or _has_limits(schema.fields)


def encode_rows(
    rows: TypedRows, version: SchemaVersion, topic: str, bytes_max: int, first: int = 0
) -> Iterator[Payload]:
    """Encode rows, whose columns are those of the schema, as batches of at most `bytes_max`. `first` is the number of
    the first row, for error texts.

    Raises SchemaMismatch for a value that its constraints or its encoding do not allow."""
    schema = version.schema
    if schema.encoding != "json":
        yield from build_payloads(_encoded(rows, version), bytes_max, version.version)
        return
    is_limited = _has_limits(schema.fields)
    for payload in build_typed_payloads(rows, version, bytes_max):
        if is_limited:
            check_values(payload_values(payload.payload), schema, topic, first)
        first += payload.rows
        yield payload


def payload_values(payload: bytes) -> list[bytes]:
    """Return the values of the messages of a batch."""
    columns = split(payload)
    ends, at = columns.value_offsets, columns.values_at
    return [columns.values[at + ends[index] : at + ends[index + 1]] for index in range(columns.count)]


def _encoded(rows: TypedRows, version: SchemaVersion) -> MessageColumns:
    encode = codec_of(version.schema).encode
    values = [encode(row) for row in rows.values.to_pylist(maps_as_pydicts="strict")]
    return MessageColumns(pa.array(values, pa.binary()), rows.keys, rows.headers, rows.times_ms)


def _has_limits(fields: tuple[Field, ...]) -> bool:
    return any(set(field.constraints) - {NUMBER} or _has_limits(nested_fields(field.type)) for field in fields)
