"""Stored batches of a topic as the columns of one version of its schema, whatever they are: typed batches, and plain
ones with values in JSON, Avro or Protobuf, of this version or another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from oncemq.arrow.columns import StoredBatch
from oncemq.arrow.evolution import evolve
from oncemq.arrow.typed_columns import typed_columns
from oncemq.arrow.values import decode_values
from oncemq.protocol import errors
from oncemq.protocol.replies import BatchHead
from oncemq.protocol.schema import Schema

#: The version of a topic's schema → the schema; 0 → the one for messages from before it had any. Raises SchemaUnknown.
SchemaOf = Callable[[int], Schema]


class TypedRows(NamedTuple):
    """Rows of consecutive messages."""

    #: A record batch with the columns of the schema. If there are errors, all of them are nullable.
    columns: Any
    #: A string column: null, or why the value of a row does not match its schema. None if all of them match.
    errors: Any


def read_typed(batches: Sequence[tuple[BatchHead, bytes]], schema: Schema, schema_of: SchemaOf) -> TypedRows:
    """Return the rows of stored batches. The head of each says which of its messages are meant.

    Raises Malformed for a damaged batch, SchemaMismatch for columns that can't be read with this schema."""
    parts = list(_decoded(batches, schema, schema_of))
    if all(reasons is None for _, reasons in parts):
        return TypedRows(_concatenated([evolve(columns, schema) for columns, _ in parts]), None)
    loose = loosened(schema)
    reasons = [pa.nulls(columns.num_rows, pa.string()) if reasons is None else reasons for columns, reasons in parts]
    return TypedRows(_concatenated([evolve(columns, loose) for columns, _ in parts]), pa.concat_arrays(reasons))


def loosened(schema: Schema) -> Schema:
    """Return a schema whose columns are all nullable, for rows that may not match."""
    fields = (msgspec.structs.replace(field, nullable=True, default=None) for field in schema.fields)
    return msgspec.structs.replace(schema, fields=tuple(fields))


def _decoded(
    batches: Sequence[tuple[BatchHead, bytes]], schema: Schema, schema_of: SchemaOf
) -> Iterator[tuple[Any, Any]]:
    """Yield columns, of this version or the one that they were written with, and the reasons for rows that do not
    match."""
    plain: list[StoredBatch] = []
    for head, payload in batches:
        batch = StoredBatch(head, payload)
        layout = batch.layout
        if plain and (not layout.value_offsets_at or layout.schema_version != plain[0].layout.schema_version):
            yield _decode_plain(plain, schema_of)
            plain = []
        if layout.value_offsets_at:
            plain.append(batch)
        else:
            yield _decode_typed(batch, schema, schema_of)
    if plain:
        yield _decode_plain(plain, schema_of)


def _decode_typed(batch: StoredBatch, schema: Schema, schema_of: SchemaOf) -> tuple[Any, Any]:
    head = batch.head
    try:
        return evolve(typed_columns(batch.payload, batch.layout).slice(head.skip, head.count), schema), None
    except errors.SchemaMismatch:
        # Its producer did not check it. As values, its rows match or do not match one by one.
        columns, reasons = _decode_plain([batch], schema_of)
        if reasons is None:
            raise
        return columns, reasons


def _decode_plain(batches: Sequence[StoredBatch], schema_of: SchemaOf) -> tuple[Any, Any]:
    written = schema_of(batches[0].layout.schema_version)
    values = pa.concat_arrays([batch.values() for batch in batches])
    columns, reasons = decode_values(values, written)
    return columns, reasons if reasons.null_count < len(reasons) else None


def _concatenated(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
