"""The settings of the targets that a pipeline can write to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

#: What happens if the rows have a column that the target does not have: it is added, or the rows are refused.
#: "" = added if the topic has a schema, else refused.
Evolve = Literal["", "add", "none"]
#: The name of the Spark metric that counts the dead letters of a micro-batch.
OBSERVED_DEAD = "oncemq_dead_letters"


class TopicTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, exactly once."""

    #: "" = the column `topic` of each row names its topic.
    topic: str = ""
    #: Create the topic if it does not exist.
    create: bool = False
    #: The rows have the columns of the topic's schema.
    is_typed: bool = False


class ParquetTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of Parquet files in which any reader finds each row exactly once."""

    path: str
    partition_by: tuple[str, ...] = ()
    evolve: Evolve = ""
    #: For an object store: its settings, by the names of the environment variables that contain them.
    storage: Mapping[str, str] = {}


class DeltaTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A Delta table, exactly once."""

    path: str
    partition_by: tuple[str, ...] = ()
    evolve: Evolve = ""
    #: As for Parquet.
    storage: Mapping[str, str] = {}


class PostgresTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A PostgreSQL table, exactly once."""

    #: A connection string for psycopg: `postgresql://user@host/database`.
    url: str
    table: str
    #: Create the table, with the columns of the rows' schema, if it does not exist.
    create: bool = False
    evolve: Evolve = ""


class ConsoleTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Standard output, for development."""

    rows: int = 20


Target = TopicTarget | ParquetTarget | DeltaTarget | PostgresTarget | ConsoleTarget
