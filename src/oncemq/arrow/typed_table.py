"""Stored batches of a typed topic as a table for the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from oncemq.arrow.columns import TYPES, FetchedBatches, record_batch
from oncemq.arrow.typed_reader import SchemaOf, read_typed
from oncemq.protocol import errors
from oncemq.protocol.message import COLUMN_PREFIX
from oncemq.protocol.schema import Schema
from oncemq.protocol.schema.arrow import to_arrow


def typed_table(fetched: FetchedBatches, schema: Schema, schema_of: SchemaOf, columns: Sequence[str]) -> Any:
    """Return a table with the columns of the schema, then the given columns of the messages, whose names get a prefix.

    Raises SchemaMismatch, which names the first message that does not match and its column."""
    if not fetched.batches:
        added = [pa.field(COLUMN_PREFIX + name, TYPES[name]) for name in columns]
        return pa.schema([*to_arrow(schema), *added]).empty_table()
    rows = read_typed(fetched.batches, schema, schema_of)
    if rows.errors is not None:
        index = rows.errors.is_valid().index(True).as_py()
        offset = record_batch(fetched, ("offset",)).column(0)[index].as_py()
        raise errors.SchemaMismatch(
            f"offset {offset} of '{fetched.topic}' does not match its schema: {rows.errors[index].as_py()}"
        )
    table = pa.Table.from_batches([rows.columns])
    for name, column in zip(columns, record_batch(fetched, columns).columns, strict=True):
        table = table.append_column(COLUMN_PREFIX + name, column)
    return table
