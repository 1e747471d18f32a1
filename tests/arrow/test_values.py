"""Values in JSON, Avro and Protobuf as typed columns; rows that do not match have a reason that names the column."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from oncemq.arrow.evolution import evolve
from oncemq.arrow.typed_columns import typed_columns
from oncemq.arrow.typed_payloads import TypedRows, build_typed_payloads
from oncemq.arrow.typed_reader import read_typed
from oncemq.arrow.values import decode_values
from oncemq.protocol import errors
from oncemq.protocol.batch import decode_batch, encode_batch, layout_of
from oncemq.protocol.replies import BatchHead
from oncemq.protocol.schema import Schema, SchemaVersion, parse_fields
from oncemq.protocol.schema.arrow import to_arrow
from oncemq.protocol.schema.definitions.avro import parse_avro
from oncemq.protocol.schema.definitions.protobuf import parse_protobuf
from oncemq.protocol.schema.values.codec import codec_of
from tests.protocol.vectors import TYPED_BATCHES, typed_payload

ORDERS = Schema(
    parse_fields(
        "id: int64 not null, name: string, price: decimal(9,2), at: timestamp, tags: list<string>, "
        "counts: map<string, int32>, place: struct<x: float64, y: int8 not null>"
    )
)


def decoded(values: list[bytes], schema: Schema) -> tuple[list[Any], list[str | None]]:
    columns, reasons = decode_values(pa.array(values, pa.binary()), schema)
    columns.validate(full=True)
    return columns.to_pylist(), reasons.to_pylist()


@pytest.mark.parametrize("batch", TYPED_BATCHES, ids=[batch[0] for batch in TYPED_BATCHES])
def test_the_rows_of_a_typed_batch_are_its_columns_again(batch: Any) -> None:
    payload, count = typed_payload(*batch[1:4]), len(batch[3])
    values = [message.value for message in decode_batch(payload, "t", 1, 0, 0, 0, count)]
    rows, reasons = decoded(values, Schema(parse_fields(batch[1])))
    assert reasons == [None] * count
    assert rows == typed_columns(payload, layout_of(payload)).to_pylist()


def test_values_in_json_are_columns() -> None:
    rows, reasons = decoded(
        [
            b'{"id": 1}',
            b'{"id": 2, "name": "a\\nb", "price": "9.5", "at": "2026-07-31T09:30:00+02:00",\n "tags": ["x", null], '
            b'"counts": {"k": 1}, "place": {"y": 7}}',
        ],
        ORDERS,
    )
    assert reasons == [None, None]
    assert [value for name, value in rows[0].items() if name != "id"] == [None] * 6
    assert rows[1] == {
        "id": 2,
        "name": "a\nb",
        "price": Decimal("9.50"),
        "at": dt.datetime(2026, 7, 31, 7, 30, tzinfo=dt.UTC),
        "tags": ["x", None],
        "counts": [("k", 1)],
        "place": {"x": None, "y": 7},
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"id": "1"}', "id: expected int, got str; the schema says int64 not null"),
        ('{"id": 9223372036854775808}', "id: "),
        ('{"id": 1.5}', "id: "),
        ("{}", "id: the field is missing, and not nullable"),
        ('{"id": null}', "id: expected int, got null; the schema says int64 not null"),
        ('{"id": 1, "nam": "x"}', "nam: the schema has no such field"),
        ('{"id": 1, "price": "1.234"}', "price: expected a decimal"),
        ('{"id": 1, "at": "yesterday"}', "at: "),
        ('{"id": 1, "tags": [1]}', "tags[0]: expected str"),
        ('{"id": 1, "place": {"x": 1}}', "place.y: the field is missing, and not nullable"),
        ('{"id": 1}{"id": 2}', "the value is not JSON"),
        ("", "the value is not JSON"),
        ("[1]", "the value: expected object, got array"),
    ],
)
def test_a_row_that_does_not_match_has_a_reason_and_the_others_are_decoded(value: str, reason: str) -> None:
    rows, reasons = decoded([b'{"id": 1}', value.encode(), b'{"id": 3}'], ORDERS)
    assert reasons[0] is None
    assert reasons[2] is None
    assert (reasons[1] or "").startswith(reason)
    assert [row["id"] for row in rows] == [1, None, 3]


AVRO = parse_avro(
    json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "name", "type": ["null", "string"], "default": None},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                {"name": "tags", "type": {"type": "array", "items": "string"}},
                {"name": "counts", "type": {"type": "map", "values": "int"}},
                {
                    "name": "place",
                    "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]},
                },
            ],
        }
    )
)
ROW = {
    "id": 1,
    "name": None,
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    "price": Decimal("9.50"),
    "tags": ["a", "b"],
    "counts": {"k": 3},
    "place": {"x": 0.5},
}


def test_values_in_avro_are_columns() -> None:
    value = codec_of(AVRO).encode(ROW)
    rows, reasons = decoded([value, b"\xff", value], AVRO)
    assert [reason is None for reason in reasons] == [True, False, True]
    assert "not a record of the Avro definition" in (reasons[1] or "")
    assert rows[0] == {**ROW, "counts": [("k", 3)]}
    assert rows[2] == rows[0]


PROTOBUF = parse_protobuf(
    """
    syntax = "proto3";
    import "google/protobuf/timestamp.proto";
    message Order {
      enum State { NEW = 0; PAID = 1; }
      message Place { double x = 1; }
      int64 id = 1;
      optional string name = 2;
      State state = 3;
      repeated string tags = 4;
      map<string, int32> counts = 5;
      Place place = 6;
      google.protobuf.Timestamp at = 7;
    }
    """,
    "Order",
)


def test_values_in_protobuf_are_columns() -> None:
    codec = codec_of(PROTOBUF)
    full = codec.encode(
        {
            "id": 7,
            "name": "x",
            "state": "PAID",
            "tags": ["a"],
            "counts": {"k": 1},
            "place": {"x": 2.0},
            "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        }
    )
    rows, reasons = decoded([full, b"", b"\x08"], PROTOBUF)
    assert [reason is None for reason in reasons] == [True, True, False]
    assert rows[0] == {
        "id": 7,
        "name": "x",
        "state": "PAID",
        "tags": ["a"],
        "counts": [("k", 1)],
        "place": {"x": 2.0},
        "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    }
    empty: dict[str, Any] = {"id": 0, "name": None, "state": "NEW", "tags": [], "counts": [], "place": None, "at": None}
    assert rows[1] == empty


def test_an_avro_decimal_with_too_many_digits_is_a_row_that_does_not_match() -> None:
    schema = parse_avro(
        '{"type": "record", "name": "R", "fields": [{"name": "price", "type": '
        '{"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}}]}'
    )
    rows, reasons = decoded([b"\x04\x01\x00", b"\x08\x7f\xff\xff\xff", b"\x02\x01"], schema)
    assert [row["price"] for row in rows] == [Decimal("2.56"), None, Decimal("0.01")]
    assert (reasons[1] or "").startswith("price: ")


OLD = Schema(parse_fields("id: int32 not null, place: struct<x: float32>, gone: string, items: list<struct<n: int8>>"))
NEW = Schema(
    parse_fields(
        "id: int64 not null, place: struct<x: float64, name: string>, items: list<struct<n: int16, m: bool>>, "
        'added: string, level: int16 default 5, kind: string not null default "plain"'
    )
)
OLD_ROWS: list[dict[str, Any]] = [
    {"id": 1, "place": {"x": 0.5}, "gone": "x", "items": [{"n": 1}, None]},
    {"id": 2, "place": None, "gone": None, "items": None},
    {"id": 3, "place": {"x": None}, "gone": None, "items": []},
]
NEW_ROWS: list[dict[str, Any]] = [
    {"id": 1, "place": {"x": 0.5, "name": None}, "items": [{"n": 1, "m": None}, None]},
    {"id": 2, "place": None, "items": None},
    {"id": 3, "place": {"x": None, "name": None}, "items": []},
]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_rows_of_an_earlier_version_have_the_columns_that_were_added(start: int) -> None:
    old = pa.RecordBatch.from_pylist(OLD_ROWS, schema=to_arrow(OLD))
    found = evolve(old.slice(start), NEW)
    found.validate(full=True)
    added = {"added": None, "level": 5, "kind": "plain"}
    assert found.to_pylist() == [{**row, **added} for row in NEW_ROWS[start:]]


def test_a_null_where_the_newer_version_allows_none_is_an_error_that_names_the_column() -> None:
    old = pa.RecordBatch.from_pylist(OLD_ROWS, schema=to_arrow(OLD))
    with pytest.raises(errors.SchemaMismatch, match="column 'gone' has 2 nulls"):
        evolve(old, Schema(parse_fields("gone: string not null")))
    with pytest.raises(errors.SchemaMismatch, match="column 'gone' is string, and can't be read as"):
        evolve(old, Schema(parse_fields("gone: int8")))


def test_batches_of_every_kind_and_version_are_read_as_one_version() -> None:
    versions = {1: OLD, 2: NEW}
    rows = pa.RecordBatch.from_pylist(OLD_ROWS, schema=to_arrow(OLD))
    (typed,) = build_typed_payloads(TypedRows(rows), SchemaVersion(1, OLD), 2**20)
    plain_old = encode_batch([b'{"id": 4}', b'{"id": 5, "gone": "y"}'], schema_version=1)
    plain_new = encode_batch([b'{"id": 6, "level": 7}', b'{"id": "?"}'], schema_version=2)
    batches = [
        (BatchHead(0, 2, 1, 0, 0), typed.payload),
        (BatchHead(2, 2, 0, 0, 0), plain_old),
        (BatchHead(4, 1, 1, 0, 0), plain_old),
        (BatchHead(5, 1, 0, 0, 0), plain_new),
    ]
    found = read_typed(batches, NEW, versions.__getitem__)
    assert found.errors is None
    assert found.columns.schema == to_arrow(NEW)
    assert found.columns.column("id").to_pylist() == [2, 3, 4, 5, 5, 6]
    assert found.columns.column("level").to_pylist() == [5, 5, 5, 5, 5, 7]
    found = read_typed([*batches, (BatchHead(6, 1, 1, 0, 0), plain_new)], NEW, versions.__getitem__)
    assert found.columns.column("id").to_pylist() == [2, 3, 4, 5, 5, 6, None]
    assert found.errors.to_pylist()[-1].startswith("id: expected int")


def test_a_null_is_a_row_that_does_not_match() -> None:
    columns, reasons = decode_values(pa.array([None, b'{"a": 1}'], pa.binary()), Schema(parse_fields("a: int64")))
    assert columns.column("a").to_pylist() == [None, 1]
    assert reasons.to_pylist() == ["the value is null", None]


def _unchecked(fields: str, rows: list[dict[str, Any]]) -> tuple[BatchHead, bytes]:
    """A typed batch of a producer that did not look at the schema of the topic."""
    schema = Schema(parse_fields(fields))
    values = pa.RecordBatch.from_pylist(rows, to_arrow(schema))
    (payload,) = build_typed_payloads(TypedRows(values), SchemaVersion(1, schema), 10**6)
    return BatchHead(0, len(rows), 0, 0, 0), payload.payload


def test_rows_of_a_typed_batch_match_or_do_not_match_one_by_one() -> None:
    schema = Schema(parse_fields("a: int64 not null"))
    found = read_typed([_unchecked("a: int64", [{"a": 1}, {"a": None}, {"a": 3}])], schema, lambda _: schema)
    assert found.columns.column("a").to_pylist() == [1, None, 3]
    assert [reason is None for reason in found.errors.to_pylist()] == [True, False, True]
    found = read_typed([_unchecked("a: string", [{"a": "x"}])], schema, lambda _: schema)
    assert found.errors.to_pylist() == ["a: expected int, got str; the schema says int64 not null"]


def test_rows_that_match_a_version_which_this_one_can_not_read_are_an_error() -> None:
    written, schema = Schema(parse_fields("a: string")), Schema(parse_fields("a: int64"))
    with pytest.raises(errors.SchemaMismatch, match="column 'a' is string"):
        read_typed([_unchecked("a: string", [{"a": "x"}])], schema, lambda _: written)
