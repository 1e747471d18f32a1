"""Where a pipeline's rows go. What a person can set, and nothing of how it is done."""

from __future__ import annotations

import msgspec


class TopicTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, exactly once."""

    #: "" = the rows' column `topic` says it.
    topic: str = ""
    #: Make the topic where there is none.
    create: bool = False


class ParquetTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of Parquet files that any reader sees exactly once."""

    path: str
    partition_by: tuple[str, ...] = ()


class DeltaTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A Delta table, exactly once."""

    path: str
    partition_by: tuple[str, ...] = ()


class PostgresTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A PostgreSQL table, exactly once."""

    #: As psycopg takes it: `postgresql://user@host/database`.
    url: str
    table: str
    #: Make the table, with columns out of the rows' schema, where there is none.
    create: bool = False


class ConsoleTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Standard output, for looking."""

    rows: int = 20


Target = TopicTarget | ParquetTarget | DeltaTarget | PostgresTarget | ConsoleTarget
