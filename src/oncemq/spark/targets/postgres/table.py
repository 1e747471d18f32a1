"""The table that rows go to: found, checked against the rows' columns, made where it may be made.

Arrays, maps and structs are JSON.
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

Connection = psycopg.Connection[Any]

_INTEGERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_FLOATS = ("real", "double precision", "numeric")
#: Spark's type → PostgreSQL's types that take it without a loss of meaning; the first one is for a table of ours.
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
#: Text goes wherever it is read as text.
_NOT_FOR_TEXT = {"bytea", "boolean", "date", "timestamp with time zone", "timestamp without time zone", *_INTEGERS}

_FIND = """
select c.oid, n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass(%s)
"""
_COLUMNS = """
select a.attname, format_type(case when t.typtype = 'd' then t.typbasetype else t.oid end, null)
from pg_attribute a join pg_type t on t.oid = a.atttypid
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
"""


class Column(msgspec.Struct, frozen=True):
    name: str
    #: Spark's, or `json`.
    kind: str
    #: As a table of ours has it.
    postgres: str


class Place(msgspec.Struct, frozen=True):
    """A table that exists."""

    oid: int
    schema: str
    table: str

    @property
    def name(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    def beside(self, table: str) -> sql.Identifier:
        return sql.Identifier(self.schema, table)

    @property
    def key(self) -> str:
        return f"{self.schema}.{self.table}"


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection that stores what it commits, with its failures in words."""
    try:
        connection = psycopg.connect(url, autocommit=True, client_encoding="utf8", application_name="oncemq")
    except psycopg.OperationalError as error:
        raise errors.OnceMQError(f"PostgreSQL does not answer: {error}") from None
    except psycopg.ProgrammingError as error:
        raise errors.SettingInvalid(f"no address of a PostgreSQL database: {error}") from None
    with connection:
        yield connection


def columns_of(schema: StructType, json_columns: Sequence[str] = ()) -> list[Column]:
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
        raise errors.SettingInvalid(f"the column {name!r} has the type {spark}, which PostgreSQL has no match for")
    return Column(name, spark, _KINDS[spark][0])


def find(connection: Connection, table: str) -> Place | None:
    """`NAME` or `SCHEMA.NAME`, as it is written, capitals too."""
    found = connection.execute(_FIND, (_quoted(table),)).fetchone()
    return None if found is None else Place(*found)


def _quoted(table: str) -> str:
    parts = table.split(".")
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise errors.SettingInvalid(f"a table is NAME or SCHEMA.NAME, not {table!r}")
    return sql.Identifier(*parts).as_string()


def ready(connection: Connection, table: str, columns: Sequence[Column], *, create: bool) -> Place:
    """The table, whose columns fit. Raises SettingInvalid."""
    place = find(connection, table)
    if place is None and create:
        _make(connection, table, columns)
        place = find(connection, table)
    if place is None:
        raise errors.SettingInvalid(f"there is no table {table} in the database; make it, or ask with create: true")
    _check(connection, place, columns)
    return place


def _make(connection: Connection, table: str, columns: Sequence[Column]) -> None:
    parts = (sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(each.postgres)) for each in columns)
    command = sql.SQL("create table if not exists {} ({})")
    make(connection, command.format(sql.Identifier(*table.split(".")), sql.SQL(", ").join(parts)))


def make(connection: Connection, command: sql.Composed) -> None:
    # Another driver may make it at the same moment, which `if not exists` does not see.
    taken = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject)
    with suppress(*taken):
        connection.execute(command)


def _check(connection: Connection, place: Place, columns: Sequence[Column]) -> None:
    known = dict(connection.execute(_COLUMNS, (place.oid,)).fetchall())
    for column in columns:
        found = known.get(column.name)
        if found is None:
            raise errors.SettingInvalid(f"the table {place.key} has no column {column.name!r} to write to")
        fits = found not in _NOT_FOR_TEXT if column.kind == "string" else found in _KINDS[column.kind]
        if not fits:
            raise errors.SettingInvalid(
                f"the column {column.name!r} of the table {place.key} is {found}; the rows have {column.kind}"
            )
