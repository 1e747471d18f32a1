"""Frames of the caller: any library's, with exactly the columns of the schema, or an error that names the column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

from oncemq.arrow.frames import as_table, conform
from oncemq.protocol import errors
from oncemq.protocol.schema import Schema, parse_fields
from oncemq.protocol.schema.arrow import to_arrow

SCHEMA = Schema(
    parse_fields("id: int32 not null, name: string, price: float32, at: timestamp, tags: list<string>, paid: bool")
)
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
ROWS = [
    {"id": 1, "name": "a", "price": 0.5, "at": MOMENT, "tags": ["x"], "paid": True},
    {"id": 2, "name": None, "price": None, "at": None, "tags": None, "paid": None},
]


class Capsule:
    """A frame of a library that is not known, with Arrow's interface for such."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


FRAMES = {
    "table": pa.Table.from_pylist(ROWS),
    "batch": pa.RecordBatch.from_pylist(ROWS),
    "pandas": pd.DataFrame(ROWS).assign(id=lambda frame: frame["id"].astype("int64")),
    "polars": pl.DataFrame(ROWS),
    "categories": pl.DataFrame(ROWS).with_columns(pl.col("name").cast(pl.Categorical)),
    "lazy types": pa.table({**pa.Table.from_pylist(ROWS).to_pydict(), "name": pa.array(["a", None], pa.string_view())}),
    "capsule": Capsule(pa.Table.from_pylist(ROWS)),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_a_frame_of_any_library_gets_the_types_of_the_schema(frame: Any) -> None:
    found = conform(as_table(frame), SCHEMA, "orders")
    assert found.schema == to_arrow(SCHEMA)
    assert found.to_pylist() == ROWS


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(TypeError, match="expected an Arrow table"):
        as_table([1, 2])


@pytest.mark.parametrize(
    ("fields", "columns", "reason"),
    [
        ("a: int32", {"b": [1]}, "column 'b' is not in the schema of 'orders'"),
        ("a: int32, b: string not null", {"a": [1]}, "column 'b' of 'orders' is missing, and not nullable"),
        ("a: int32 not null", {"a": [1, None]}, "column 'a' of 'orders' is null in 1 of 2 rows, and not nullable"),
        ("a: int32", {"a": ["x"]}, "column 'a' is string, and int32 in the schema of 'orders'"),
        ("a: int8", {"a": [300]}, "column 'a' is int64, and int8 in the schema of 'orders': "),
        ("a: int8", {"a": [1.5]}, "column 'a' is double, and int8 in the schema of 'orders': "),
        ("a: string", {"a": [1]}, "column 'a' is int64, and string"),
        ("a: timestamp", {"a": [dt.datetime(2026, 1, 1)]}, "column 'a' is timestamp.us., and timestamp"),
        ("a: decimal(4,2)", {"a": [Decimal("123.45")]}, "column 'a' is decimal128.5, 2., and decimal.4,2."),
        ("a: list<int8 not null>", {"a": [[1, None]]}, r"column 'a\[\]' contains 1 nulls"),
        (
            "a: struct<x: int8 not null>",
            {"a": [{"x": None}]},
            "column 'a.x' contains 1 nulls",
        ),
        ("a: date", {"a": pa.array([2**30], pa.int32()).cast(pa.date32())}, "column 'a' has a date before the year 1"),
        ("a: time", {"a": pa.array([-1]).cast(pa.time64("us"))}, "column 'a' has a time outside of a day"),
        ("a: float32", {"a": [1e300, float("inf")]}, "column 'a' is double, and float32 .*: a value is too large"),
        (
            "a: struct<x: int64>",
            {"a": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])},
            "column 'a' is struct",
        ),
    ],
)
def test_a_column_that_does_not_fit_is_named(fields: str, columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(errors.SchemaMismatch, match=reason):
        conform(pa.table(columns), Schema(parse_fields(fields)), "orders")


def test_a_missing_column_is_null_or_has_its_default() -> None:
    schema = Schema(parse_fields("a: int8, b: string, c: int16 not null default 7"))
    found = conform(pa.table({"a": [1, 2]}), schema, "orders")
    assert found.to_pylist() == [{"a": 1, "b": None, "c": 7}, {"a": 2, "b": None, "c": 7}]


def test_whole_numbers_are_decimals() -> None:
    schema = Schema(parse_fields("a: decimal(4,2)"))
    assert conform(pa.table({"a": [1, None]}), schema, "orders")["a"].to_pylist() == [Decimal("1.00"), None]
    with pytest.raises(errors.SchemaMismatch, match="column 'a' is int64"):
        conform(pa.table({"a": [100]}), schema, "orders")


def test_a_null_struct_has_no_members_that_could_be_missing() -> None:
    schema = Schema(
        parse_fields("a: struct<x: int8 not null>, b: list<struct<x: uint8 not null>>, c: map<string, int8 not null>")
    )
    rows = [{"a": None, "b": [None, {"x": 1}], "c": [("k", 1)]}, {"a": {"x": 1}, "b": None, "c": None}]
    table = pa.Table.from_pylist(
        rows,
        schema=pa.schema(
            [
                ("a", pa.struct([("x", pa.int64())])),
                ("b", pa.list_(pa.struct([("x", pa.int16())]))),
                ("c", pa.map_(pa.string(), pa.int64())),
            ]
        ),
    )
    for each in (table, table.slice(1)):
        found = conform(each, schema, "orders")
        found.validate(full=True)
        assert found.to_pylist() == each.to_pylist()


def test_a_float64_is_rounded_to_a_float32() -> None:
    found = conform(pa.table({"a": [0.5, float("inf"), None]}), Schema(parse_fields("a: float32")), "orders")
    assert found.column("a").to_pylist() == [0.5, float("inf"), None]
