"""The target table: finds it, creates it if that is allowed, and checks its columns against those of the rows.

Arrays, maps and structs are stored as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import psycopg
from psycopg import sql
from pyspark.sql.types import DataType, DecimalType, StructType

from oncemq.protocol import errors
from oncemq.spark.targets.columns import changed_type, missing_column

Connection = psycopg.Connection[Any]

_INTEGERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_FLOATS = ("real", "double precision", "numeric")
#: Spark's type → the PostgreSQL types that can store it without loss. A created table has the first one.
_KINDS: dict[str, tuple[str, ...]] = {
    "tinyint": _INTEGERS,
    "smallint": _INTEGERS,
    "int": _INTEGERS[1:],
    "bigint": _INTEGERS[2:],
    "float": _FLOATS,
    "double": _FLOATS[1:],
    "decimal": ("numeric",),
    "boolean": ("boolean",),
    "date": ("date",),
    "timestamp": ("timestamp with time zone",),
    "timestamp_ntz": ("timestamp without time zone",),
    "binary": ("bytea",),
    "json": ("jsonb", "json", "text", "character varying"),
}
#: Text can be stored in any column whose type is parsed from text, except these.
_NOT_FOR_TEXT = {"bytea", "boolean", "date", "timestamp with time zone", "timestamp without time zone", *_INTEGERS}

_FIND = """
select c.oid, n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass(%s)
"""
_COLUMNS = """
select a.attname, format_type(case when t.typtype = 'd' then t.typbasetype else t.oid end, null),
    a.attnotnull and not a.atthasdef and a.attidentity = ''
from pg_attribute a join pg_type t on t.oid = a.atttypid
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
"""


class Column(msgspec.Struct, frozen=True):
    name: str
    #: Spark's type, or `json`.
    kind: str
    #: The type in a created table.
    postgres: str


class TargetTable(msgspec.Struct, frozen=True):
    """A table that exists."""

    oid: int
    schema: str
    table: str

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    def sibling(self, table: str) -> sql.Identifier:
        """Another table in the same schema."""
        return sql.Identifier(self.schema, table)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.table}"


@contextmanager
def open_connection(url: str) -> Iterator[Connection]:
    """A connection in autocommit mode. Raises OnceMQError, or SettingInvalid for an invalid URL."""
    try:
        connection = psycopg.connect(url, autocommit=True, client_encoding="utf8", application_name="oncemq")
    except psycopg.OperationalError as error:
        raise errors.OnceMQError(f"can't connect to PostgreSQL: {error}") from None
    except psycopg.ProgrammingError as error:
        raise errors.SettingInvalid(f"this is not the URL of a PostgreSQL database: {error}") from None
    with connection:
        yield connection


def table_columns(schema: StructType, json_columns: Sequence[str] = ()) -> list[Column]:
    """The columns of the table for rows of this schema. Raises SettingInvalid."""
    return [_column(field.name, field.dataType, json_columns) for field in schema.fields]


def _column(name: str, kind: DataType, json_columns: Sequence[str]) -> Column:
    spark = kind.simpleString()
    if isinstance(kind, DecimalType):
        return Column(name, "decimal", f"numeric({kind.precision}, {kind.scale})")
    if name in json_columns:
        return Column(name, "json", "jsonb")
    if spark.startswith(("string", "char", "varchar")):
        return Column(name, "string", "text")
    if spark not in _KINDS:
        raise errors.SettingInvalid(
            f"the column {name!r} has the type {spark}, which has no equivalent in PostgreSQL: cast or drop it"
        )
    return Column(name, spark, _KINDS[spark][0])


def find_table(connection: Connection, table: str) -> TargetTable | None:
    """Find `NAME` or `SCHEMA.NAME`. The name is case-sensitive. Raises SettingInvalid for other names."""
    parts = table.split(".")
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise errors.SettingInvalid(f"a table is NAME or SCHEMA.NAME, not {table!r}")
    found = connection.execute(_FIND, (sql.Identifier(*parts).as_string(),)).fetchone()
    return None if found is None else TargetTable(*found)


def prepare_table(
    connection: Connection, table: str, columns: Sequence[Column], *, create: bool = False, evolve: bool = False
) -> TargetTable:
    """Return the table, which can store the columns. `evolve` adds missing columns. Raises SettingInvalid."""
    found = find_table(connection, table)
    if found is None and create:
        parts = (sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(each.postgres)) for each in columns)
        command = sql.SQL("create table if not exists {} ({})")
        name = sql.Identifier(*table.split("."))
        create_if_missing(connection, command.format(name, sql.SQL(", ").join(parts)))
        found = find_table(connection, table)
    if found is None:
        raise errors.SettingInvalid(f"the database has no table {table}; create it, or set create: true")
    if evolve:
        _add_columns(connection, found, columns)
    _check(connection, found, columns)
    return found


def _add_columns(connection: Connection, table: TargetTable, columns: Sequence[Column]) -> None:
    """Add the missing columns in one transaction. It waits until no transaction reads the table."""
    known = {name for name, *_ in _columns(connection, table)}
    add = sql.SQL("add column if not exists {} {}")
    parts = [
        add.format(sql.Identifier(each.name), sql.SQL(each.postgres)) for each in columns if each.name not in known
    ]
    if parts:
        command = sql.SQL("alter table {} {}").format(table.identifier, sql.SQL(", ").join(parts))
        alter_table(connection, table.qualified_name, command)


def alter_table(connection: Connection, table: str, command: sql.Composed) -> None:
    """Add columns to a table. Raises SettingInvalid if the user may not do that."""
    try:
        connection.execute(command)
    except psycopg.errors.InsufficientPrivilege as error:
        raise errors.SettingInvalid(
            f"the table {table} needs more columns, which this user may not add ({error}); let its owner run: "
            f"{command.as_string()}"
        ) from None


def create_if_missing(connection: Connection, command: sql.Composed) -> None:
    """Run `create table if not exists`."""
    # It can fail if another driver creates the table at the same time.
    exists = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject)
    with suppress(*exists):
        connection.execute(command)


def _check(connection: Connection, table: TargetTable, columns: Sequence[Column]) -> None:
    target = f"the table {table.qualified_name}"
    known = _columns(connection, table)
    types = {name: kind for name, kind, _ in known}
    for column in columns:
        found = types.get(column.name)
        if found is None:
            raise missing_column(column.name, target)
        if found in _NOT_FOR_TEXT if column.kind == "string" else found not in _KINDS[column.kind]:
            raise changed_type(column.name, target, found, column.kind)
    for name in {name for name, _, is_required in known if is_required} - {column.name for column in columns}:
        raise errors.SettingInvalid(
            f"the column {name!r} of {target} is NOT NULL and has no default, but the rows do not have it: add the "
            "column to the rows, or drop NOT NULL"
        )


def _columns(connection: Connection, table: TargetTable) -> list[tuple[str, str, bool]]:
    """The name and type of each column, and whether each row must have it."""
    return connection.execute(_COLUMNS, (table.oid,)).fetchall()
