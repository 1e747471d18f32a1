"""Checks of values, and their encodings from and to Python objects."""

import dataclasses
import datetime
import decimal
import json
from typing import Any

import msgspec
import pydantic
import pytest

from oncemq import errors
from oncemq.protocol.batch import encode_batch
from oncemq.protocol.schema import Schema, parse_fields
from oncemq.protocol.schema.definitions.parse import parse_definition
from oncemq.protocol.schema.values.codec import codec_of
from oncemq.protocol.schema.values.payload import check_payload, check_values
from tests.protocol.schema.test_definitions import AVRO, JSON_SCHEMA, PROTO

ALL = Schema(
    parse_fields(
        "id: int64 not null, price: decimal(10,2), tags: list<string not null>, at: timestamp, local: timestamp_ntz, "
        "ratio: float64, days: map<int32, date>, big: uint64, raw: binary, clock: time, small: int8, "
        "part: decimal(2,2), deep: struct<items: list<struct<n: uint64 not null>>>"
    )
)


@pytest.mark.parametrize(
    "value",
    [
        {"id": 1},
        {"id": -(2**63), "price": "99999999.99", "tags": [], "at": "2026-07-31T09:30:00.5+02:00"},
        {"id": 1, "local": "2026-07-31T09:30:00", "ratio": 2, "days": {"-5": "2026-07-31"}, "big": 2**64 - 1},
        {"id": 1, "raw": "AAECAw==", "clock": "09:30:00", "small": -128, "part": "0.25", "ratio": "NaN"},
        {"id": 1, "deep": {"items": [{"n": 5}]}, "price": None},
    ],
)
def test_a_json_value_in_canonical_form_matches(value: dict[str, Any]) -> None:
    assert codec_of(ALL).problem(json.dumps(value).encode()) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"id": "1"}, "id: expected int, got str; the schema says int64 not null"),
        ({}, "id: the field is missing, and not nullable"),
        ({"id": 1, "z": 1}, "z: the schema has no such field"),
        ([], "the value: expected object, got array"),
        ({"id": 1, "price": "1.234"}, "price: expected a decimal as a string, like \"9.50\"; the schema says decimal("),
        ({"id": 1, "price": 9.5}, "price: expected a decimal as a string"),
        ({"id": 1, "price": "1.5\n"}, "price: expected a decimal"),
        ({"id": 1, "tags": [None]}, "tags[0]: expected str, got null; the schema says string not null"),
        ({"id": 1, "at": "2026-07-31T09:30:00"}, "at: expected datetime with a timezone"),
        ({"id": 1, "local": "2026-07-31T09:30:00Z"}, "local: expected datetime with no timezone"),
        ({"id": 1, "ratio": "x"}, "ratio: expected a number, got str"),
        ({"id": 1, "days": {"a": "2026-07-31"}}, "days: a key of the map does not match"),
        ({"id": 1, "days": {"1": "2026"}}, "days[...]: invalid RFC3339 encoded date; the schema says date"),
        ({"id": 1, "big": 2**64}, "big: expected int from 0 to 18446744073709551615"),
        ({"id": 1, "small": 128}, "small: expected int <= 127; the schema says int8"),
        ({"id": 1, "raw": "!"}, "raw: invalid base64"),
        ({"id": 1, "part": "1.25"}, "part: expected a decimal"),
        ({"id": 1, "deep": {"items": [{"n": -1}]}}, "deep.items[0].n: expected int from 0"),
        ({"id": 1, "deep": {"items": [{"m": 1}]}}, "deep.items[0].m: the schema has no such field"),
    ],
)  # fmt: skip
def test_a_mismatch_names_the_field_and_the_reason(value: object, problem: str) -> None:
    found = codec_of(ALL).problem(json.dumps(value).encode())
    assert found is not None
    assert found.startswith(problem)


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"nul", b"[" * 100_000])
def test_what_is_not_json_is_a_mismatch(value: bytes) -> None:
    found = codec_of(ALL).problem(value)
    assert found is not None


def test_constraints_of_a_json_schema_are_checked() -> None:
    codec = codec_of(parse_definition(json.dumps(JSON_SCHEMA)))
    assert codec.problem(b'{"id": 1, "name": null, "kind": "FOOD"}') is None
    assert codec.problem(b'{"id": 0, "name": null}') == "id: expected int >= 1; the schema says int64 not null"
    assert "name: expected str of length <= 20" in str(codec.problem(b'{"id": 1, "name": "%s"}' % (b"x" * 21)))
    assert "kind: invalid enum value 'x'" in str(codec.problem(b'{"id": 1, "name": "", "kind": "x"}'))


def test_a_pattern_limits_the_length_too() -> None:
    definition = {"type": "object", "properties": {"mail": {"type": "string", "pattern": r"^[^@]+@[^@.]+\.(de|eu)$"}}}
    codec = codec_of(parse_definition(json.dumps(definition)))
    assert codec.problem(b'{"mail": "a@b.eu"}') is None
    assert codec.problem(b'{"mail": "a@b.com"}') is not None
    assert "length <= 1000" in str(codec.problem(b'{"mail": "%s@b.eu"}' % (b"a" * 1_000)))


class Line(msgspec.Struct):
    n: int
    hash: bytes


class StructOrder(msgspec.Struct):
    id: int
    kind: str
    price: decimal.Decimal | None
    lines: list[Line]
    at: datetime.datetime
    tags: dict[str, str | None]


@dataclasses.dataclass
class DataOrder:
    id: int
    kind: str
    price: decimal.Decimal | None
    lines: list[Line]
    at: datetime.datetime
    tags: dict[str, str | None]


class ModelOrder(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    id: int
    kind: str
    price: decimal.Decimal | None
    lines: list[Line]
    at: datetime.datetime
    tags: dict[str, str | None]


AT = datetime.datetime(2026, 7, 31, 9, 30, tzinfo=datetime.UTC)
ORDER: dict[str, Any] = {
    "id": 5,
    "kind": "FOOD",
    "price": decimal.Decimal("9.50"),
    "lines": [Line(2, b"abcd")],
    "at": AT,
    "tags": {"a": None},
}


@pytest.mark.parametrize("value", [ORDER, StructOrder(**ORDER), DataOrder(**ORDER), ModelOrder(**ORDER)])
def test_objects_are_written_as_avro(value: Any) -> None:
    codec = codec_of(parse_definition(json.dumps(AVRO)))
    written = codec.encode(value)
    assert codec.problem(written) is None
    found = codec.decode(written)
    assert found == {**ORDER, "lines": [{"n": 2, "hash": b"abcd"}], "other": None}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": "x"}, "id: expected int, got str"),
        ({"lines": [{"n": "x", "hash": "YWJjZA=="}]}, "lines[0].n: expected int, got str"),
        ({"lines": [{"n": 1, "hash": "YWJj"}]}, "lines[0].hash: expected bytes of length >= 4"),
        ({"price": "x"}, "price: expected a decimal as a string"),
        ({"color": 1}, "color: the schema has no such field"),
        ({"kind": "CAR"}, "kind: invalid enum value 'CAR'"),
    ],
)
def test_an_object_that_is_no_avro_record_is_refused_with_the_path(change: dict[str, Any], problem: str) -> None:
    codec = codec_of(parse_definition(json.dumps(AVRO)))
    with pytest.raises(errors.SchemaMismatch) as raised:
        codec.encode({**ORDER, **change})
    assert raised.value.text.startswith(problem)


def test_bytes_that_are_no_avro_record_are_a_mismatch() -> None:
    codec = codec_of(parse_definition(json.dumps(AVRO)))
    good = codec.encode(ORDER)
    assert "1 bytes are left over" in str(codec.problem(good + b"x"))
    for cut in range(len(good)):
        assert codec.problem(good[:cut]) is not None


def test_objects_and_bytes_are_checked_as_protobuf() -> None:
    codec = codec_of(parse_definition(PROTO, message="Order"))
    written = codec.encode({"id": 2**60, "lines": [{"name": "a", "price": 2}], "kind": "FOOD"})
    assert codec.problem(written) is None
    assert codec.decode(written) == {
        "id": 2**60, "lines": [{"name": "a", "price": 2.0}], "kind": "FOOD", "counts": {},
    }  # fmt: skip
    assert codec.problem(b"\x98\x06\x01") == "field number 99: the schema has no such field"
    assert "is not a Protobuf message 'shop.Order'" in str(codec.problem(b"\xff\xff"))
    with pytest.raises(errors.SchemaMismatch, match=r"lines\[0\].nme: the schema has no such field"):
        codec.encode({"lines": [{"nme": "x"}]})


def test_a_batch_is_refused_with_the_index_of_the_message() -> None:
    schema = Schema(parse_fields("id: int64 not null"))
    values = [b'{"id": 1}', b'{"id": 2}', b'{"id": "3"}']
    with pytest.raises(
        errors.SchemaMismatch, match="message 12 for 'orders' does not match the schema: id: expected int"
    ):
        check_values(values, schema, "orders", 10)
    check_payload(encode_batch(values[:2], None, None, None, 7), {7: schema}.get, "orders")
    with pytest.raises(errors.SchemaMismatch, match="message 2 for 'orders'"):
        check_payload(encode_batch(values, None, None, None, 7), {7: schema}.get, "orders")
    with pytest.raises(errors.SchemaUnknown, match="has no version 7"):
        check_payload(encode_batch(values, None, None, None, 7), {8: schema}.get, "orders")


def _avro(kind: object) -> Schema:
    return parse_definition(json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}))


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


def test_an_avro_decimal_has_the_digits_of_its_type() -> None:
    codec = codec_of(_avro({"type": "array", "items": DECIMAL}))
    written = codec.encode({"a": ["99.99", "-0.01"]})
    assert codec.decode(written) == {"a": [decimal.Decimal("99.99"), decimal.Decimal("-0.01")]}
    assert codec.problem(b"\x02\x06\x00\x27\x10\x00") == "a[]: a decimal has more than 4 digits"


def test_an_avro_decimal_of_a_megabyte_is_refused_at_once() -> None:
    # fastavro alone takes over a minute.
    value = b"\x80\x89\x7a" + b"\x7f" * 1_000_000
    assert codec_of(_avro(DECIMAL)).problem(value) == "a: a decimal has more than 4 digits"


def test_the_fields_of_a_schema_are_those_of_its_definition() -> None:
    avro, proto = _avro("long"), parse_definition(PROTO, message="Order")
    for schema in (avro, proto):
        with pytest.raises(errors.SchemaInvalid, match="are not those of its"):
            codec_of(msgspec.structs.replace(schema, fields=parse_fields("b: int64 not null")))


TIMED = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Part { google.protobuf.Timestamp at = 1; }
message Whole { Part part = 1; }
"""


def test_a_protobuf_time_stamp_that_no_reader_has_is_a_mismatch() -> None:
    codec = codec_of(parse_definition(TIMED, message="Whole"))
    written = codec.encode({"part": {"at": "2026-07-31T09:30:00Z"}})
    assert codec.problem(written) is None
    # The year 10000.
    late = b"\x0a\x09\x0a\x07\x08\x80\x83\xd1\xff\xaf\x07"
    assert "Timestamp is not valid" in str(codec.problem(late))
    with pytest.raises(errors.SchemaMismatch, match="Timestamp is not valid"):
        codec.decode(late)


def test_a_field_that_a_nested_protobuf_message_does_not_have_is_a_mismatch() -> None:
    codec = codec_of(parse_definition(TIMED, message="Whole"))
    assert codec.problem(b"\x0a\x02\x50\x01") == "a message inside the value has a field that the schema does not have"


def test_limits_of_integers_may_have_a_fraction_and_reach_uint64() -> None:
    limits = {"minimum": 0.5, "exclusiveMaximum": 9.5, "multipleOf": 3}
    for more in ({}, {"x-oncemq-type": "uint64"}):
        definition = {"type": "object", "properties": {"a": {"type": "integer", **limits, **more}}}
        codec = codec_of(parse_definition(json.dumps(definition)))
        assert [number for number in range(13) if codec.problem(b'{"a": %d}' % number) is None] == [3, 6, 9]
    low = {"type": "object", "properties": {"a": {"type": "integer", "exclusiveMinimum": -0.5}}}
    assert codec_of(parse_definition(json.dumps(low))).problem(b'{"a": 0}') is None


@pytest.mark.parametrize("number", [0, -3, 0.5, "3"])
@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_an_integer_is_a_multiple_of_a_positive_integer(kind: str, number: object) -> None:
    value = {"type": "integer", "x-oncemq-type": kind, "multipleOf": number}
    with pytest.raises(errors.SchemaInvalid, match="multipleOf"):
        parse_definition(json.dumps({"type": "object", "properties": {"a": value}}))


@pytest.mark.parametrize("value", [b'{"big": "%s"}', b'{"%s": 1}', b'{"days": {"%s": 1}}'])
def test_a_reason_is_short_however_long_the_value_is(value: bytes) -> None:
    found = codec_of(ALL).problem(value % (b"x" * 1_000_000))
    assert found is not None
    assert len(found) <= 1_001


def test_a_small_value_that_would_take_gigabytes_in_memory_is_refused() -> None:
    members = ", ".join(f"f{n}: int64" for n in range(1_900))
    codec = codec_of(Schema(parse_fields(f"rows: list<struct<{members}>>")))
    assert codec.problem(b'{"rows": [%s]}' % b",".join([b"{}"] * 1_000)) is None
    found = codec.problem(b'{"rows": [%s]}' % b",".join([b"{}"] * 1_000_000))
    assert found == "the value has more objects than can be checked"
