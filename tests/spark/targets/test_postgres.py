"""The PostgreSQL sink: text and types through COPY, tables that fit or don't, crashes of the database, old stages."""

from __future__ import annotations

import datetime
import importlib.util
import math
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql.types import DayTimeIntervalType, StructType

from oncemq.protocol import errors
from oncemq.spark.targets.declarations import PostgresTarget
from oncemq.spark.targets.postgres import batches as postgres_batches
from oncemq.spark.targets.postgres import sink as postgres
from oncemq.spark.targets.postgres.copy_text import copy_text
from oncemq.testing.postgres import PostgresServer
from tests.spark.targets.sink_drivers import QUERY, SCHEMA, PostgresRows, record_batches, schema_of, write, write_all

MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)


@pytest.fixture
def admin(oncemq_postgres: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(oncemq_postgres, autocommit=True) as connection:
        yield connection


@pytest.fixture
def sink(oncemq_postgres: str) -> PostgresRows:
    return PostgresRows(oncemq_postgres)


def prepare(url: str, schema: StructType = SCHEMA, *, table: str = "numbers", create: bool = False) -> None:
    postgres.prepare(PostgresTarget(url=url, table=table, create=create), schema)


def store(sink: PostgresRows, batch: Any) -> None:
    message = write(sink.writer(), [batch], batch=0)
    sink.writer().commit([message], 0)


def test_texts_come_back_as_they_were(sink: PostgresRows) -> None:
    texts = [
        "",
        None,
        "\\N",
        "\\.",
        "a\n\\.\nb",
        "tab\there",
        "cr\r\nlf",
        "back\\slash",
        "\\x00",
        '"quoted", ',
        "ä€😀",
        " ",
    ]
    store(sink, pa.record_batch({"number": list(range(len(texts))), "text": texts}))
    found = sink.table()
    assert dict(zip(found["number"], found["text"], strict=True)) == dict(enumerate(texts))


def test_types_come_back_as_they_were(sink: PostgresRows) -> None:
    simple = {"b": "binary", "t": "timestamp", "n": "timestamp_ntz", "d": "decimal(10,2)", "y": "date", "f": "double"}
    sink.schema = schema_of(**simple, o="boolean", i="integer", h="short", s="byte", r="float")
    row = {"b": b"\x00\xff\\x", "t": MOMENT, "n": MOMENT.replace(tzinfo=None), "d": Decimal("-1.50"), "f": 0.1}
    row |= {"y": MOMENT.date(), "o": True, "i": -(2**31), "h": 2**15 - 1, "s": -128, "r": 0.5}
    kinds = {"b": pa.binary(), "t": pa.timestamp("us", "Europe/Berlin"), "n": pa.timestamp("us"), "f": pa.float64()}
    kinds |= {"d": pa.decimal128(10, 2), "y": pa.date32(), "o": pa.bool_(), "i": pa.int32(), "h": pa.int16()}
    kinds |= {"s": pa.int8(), "r": pa.float32()}
    old = {"t": datetime.datetime(1883, 1, 1, tzinfo=datetime.UTC), "f": -math.inf, "b": b""}
    rows = [row, dict.fromkeys(row), dict.fromkeys(row) | old]
    store(sink, pa.RecordBatch.from_pylist(rows, schema=pa.schema(kinds)))
    found = sink.table()
    assert [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)] == [
        {name: row[name] for name in found} for row in rows
    ]


def test_a_slice_of_a_column_of_bytes_is_its_own() -> None:
    column = pa.array([b"\x01\x02", None, b"", b"\x03", b"\xff" * 3])
    batch = pa.record_batch({"b": column}).slice(1)
    assert bytes(copy_text(batch)) == b"\\N\n\\\\x\n\\\\x03\n\\\\xffffff\n"
    assert bytes(copy_text(batch.slice(1, 1))) == b"\\\\x\n"


def test_nested_columns_are_json(sink: PostgresRows, admin: psycopg.Connection[Any]) -> None:
    sink.schema = schema_of(number="long", headers="string")
    target = PostgresTarget(url=sink.url, table="numbers", create=True)
    with postgres._batches(target, sink.schema, ["headers"]) as batches:
        batches.create_tables()
    writer = postgres.PostgresWriter(target, sink.schema, ["headers"])
    batch = pa.record_batch({"number": [1, 2], "headers": ['{"a": [1, null]}', None]})
    writer.commit([write(writer, [batch], batch=0)], 0)
    assert sink.table()["headers"] == [{"a": [1, None]}, None]
    assert admin.execute("select pg_typeof(headers)::text from numbers").fetchone() == ("jsonb",)


def test_the_table_of_an_earlier_version_gets_a_column_for_contents(
    sink: PostgresRows, admin: psycopg.Connection[Any]
) -> None:
    sink.run([range(2)], batch=0)
    admin.execute("alter table oncemq_batches drop column content")
    sink.run([range(2)], batch=0)
    sink.run([range(2, 4)], batch=1)
    assert sink.numbers() == [0, 1, 2, 3]
    assert admin.execute("select batch, content from oncemq_batches").fetchall() == [(1, None)]


def test_a_user_who_may_not_add_the_column_is_told_how_to_get_it(
    sink: PostgresRows, admin: psycopg.Connection[Any]
) -> None:
    sink.run([range(2)], batch=0)
    admin.execute("alter table oncemq_batches drop column content")
    admin.execute("create role guest login; grant all on all tables in schema public to guest")
    guest = PostgresRows(make_conninfo(sink.url, user="guest"))
    with pytest.raises(errors.SettingInvalid, match=r"let its owner run: alter table .* add column .* content"):
        guest.run([range(2, 4)], batch=1)
    guest.target = msgspec.structs.replace(guest.target, evolve="add")
    guest.schema = schema_of(number="long", text="string", price="double")
    with pytest.raises(errors.SettingInvalid, match=r'let its owner run: alter table .* add column .* "price" double'):
        guest.writer()
    admin.execute("drop owned by guest; drop role guest")


def test_a_table_with_other_columns_defaults_and_capitals_is_written(
    sink: PostgresRows, admin: psycopg.Connection[Any]
) -> None:
    admin.execute("create schema \"App\"; create type mood as enum ('text 0', 'text 1')")
    admin.execute(
        'create table "App"."Numbers" (id serial primary key, number numeric, "text" mood, at date default now())'
    )
    sink = PostgresRows(sink.url, "App.Numbers")
    sink.run([range(2)], batch=0)
    found = sink.table()
    assert (found["id"], found["number"], found["text"]) == ([1, 2], [0, 1], ["text 0", "text 1"])
    assert None not in found["at"]


@pytest.mark.parametrize(
    ("table", "schema", "message"),
    [
        ("(number bigint)", SCHEMA, "has no column 'text'"),
        (
            "(number text, text text)",
            SCHEMA,
            "'number' of the table public.numbers has the type text, which can't store the rows' type bigint",
        ),
        ("(number bigint, text bytea)", SCHEMA, "has the type bytea, which can't store the rows' type string"),
        (
            "(t timestamp)",
            schema_of(t="timestamp"),
            "has the type timestamp without time zone, which can't store the rows' type timestamp",
        ),
        ("(t int)", schema_of(t=DayTimeIntervalType()), "no equivalent"),
    ],
)
def test_rows_that_do_not_fit_are_refused_at_once(
    admin: psycopg.Connection[Any], oncemq_postgres: str, table: str, schema: StructType, message: str
) -> None:
    admin.execute(f"create table numbers {table}")
    with pytest.raises(errors.SettingInvalid, match=message):
        prepare(oncemq_postgres, schema)


def test_a_table_that_is_not_there_is_named(oncemq_postgres: str) -> None:
    with pytest.raises(errors.SettingInvalid, match="no table numbers"):
        prepare(oncemq_postgres)
    with pytest.raises(errors.SettingInvalid, match=r"NAME or SCHEMA\.NAME"):
        prepare(oncemq_postgres, table="a.b.c")


def test_a_database_that_is_away_is_said_so_without_the_password() -> None:
    with pytest.raises(errors.OnceMQError, match="connect to PostgreSQL") as caught:
        prepare("postgresql://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)
    with pytest.raises(errors.SettingInvalid, match="not the URL of a PostgreSQL database"):
        prepare("nonsense://")


def test_without_psycopg_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(errors.MissingExtra, match=r'pip install "oncemq\[postgres\]"'):
        prepare("postgresql://")


def test_a_row_that_the_table_refuses_stops_the_batch_and_stores_nothing(
    sink: PostgresRows, admin: psycopg.Connection[Any]
) -> None:
    sink.run([range(2)], batch=0)
    admin.execute("alter table numbers add constraint small check (number < 5)")
    messages = write_all(sink.writer(), [range(2, 4), range(4, 6)], batch=1)
    with pytest.raises(errors.PipelineFailed, match=r'numbers refused a row.*violates check constraint "small"'):
        sink.writer().commit(messages, 1)
    sink.writer().abort(messages, 1)
    assert sink.numbers() == [0, 1]
    assert sink.leftovers() == []
    admin.execute("alter table numbers drop constraint small")
    sink.run([range(2, 6)], batch=1)
    assert sink.numbers() == list(range(6))


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        ("number bigint not null, text text", {"number": None, "text": "x"}, "column 'number': null value in column"),
        (
            "number numeric(5, 2), text text",
            {"number": 10**6, "text": "x"},
            r"column 'number': numeric field overflow \(",
        ),
        ("number bigint, text mood", {"number": 1, "text": "bored"}, "column 'text': invalid input value for enum"),
        ("number bigint, text varchar(3)", {"number": 1, "text": "long"}, "value too long for type"),
    ],
)
def test_a_value_that_the_table_can_not_store_is_an_error_that_names_the_column(
    sink: PostgresRows, admin: psycopg.Connection[Any], columns: str, row: dict[str, Any], message: str
) -> None:
    admin.execute(f"create type mood as enum ('happy'); create table numbers ({columns})")
    kinds = pa.schema({"number": pa.int64(), "text": pa.string()})
    with pytest.raises(errors.PipelineFailed, match=f"public.numbers refused a row.*{message}.*filter or cast"):
        sink.writer().commit([write(sink.writer(), [pa.RecordBatch.from_pylist([row], schema=kinds)], batch=0)], 0)
    assert sink.numbers() == []


def test_a_trigger_may_leave_rows_out(sink: PostgresRows, admin: psycopg.Connection[Any]) -> None:
    sink.run([range(2)], batch=0)
    admin.execute(
        "create function odd() returns trigger language plpgsql as $$ begin"
        " if new.number % 2 = 0 then return null; end if; return new; end $$;"
        " create trigger odd before insert on numbers for each row execute function odd()"
    )
    sink.run([range(2, 6)], batch=1)
    assert sink.numbers() == [0, 1, 3, 5]


def test_a_crash_of_the_database_between_stage_and_commit_is_noticed(
    oncemq_postgres_server: PostgresServer, sink: PostgresRows
) -> None:
    """It empties unlogged tables."""
    if not oncemq_postgres_server.is_own:
        pytest.skip("the server is not ours to kill")
    sink.run([range(3)], batch=0)
    messages = write_all(sink.writer(), [range(3, 6)], batch=1)
    oncemq_postgres_server.kill()
    oncemq_postgres_server.start()
    with pytest.raises(errors.OnceMQError, match="are missing, because the database crashed"):
        sink.writer().commit(messages, 1)
    assert sink.numbers() == [0, 1, 2]
    sink.run([range(3, 6)], batch=1)
    assert sink.numbers() == list(range(6))
    assert sink.leftovers() == []


def test_a_connection_that_breaks_in_the_commit_leaves_all_or_nothing(
    sink: PostgresRows, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.run([range(3)], batch=0)
    insert = postgres_batches.PostgresBatches._insert

    def breaking(self: postgres_batches.PostgresBatches, attempt: str, rows: int) -> None:
        insert(self, attempt, rows)
        admin.execute("select pg_terminate_backend(%s)", (self._connection.info.backend_pid,))

    messages = write_all(sink.writer(), [range(3, 6)], batch=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_batches.PostgresBatches, "_insert", breaking)
        with pytest.raises(psycopg.OperationalError):
            sink.writer().commit(messages, 1)
    assert sink.numbers() == [0, 1, 2]
    sink.run([range(3, 6)], batch=1)
    assert sink.numbers() == list(range(6))


def test_stages_that_were_left_behind_go_with_a_later_commit(
    sink: PostgresRows, admin: psycopg.Connection[Any]
) -> None:
    write(sink.writer(), record_batches(range(3)), batch=0)
    write(sink.writer(), record_batches(range(3)), batch=5, query="old")
    write(sink.writer(), record_batches(range(3)), batch=5, query="young")
    admin.execute("update oncemq_stages set staged_at = now() - interval '8 days' where query = 'old'")
    sink.run([range(3)], batch=1)
    assert admin.execute("select query from oncemq_stages").fetchall() == [("young",)]
    assert len(sink.leftovers()) == 1


def test_a_backup_that_reads_a_stage_does_not_hold_up_the_stream(
    sink: PostgresRows, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_batches, "_LOCK_TIMEOUT", "set local lock_timeout = '10ms'")
    messages = write_all(sink.writer(), [range(3)], batch=0)
    (stage,) = sink.leftovers()
    with admin.transaction():
        admin.execute(f"lock table {stage} in access share mode")
        sink.writer().commit(messages, 0)
        assert sink.leftovers() == [stage]
    assert sink.numbers() == [0, 1, 2]
    sink.run([range(3, 4)], batch=1)
    assert sink.leftovers() == []


def test_a_commit_is_durable_though_the_database_is_set_to_hurry(
    sink: PostgresRows, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    clean = postgres_batches.PostgresBatches._insert

    def looking(self: postgres_batches.PostgresBatches, attempt: str, rows: int) -> None:
        clean(self, attempt, rows)
        seen.append(self._run("show synchronous_commit").fetchone())

    monkeypatch.setattr(postgres_batches.PostgresBatches, "_insert", looking)
    url = make_conninfo(sink.url, options="-c synchronous_commit=off")
    PostgresRows(url).run([range(3)], batch=0)
    assert seen == [("on",)]


def test_the_table_is_made_once_by_drivers_that_start_at_once(oncemq_postgres: str) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def start() -> None:
        barrier.wait()
        try:
            prepare(oncemq_postgres, create=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    sink = PostgresRows(oncemq_postgres)
    sink.run([range(3)], batch=0)
    with psycopg.connect(oncemq_postgres) as connection:
        found = connection.execute("select query, target, batch from oncemq_batches").fetchall()
    assert found == [(QUERY, "public.numbers", 0)]
