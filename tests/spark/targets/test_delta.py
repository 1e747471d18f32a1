"""The Delta sink: the table's schema, folders, statistics, and other writers of the same table."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from pyspark.sql.types import ArrayType, BinaryType, DayTimeIntervalType, IntegerType, MapType, StringType, StructType

from oncemq.protocol import errors
from oncemq.spark.targets.declarations import DeltaTarget
from oncemq.spark.targets.delta import sink as delta
from oncemq.spark.targets.delta import table as delta_table
from tests.spark.targets.sink_drivers import QUERY, SCHEMA, DeltaFolder, record_batches, schema_of, write, write_all

MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)


def prepare(folder: Path, schema: StructType, *partition_by: str) -> None:
    delta.prepare(DeltaTarget(path=str(folder), partition_by=partition_by), schema)


def test_a_batch_is_one_version_with_the_query_and_its_batch(tmp_path: Path) -> None:
    sink = DeltaFolder(tmp_path)
    for batch in range(3):
        sink.run([range(batch * 4, batch * 4 + 2), range(batch * 4 + 2, batch * 4 + 4)], batch=batch)
    table = DeltaTable(str(tmp_path))
    assert table.version() == 2
    assert table.transaction_version(QUERY) == 2


def test_the_first_batch_makes_the_table_though_it_is_empty(tmp_path: Path) -> None:
    DeltaFolder(tmp_path).run([[]], batch=0)
    names = [field.name for field in DeltaTable(str(tmp_path)).schema().fields]
    assert names == ["number", "text"]


def test_types_come_back_as_they_were(tmp_path: Path) -> None:
    sink = DeltaFolder(tmp_path)
    simple = {"b": "binary", "t": "timestamp", "d": "decimal(10,2)", "y": "date", "f": "float", "o": "boolean"}
    sink.schema = schema_of(**simple, a=ArrayType(IntegerType(), containsNull=False))
    sink.schema.add("m", MapType(StringType(), BinaryType())).add("s", schema_of(x="integer"), nullable=False)
    row = {"b": b"\x00\xff", "t": MOMENT, "d": Decimal("1.50"), "y": MOMENT.date(), "f": 0.5, "o": True}
    row |= {"a": [1], "m": [("k", b"v")], "s": {"x": 1}}
    kinds = {"b": pa.binary(), "t": pa.timestamp("us", "Europe/Berlin"), "d": pa.decimal128(10, 2), "y": pa.date32()}
    kinds |= {"f": pa.float32(), "o": pa.bool_(), "a": pa.list_(pa.field("element", pa.int32(), nullable=False))}
    kinds |= {"m": pa.map_(pa.string(), pa.binary()), "s": pa.struct([("x", pa.int32())])}
    message = write(sink.writer(), [pa.RecordBatch.from_pylist([row], schema=pa.schema(kinds))], batch=0)
    sink.writer().commit([message], 0)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist() == [row]


def test_partition_columns_are_folders_whatever_their_values_are(tmp_path: Path) -> None:
    sink = DeltaFolder(tmp_path, ("text", "day"))
    sink.schema = schema_of(number="long", text="string", day="date")
    texts = ["plain", "a b", "ä/ö", "50%", "a=b:c", "..", "%2F", "", None]
    days = [MOMENT.date()] * 8 + [None]
    batch = pa.record_batch({"number": list(range(9)), "text": pa.array(texts), "day": pa.array(days)})
    message = write(sink.writer(), [batch], batch=0)
    sink.writer().commit([message], 0)
    found = sink.table()
    pairs = {number: pair for number, *pair in zip(found["number"], found["text"], found["day"], strict=True)}
    # As Delta has it: an empty text is null.
    texts[7] = None
    assert pairs == {number: [text, day] for number, text, day in zip(range(9), texts, days, strict=True)}
    assert (tmp_path / "text=plain" / "day=2026-01-02").is_dir()


def test_readers_can_skip_files_by_their_statistics(tmp_path: Path) -> None:
    sink = DeltaFolder(tmp_path)
    sink.schema = schema_of(n="long", t="timestamp", x="double", s="string", y="date", l="string", e="decimal(4,1)")
    rows = {
        "n": [3, None, 7],
        "t": [MOMENT, MOMENT + datetime.timedelta(seconds=1), None],
        "x": [0.5, float("nan"), 1.5],
        "s": ["b", "a", None],
        "y": [MOMENT.date(), None, None],
        "l": ["long" * 100, None, None],
        "e": pa.array([Decimal("0.1"), Decimal("2.5"), None], pa.decimal128(4, 1)),
    }
    message = write(sink.writer(), [pa.record_batch(rows)], batch=0)
    sink.writer().commit([message], 0)
    (found,) = statistics_of(tmp_path)
    assert found["numRecords"] == 3
    assert found["nullCount"] == {"n": 1, "t": 1, "x": 0, "s": 1, "y": 2, "l": 2, "e": 1}
    # Outwards to the millisecond; no text that would have to be cut, no decimal that would be rounded.
    low = {"n": 3, "t": "2026-01-02T03:04:05.678Z", "s": "a", "y": "2026-01-02"}
    high = {"n": 7, "t": "2026-01-02T03:04:06.679Z", "s": "b", "y": "2026-01-02"}
    assert {name: found["minValues"].get(name) for name in [*low, "l", "e"]} == low | {"l": None, "e": None}
    assert {name: found["maxValues"].get(name) for name in [*high, "l", "e"]} == high | {"l": None, "e": None}
    for condition, numbers in (("n > 5", [7]), ("t >= '2026-01-02T03:04:06.678901Z'", [None]), ("n > 7", [])):
        assert where(tmp_path, condition) == numbers


def statistics_of(folder: Path) -> list[dict[str, Any]]:
    lines = (json.loads(line) for path in (folder / "_delta_log").glob("*.json") for line in path.open())
    return [json.loads(line["add"]["stats"]) for line in lines if "add" in line]


def where(folder: Path, condition: str) -> list[Any]:
    from deltalake import QueryBuilder

    found = QueryBuilder().register("t", DeltaTable(str(folder))).execute(f"select n from t where {condition}")
    numbers = pa.table(found.read_all())["n"].to_pylist()
    assert isinstance(numbers, list)
    return numbers


def test_a_table_of_somebody_else_is_appended_to(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"text": ["x"], "other": [1.5], "number": [100]}))
    DeltaFolder(tmp_path).run([range(2)], batch=0)
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("number").to_pydict()
    assert found == {"text": ["text 0", "text 1", "x"], "other": [None, None, 1.5], "number": [0, 1, 100]}


def test_other_writers_do_not_disturb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one's transaction comes between looking and committing."""
    sink = DeltaFolder(tmp_path)
    sink.run([range(3)], batch=0)
    other = pa.table({"number": pa.array([100], pa.int64()), "text": ["x"]})
    check, others = delta_table.Table.check, iter(range(3))

    def interrupted(self: delta_table.Table, table: Any) -> None:
        check(self, table)
        if table is not None and next(others, None) is not None:
            write_deltalake(str(tmp_path), other, mode="append")

    messages = write_all(sink.writer(), [range(3, 5)], batch=1)
    writer = sink.writer()
    monkeypatch.setattr(delta_table.Table, "check", interrupted)
    writer.commit(messages, 1)
    assert sink.numbers() == [0, 1, 2, 3, 4, 100, 100, 100]


def test_another_driver_between_looking_and_committing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaFolder(tmp_path)
    sink.run([range(3)], batch=0)
    check = delta_table.Table.check
    has_run: list[bool] = []

    def interrupted(self: delta_table.Table, table: Any) -> None:
        check(self, table)
        if not has_run:
            has_run.append(True)
            sink.run([range(4, 5), range(3, 4)], batch=1)

    messages = write_all(sink.writer(), [range(3, 5)], batch=1)
    writer = sink.writer()
    monkeypatch.setattr(delta_table.Table, "check", interrupted)
    writer.commit(messages, 1)
    assert has_run
    assert sink.numbers() == list(range(5))
    assert sink.leftovers() == []


def test_a_log_that_takes_no_transaction_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise CommitFailedError("no room")

    sink = DeltaFolder(tmp_path)
    sink.run([range(3)], batch=0)
    monkeypatch.setattr(delta_table.Table, "_append", never)
    with pytest.raises(errors.OnceMQError, match="no room"):
        sink.run([range(3, 5)], batch=1)


@pytest.mark.parametrize(
    ("schema", "partition_by", "message"),
    [
        (schema_of(number="long", text="string", more="long"), (), "no column 'more'"),
        (schema_of(number="string", text="string"), (), "has the type bigint, which can't store the rows' type string"),
        (SCHEMA, ("text",), "it is partitioned by"),
        (schema_of(number="long", when=ArrayType(DayTimeIntervalType())), (), "which Delta tables do not support"),
    ],
)
def test_rows_that_do_not_fit_are_refused_at_once(
    tmp_path: Path, schema: StructType, partition_by: tuple[str, ...], message: str
) -> None:
    DeltaFolder(tmp_path).run([range(3)], batch=0)
    with pytest.raises(errors.SettingInvalid, match=message):
        prepare(tmp_path, schema, *partition_by)


def test_a_table_whose_rules_the_sink_does_not_keep_is_refused(tmp_path: Path) -> None:
    columns = Schema([Field("number", PrimitiveType("long"), nullable=False), Field("text", PrimitiveType("string"))])
    DeltaTable.create(str(tmp_path / "full"), columns)
    with pytest.raises(errors.SettingInvalid, match="is not nullable"):
        prepare(tmp_path / "full", SCHEMA)
    DeltaFolder(tmp_path / "ruled").run([range(3)], batch=0)
    DeltaTable(str(tmp_path / "ruled")).alter.add_constraint({"positive": "number >= 0"})
    with pytest.raises(errors.SettingInvalid, match=r"delta\.constraints\.positive"):
        prepare(tmp_path / "ruled", SCHEMA)


def test_a_table_that_changed_while_the_query_ran_is_an_error_and_gets_nothing(tmp_path: Path) -> None:
    sink = DeltaFolder(tmp_path)
    messages = write_all(sink.writer(), [range(3)], batch=0)
    writer = sink.writer()
    write_deltalake(str(tmp_path), pa.table({"number": ["not a number"]}))
    with pytest.raises(errors.SettingInvalid, match="can't store the rows' type bigint"):
        writer.commit(messages, 0)
    writer.abort(messages, 0)
    assert DeltaTable(str(tmp_path)).version() == 0
    assert sink.leftovers() == []


def test_vacuum_removes_what_attempts_left_behind(tmp_path: Path) -> None:
    sink = DeltaFolder(tmp_path)
    write(sink.writer(), record_batches(range(3)), batch=0)
    sink.run([range(3)], batch=0)
    assert len(sink.leftovers()) == 1
    DeltaTable(str(tmp_path)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert sink.leftovers() == []
    assert sink.numbers() == [0, 1, 2]
