"""One contract for all sinks: columns are added where that is allowed, and another type is refused before a write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from oncemq.protocol import errors
from oncemq.spark.targets.declarations import Evolve
from oncemq.spark.targets.files.folder import visible_files
from oncemq.spark.targets.objects.object_folder import ObjectFolder
from tests.spark.targets.sink_drivers import (
    QUERY,
    SCHEMA,
    DeltaBucket,
    DeltaFolder,
    ParquetBucket,
    ParquetFolder,
    PostgresRows,
    Sink,
    schema_of,
    write,
)

MORE = schema_of(number="long", text="string", price="double")


@pytest.fixture(params=["parquet", "delta", "postgres", "parquet in s3", "delta in s3"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    if "s3" in request.param:
        kind = WholeParquetBucket if "parquet" in request.param else DeltaBucket
        return kind(request.getfixturevalue("s3"), tmp_path.name)
    if request.param == "parquet":
        return WholeParquetFolder(tmp_path / "numbers")
    if request.param == "delta":
        return DeltaFolder(tmp_path / "numbers")
    return PostgresRows(request.getfixturevalue("oncemq_postgres"))


class WholeParquetFolder(ParquetFolder):
    """As a reader that unifies the schemas of all files sees it."""

    def table(self) -> dict[str, list[Any]]:
        files = sorted(self.folder.rglob("*.parquet"))
        whole = pa.unify_schemas([pq.read_schema(file) for file in files])
        found: dict[str, list[Any]] = ds.dataset(files, schema=whole, format="parquet").to_table().to_pydict()
        return found


class WholeParquetBucket(ParquetBucket):
    """The same in an object store."""

    def table(self) -> dict[str, list[Any]]:
        folder = ObjectFolder(self.target.path, self.target.storage)
        tables = [pq.read_table(folder.open(file.path)) for file in visible_files(folder)]
        found: dict[str, list[Any]] = pa.concat_tables(tables, promote_options="default").to_pydict()
        return found


def run(
    sink: Sink, schema: StructType, batch: int, rows: dict[str, Any], *, evolve: Evolve = "", query: str = QUERY
) -> None:
    sink.schema = schema
    sink.target = msgspec.structs.replace(sink.target, evolve=evolve)
    message = write(sink.writer(), [pa.record_batch(rows)], batch=batch, query=query)
    sink.writer().commit([message], batch)


def rows_of(sink: Sink) -> list[tuple[Any, ...]]:
    found = sink.table()
    return sorted(zip(*(found[name] for name in sorted(found)), strict=True), key=lambda row: row[0])


def test_a_changed_type_is_refused_with_the_column_and_both_types(sink: Sink) -> None:
    run(sink, SCHEMA, 0, {"number": [1], "text": ["a"]})
    sink.schema = schema_of(number="string", text="string")
    evolves: tuple[Evolve, ...] = ("", "add")
    for evolve in evolves:
        sink.target = msgspec.structs.replace(sink.target, evolve=evolve)
        with pytest.raises(errors.SettingInvalid) as caught:
            sink.writer()
        text = "has the type bigint, which can't store the rows' type string: cast the column"
        assert "the column 'number' of the " in str(caught.value)
        assert text in str(caught.value)
    assert rows_of(sink) == [(1, "a")]


def test_a_new_column_is_refused_unless_it_may_be_added(sink: Sink) -> None:
    run(sink, SCHEMA, 0, {"number": [1], "text": ["a"]})
    evolves: tuple[Evolve, ...] = ("", "none")
    for evolve in evolves:
        with pytest.raises(errors.SettingInvalid, match="has no column 'price': write `evolve: add`"):
            run(sink, MORE, 1, {"number": [2], "text": ["b"], "price": [0.5]}, evolve=evolve)
    assert rows_of(sink) == [(1, "a")]


def test_a_new_column_is_null_in_old_rows(sink: Sink) -> None:
    run(sink, SCHEMA, 0, {"number": [1], "text": ["a"]})
    run(sink, MORE, 1, {"number": [2], "text": ["b"], "price": [0.5]}, evolve="add")
    assert sorted(sink.table()) == ["number", "price", "text"]
    assert rows_of(sink) == [(1, None, "a"), (2, 0.5, "b")]
    with pytest.raises(errors.SettingInvalid, match=r"'price' of the .* has the type double"):
        run(sink, schema_of(number="long", price="date"), 2, {"number": [3], "price": [None]}, evolve="add")


def test_a_column_that_the_rows_no_longer_have_stays_and_is_null(sink: Sink) -> None:
    run(sink, MORE, 0, {"number": [1], "text": ["a"], "price": [0.5]})
    run(sink, schema_of(price="double", number="long"), 1, {"price": [1.5], "number": [2]})
    assert rows_of(sink) == [(1, 0.5, "a"), (2, 1.5, None)]


def test_a_batch_that_was_staged_before_a_column_was_added_is_committed(sink: Sink) -> None:
    run(sink, SCHEMA, 0, {"number": [1], "text": ["a"]})
    old = sink.writer()
    message = write(old, [pa.record_batch({"number": [2], "text": ["b"]})], batch=1)
    run(sink, MORE, 1, {"number": [3], "text": ["c"], "price": [0.5]}, evolve="add", query="other")
    old.commit([message], 1)
    assert rows_of(sink) == [(1, None, "a"), (2, None, "b"), (3, 0.5, "c")]


def test_another_field_in_a_struct_is_another_type(tmp_path: Path) -> None:
    for sink in (ParquetFolder(tmp_path / "p"), DeltaFolder(tmp_path / "d")):
        run(sink, schema_of(n="long", s=schema_of(x="integer")), 0, {"n": [1], "s": [{"x": 1}]})
        with pytest.raises(errors.SettingInvalid, match=r"'s' .* type struct<x:int>, .* type struct<x:int,y:int>"):
            run(sink, schema_of(n="long", s=schema_of(x="integer", y="integer")), 1, {"n": [], "s": []}, evolve="add")


def test_a_name_that_differs_in_case_only_is_refused(tmp_path: Path) -> None:
    for sink in (ParquetFolder(tmp_path / "p"), DeltaFolder(tmp_path / "d")):
        run(sink, SCHEMA, 0, {"number": [1], "text": ["a"]})
        with pytest.raises(errors.SettingInvalid, match=r"'Number' differs from 'number' .* only in upper and lower"):
            run(sink, schema_of(Number="long"), 1, {"Number": [2]}, evolve="add")


def test_new_parquet_files_contain_all_columns_in_one_order(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path)
    run(sink, SCHEMA, 0, {"number": [1], "text": ["a"]})
    run(sink, schema_of(price="double", number="long"), 1, {"price": [0.5], "number": [2]}, evolve="add")
    names = {tuple(pq.read_schema(file).names) for file in tmp_path.glob("*00000001*.parquet")}
    assert names == {("number", "text", "price")}


def test_a_parquet_folder_without_a_record_is_checked_against_its_newest_file(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(
        pa.table({"number": [1], "label": pa.array(["a"]).dictionary_encode()}), tmp_path / "day=1" / "x.parquet"
    )
    sink = ParquetFolder(tmp_path, ("day",))
    with pytest.raises(errors.SettingInvalid, match=r"'number' .* has the type bigint"):
        run(sink, schema_of(number="string", day="integer"), 0, {})
    with pytest.raises(errors.SettingInvalid, match="is partitioned by day, not by no column"):
        run(ParquetFolder(tmp_path), schema_of(number="long", day="integer"), 0, {})
    run(sink, schema_of(number="long", day="integer"), 0, {"number": [2], "day": pa.array([2], pa.int32())})
    assert sink.numbers() == [1, 2]


def test_a_parquet_folder_that_spark_wrote_is_appended_to(tmp_path: Path) -> None:
    """Its time stamps have nanoseconds and no zone."""
    table = pa.table({"at": pa.array([0], pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "x.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    run(ParquetFolder(tmp_path), schema_of(at="timestamp"), 0, {"at": pa.array([1], pa.timestamp("us", "UTC"))})


def test_a_column_that_each_row_of_a_table_must_have_is_named(oncemq_postgres: str) -> None:
    with psycopg.connect(oncemq_postgres, autocommit=True) as connection:
        connection.execute("create table numbers (number bigint, id serial, at date not null)")
    with pytest.raises(
        errors.SettingInvalid, match=r"'at' of the table public\.numbers is NOT NULL and has no default"
    ):
        run(PostgresRows(oncemq_postgres), schema_of(number="long"), 0, {"number": [1]})
