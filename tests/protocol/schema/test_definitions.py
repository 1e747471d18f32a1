"""Definitions as JSON Schema, Avro and Protobuf, and schemas in these languages."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from oncemq import errors
from oncemq.protocol.schema import Schema, fields_text, parse_fields
from oncemq.protocol.schema.definitions.export import to_avro, to_json_schema
from oncemq.protocol.schema.definitions.parse import kind_of, parse_definition
from oncemq.protocol.schema.model import Field
from tests.protocol.schema.test_model import FIELDS

AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long", "doc": "the number"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["FOOD", "DRINK"]}},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}]},
        {"name": "other", "type": ["null", "Kind"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "n", "type": "int", "default": 1},
            {"name": "hash", "type": {"type": "fixed", "name": "H", "size": 4}},
        ]}}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
    ],
}  # fmt: skip
AVRO_FIELDS = (
    'id: int64 not null comment "the number", kind: string not null, price: decimal(10,2), other: string, '
    "lines: list<struct<n: int32 not null default 1, hash: binary not null> not null> not null, "
    "at: timestamp not null, tags: map<string, string> not null"
)
JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id", "name"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "name": {"type": ["string", "null"], "maxLength": 20},
        "kind": {"enum": ["FOOD", "DRINK"]},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer", "format": "int32"}},
        "raw": {"type": "string", "contentEncoding": "base64"},
    },
    "$defs": {"line": {"type": "object", "properties": {"n": {"anyOf": [{"type": "number"}, {"type": "null"}]}}}},
}
JSON_SCHEMA_FIELDS = (
    "id: int64 not null, name: string, kind: string, at: timestamp, lines: list<struct<n: float64> not null>, "
    "counts: map<string, int32 not null>, raw: binary"
)
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Kind { UNKNOWN = 0; FOOD = 1; }
message Line { string name = 1; double price = 2; }
message Order {
  int64 id = 1;
  optional string note = 2;
  repeated Line lines = 3;
  map<string, int32> counts = 4;
  Kind kind = 5;
  google.protobuf.Timestamp at = 6;
}
"""
PROTO_FIELDS = (
    "id: int64 not null default 0, note: string, "
    'lines: list<struct<name: string not null default "", price: float64 not null default 0.0> not null> not null '
    "default [], counts: map<string, int32 not null> not null default {}, "
    'kind: string not null default "UNKNOWN", at: timestamp'
)


def test_an_avro_record_is_a_schema() -> None:
    schema = parse_definition(json.dumps(AVRO))
    assert (schema.encoding, schema.definition_kind) == ("avro", "avro")
    assert fields_text(schema.fields) == AVRO_FIELDS
    assert schema.fields[1].constraints == {"enum": ["FOOD", "DRINK"]}
    assert schema.fields[3].constraints == {"enum": ["FOOD", "DRINK"]}
    assert parse_definition(json.dumps(AVRO), encoding="json").encoding == "json"


def test_a_json_schema_is_a_schema() -> None:
    schema = parse_definition(json.dumps(JSON_SCHEMA))
    assert (schema.encoding, schema.definition_kind) == ("json", "json-schema")
    assert fields_text(schema.fields) == JSON_SCHEMA_FIELDS
    assert [dict(field.constraints) for field in schema.fields[:3]] == [
        {"minimum": 1}, {"maxLength": 20}, {"enum": ["FOOD", "DRINK"]},
    ]  # fmt: skip


def test_a_protobuf_message_is_a_schema() -> None:
    schema = parse_definition(PROTO, message="Order")
    assert (schema.encoding, schema.definition_kind, schema.message) == ("protobuf", "protobuf", "shop.Order")
    assert fields_text(schema.fields) == PROTO_FIELDS
    assert [field.constraints["protobuf.number"] for field in schema.fields] == [1, 2, 3, 4, 5, 6]
    again = parse_definition(schema.descriptors, message="shop.Order")
    assert (again.fields, again.descriptors) == (schema.fields, schema.descriptors)


def test_the_language_of_a_definition_is_found_out() -> None:
    found = [kind_of(text) for text in (json.dumps(AVRO), json.dumps(JSON_SCHEMA), PROTO, "id: int64")]
    assert found == ["avro", "json-schema", "protobuf", "fields"]
    assert kind_of('[{"name": "id", "type": "int64"}]') == "fields"
    assert kind_of(b"\xff\xfe") == "protobuf"


def _avro(**field: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", **field}]})


def _json_schema(**value: Any) -> str:
    return json.dumps({"type": "object", "properties": {"f": value}})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (_avro(type=["int", "string"]), "f: a schema can't express a union of several types"),
        (_avro(type={"type": "array", "items": ["int", "string"]}), "f[]: a schema can't express a union"),
        (_avro(type="R"), "f: 'R' contains itself"),
        (_avro(type={"type": "long", "logicalType": "timestamp-nanos"}), "f: a schema can't express the logical type"),
        (_avro(type="Line"), "f: 'Line' is not a type"),
        ('{"type": "record", "name": "R"', "not JSON"),
        (_json_schema(type="object"), "f: an object needs `properties`"),
        (_json_schema(type=["string", "integer"]), "f: a schema can't express a value of several types"),
        (_json_schema(type="string", **{"not": {}}), "f: a schema can't express 'not'"),
        (_json_schema(**{"$ref": "#/properties/f"}), "f: '#/properties/f' contains itself"),
        (_json_schema(**{"$ref": "other.json"}), "f: 'other.json' is another document"),
        (_json_schema(oneOf=[{"type": "string"}, {"type": "integer"}]), "f: a schema can't express oneOf"),
        (_json_schema(type="string", pattern="("), "f: the pattern is not a regular expression"),
        (_json_schema(type="string", pattern="^(a+)+$"), "f: the pattern repeats a group that repeats"),
        (_json_schema(type="string", pattern="^((a|b)c)*$"), "f: the pattern repeats a group that repeats or chooses"),
        (_json_schema(type="integer", minimum=10, maximum="x"), "the constraints of the schema are not valid"),
        ('{"type": "array", "items": {"type": "string"}}', "the values of a topic are objects"),
        (PROTO, "name the message of the values with `message`; the definition has shop.Line, shop.Order"),
        ('syntax = "proto3"; message A { in32 x = 1; }', 'schema.proto:1:32: "in32" is not defined'),
        ('syntax = "proto3"; message A { A x = 1; }', "x: 'A' contains itself"),
        (
            'syntax = "proto3"; import "google/protobuf/any.proto"; message A { google.protobuf.Any x = 1; }',
            "x: a schema can't express google.protobuf.Any",
        ),
    ],
)
def test_what_a_schema_can_not_express_is_named_with_its_path(text: str, problem: str) -> None:
    with pytest.raises(errors.SchemaInvalid) as raised:
        parse_definition(text)
    assert problem in raised.value.text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FIELDS)
def test_a_schema_survives_json_schema(fields: tuple[Field, ...]) -> None:
    schema = Schema(fields)
    again = parse_definition(json.dumps(to_json_schema(schema)), "json-schema")
    # A field with a default need not be present, which in JSON Schema means the same as nullable.
    assert [field.name for field in again.fields] == [field.name for field in fields]
    assert [field.is_required for field in again.fields] == [field.is_required for field in fields]


def test_json_schema_and_avro_name_every_type() -> None:
    text = (
        "a: int8 not null, b: uint16, c: float32, d: decimal(10,2), e: timestamp_ntz, f: map<int64, string>, g: date, "
        "h: list<struct<x: int64 not null>>, i: binary, j: bool, k: time"
    )
    fields = parse_fields(text)
    assert fields_text(parse_definition(json.dumps(to_json_schema(Schema(fields)))).fields) == text
    avro = "a: int32 not null, b: string, c: list<struct<x: timestamp>>, d: map<string, float64 not null>"
    assert fields_text(parse_definition(json.dumps(to_avro(Schema(parse_fields(avro))))).fields) == avro
    with pytest.raises(errors.SchemaInvalid, match="u: Avro can't express uint64"):
        to_avro(Schema(parse_fields("u: uint64")))
