"""Typed batches: the values of a batch as columns, in the layout of Arrow. Needs no package beyond the core's.

description.py   which columns a batch has: names and types
layout.py        where the buffers of the columns are, checked
rows.py          single messages: each row as JSON
"""

from oncemq.protocol.columnar.description import describe, parse_description
from oncemq.protocol.columnar.layout import (
    TEXT_BYTES_MAX,
    ColumnLayout,
    ValuesLayout,
    row_text_bytes,
    values_layout,
)
from oncemq.protocol.columnar.rows import decimal_text, row_values

__all__ = [
    "TEXT_BYTES_MAX",
    "ColumnLayout",
    "ValuesLayout",
    "decimal_text",
    "describe",
    "parse_description",
    "row_text_bytes",
    "row_values",
    "values_layout",
]
