"""One sentence for a row that the table refuses: a null, a number out of range, a text that is not of the type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from oncemq.protocol import errors

#: The context of an error in COPY: `COPY stage, line 3, column price: "1e9"`.
_COLUMN = re.compile(r"^COPY .*?, line \d+, column (.*?)(?:: |$)", re.MULTILINE)


@contextmanager
def explain_refused_rows(table: str) -> Iterator[None]:
    """Raises PipelineFailed, which names the column if PostgreSQL names it, but not the row."""
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise errors.PipelineFailed(_sentence(table, error)) from error


def _sentence(table: str, error: psycopg.Error) -> str:
    found = error.diag
    in_copy = _COLUMN.search(found.context or "")
    column = found.column_name or (in_copy[1] if in_copy else "")
    where = f"column {column!r}: " if column else ""
    # The detail of other errors contains the row.
    detail = f" ({found.message_detail})" if found.message_detail and isinstance(error, psycopg.DataError) else ""
    text = " ".join(f"{found.message_primary}{detail}".split())
    return f"the table {table} refused a row, so the batch is not written: {where}{text}; filter or cast such rows"
