"""Typed batches and Arrow: columns come out as they went in, sliced or not, and as the rows that other readers see."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from oncemq.arrow.typed_columns import typed_columns
from oncemq.arrow.typed_payloads import TypedRows, build_typed_payloads
from oncemq.protocol import errors
from oncemq.protocol.batch import batch_problem, decode_batch, key_hashes, layout_of
from oncemq.protocol.schema import Schema, SchemaVersion, parse_fields
from oncemq.protocol.schema.arrow import to_arrow
from tests.protocol.vectors import TYPED_BATCHES, typed_payload

ROWS = 5000
VERSION = SchemaVersion(
    7,
    Schema(
        parse_fields(
            "id: int64 not null, paid: bool, name: string, price: decimal(12,2), tags: list<string>, "
            "counts: map<string, int32>, place: struct<x: float64, ys: list<struct<z: int8>>>"
        )
    ),
)


def some_rows(count: int) -> Any:
    rows = [
        {
            "id": index,
            "paid": None if index % 3 == 0 else index % 2 == 0,
            "name": f"näme {index}" if index % 4 else None,
            "price": None if index % 5 else index,
            "tags": ["a", None, "bc"][: index % 4] if index % 7 else None,
            "counts": [("k", index)] if index % 3 else None,
            "place": {"x": index / 2, "ys": [{"z": 1}, None][: index % 3]} if index % 2 else None,
        }
        for index in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=to_arrow(VERSION.schema))


@pytest.mark.parametrize(("start", "count"), [(0, ROWS), (13, ROWS - 100), (ROWS - 1, 1)])
def test_columns_come_out_as_they_went_in(start: int, count: int) -> None:
    rows = some_rows(ROWS).slice(start, count)
    keys = pa.array([None if index % 3 else b"key-%d" % index for index in range(count)], pa.binary())
    payloads = list(build_typed_payloads(TypedRows(rows, keys), VERSION, 64 * 1024))
    assert all(len(each.payload) <= 64 * 1024 and not len(each.payload) % 8 for each in payloads)
    assert all(batch_problem(each.payload, each.rows, VERSION.version) is None for each in payloads)
    found = [typed_columns(each.payload, layout_of(each.payload)) for each in payloads]
    assert [row for batch in found for row in batch.to_pylist()] == rows.to_pylist()
    assert b"".join(each.key_hashes for each in payloads) == key_hashes(keys.to_pylist())


def test_a_part_of_a_batch_has_its_rows_as_json() -> None:
    (payload,) = build_typed_payloads(TypedRows(some_rows(100)), VERSION, 2**20)
    messages = decode_batch(payload.payload, "t", 1, 40, 5, 33, 57)
    assert [message.offset for message in messages] == list(range(40, 64))
    decoded = [msgspec.json.decode(message.value) for message in messages]
    expected = some_rows(100).to_pylist()[33:57]
    for row in expected:
        row["counts"] = None if row["counts"] is None else dict(row["counts"])
        row["price"] = None if row["price"] is None else str(row["price"])
    assert decoded == expected


def test_a_batch_of_which_the_names_would_take_too_much_is_divided() -> None:
    fields = parse_fields(", ".join(f"{'c' * 200}{index}: bool" for index in range(10)))
    version = SchemaVersion(1, Schema(fields))
    rows = pa.record_batch([pa.array([True] * 100_000)] * 10, schema=to_arrow(version.schema))
    payloads = list(build_typed_payloads(TypedRows(rows), version, 2**20))
    assert sum(each.rows for each in payloads) == 100_000
    assert len(payloads) > 1
    assert all(batch_problem(each.payload, each.rows, version.version) is None for each in payloads)


@pytest.mark.parametrize("batch", TYPED_BATCHES, ids=[batch[0] for batch in TYPED_BATCHES])
def test_damaged_columns_are_malformed_and_nothing_else(batch: Any) -> None:
    whole = typed_payload(*batch[1:4])
    for place in range(24, len(whole)):
        payload = whole[:place] + bytes([whole[place] ^ 0x81]) + whole[place + 1 :]
        with contextlib.suppress(errors.Malformed):
            # Reads all values, also times that Python does not have.
            typed_columns(payload, layout_of(payload)).to_string()
