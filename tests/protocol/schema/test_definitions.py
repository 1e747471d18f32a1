"""Definitions as JSON Schema, Avro and Protobuf, and schemas in these languages."""

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
        (_json_schema(type="string", pattern="^(a|aa){40}$"), "f: the pattern repeats a group that repeats or chooses"),
        (_json_schema(type="string", pattern="(?x)(a+#)\n)+b"), "f: the pattern has flags or comments"),
        (_json_schema(type="string", pattern="(a+(?#()b)+"), "f: the pattern has flags or comments"),
        (_json_schema(type="string", pattern="(?i:a)"), "f: the pattern has flags or comments"),
        (_json_schema(type="string", pattern="[a-z]" * 1_001), "the patterns of the schema have more than 5,000"),
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


def _record(*fields: object) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def _property(value: object) -> str:
    return json.dumps({"type": "object", "properties": {"a": value}})


NOT_VALID = [
    "[" * 100_000,
    '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ' + '{"type": "array", "items": ' * 400 + "1",
    _record("a"),
    _record({"type": "int"}),
    _record({"name": 5, "type": "int"}),
    _record({"name": "a", "type": "int", "doc": 5}),
    _record({"name": "a", "type": {"type": 5}}),
    _record({"name": "a", "type": {"type": "enum", "name": "E", "symbols": 5}}),
    _record({"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": []}}),
    _record({"name": "a", "type": {"type": "bytes", "logicalType": []}}),
    _record({"name": "a", "type": {"type": "int", "logicalType": "date"}, "default": 10**9}),
    _record({"name": "a", "type": {"type": "array", "items": "int"}, "default": 5}),
    _record({"name": "a", "type": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}}),
    _property({"anyOf": 5}),
    _property({"anyOf": [True]}),
    _property({"$ref": 5}),
    _property({"type": [{}]}),
    _property({"type": 5}),
    _property({"type": "string", "format": []}),
    _property({"type": "string", "enum": 5}),
    _property({"type": "string", "description": 5}),
    _property({"type": "string", "x-oncemq-type": 5}),
    _property({"type": "string", "default": "\ud800"}),
    _property({"type": "integer", "default": 10**30}),
    json.dumps({"type": "object", "properties": ["a"]}),
    json.dumps({"properties": {"a": {"type": "string"}}, "required": [[]]}),
    '[{"name": "a", "type": {"map": {"key": 5, "value": "int8"}}}]',
    '"\\ud800": int8',
    "a: int64 default " + "9" * 30,
    "a: string default " + "[" * 100_000,
    f"a: decimal({'9' * 5_000},2)",
    "a: int64 comment " + json.dumps("x" * 300_000),
]


@pytest.mark.parametrize("definition", NOT_VALID, ids=range(len(NOT_VALID)))
def test_whatever_a_definition_contains_it_is_refused_and_nothing_else(definition: str) -> None:
    with pytest.raises(errors.SchemaInvalid):
        parse_definition(definition)


DOUBLING = range(1, 28)
TWICE = {
    # Each type has the one before twice: a few lines are 2^28 fields.
    "avro": _record(
        {"name": "t0", "type": {"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]}},
        *(
            {"name": f"t{n}", "type": {"type": "record", "name": f"T{n}", "fields": [
                {"name": "a", "type": f"T{n - 1}"}, {"name": "b", "type": f"T{n - 1}"},
            ]}}
            for n in DOUBLING
        ),
    ),
    "json-schema": json.dumps({
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/t27"}},
        "$defs": {"t0": {"type": "integer"}} | {
            f"t{n}": {"properties": {"a": {"$ref": f"#/$defs/t{n - 1}"}, "b": {"$ref": f"#/$defs/t{n - 1}"}}}
            for n in DOUBLING
        },
    }),
    "protobuf": 'syntax = "proto3";\nmessage T0 { int32 x = 1; }\n' + "\n".join(
        f"message T{n} {{ T{n - 1} a = 1; T{n - 1} b = 2; }}" for n in DOUBLING
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TWICE)
def test_a_definition_that_would_have_billions_of_fields_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(errors.SchemaInvalid, match="more than 2000 fields"):
        parse_definition(TWICE[kind], kind, message="T27" if kind == "protobuf" else "")


def test_a_chain_of_references_is_followed_to_a_limit() -> None:
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(500)} | {"d500": {"type": "string"}}
    properties = {f"p{n}": {"$ref": "#/$defs/d0"} for n in range(100)}
    with pytest.raises(errors.SchemaInvalid, match="more than 10,000 references"):
        parse_definition(json.dumps({"properties": properties, "$defs": chain}))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ('a: int64 not null default "x"', "a: its default is not of type int64: Expected int, got str"),
        ("a: int8 default 500", "a: its default is not of type int8: Expected int <= 127"),
        ('a: decimal(4,2) default "12345.6"', "a: its default is not of type decimal"),
        ('a: list<struct<b: date default "soon">>', "a.item.b: its default is not of type date"),
        ("a: struct<b: int64 not null> default {}", "a: its default is not of type struct"),
        ("a: float64 not null default NaN", "a: its default is not of type float64"),
    ],
)
def test_a_default_is_a_value_of_its_field(fields: str, problem: str) -> None:
    with pytest.raises(errors.SchemaInvalid) as raised:
        parse_definition(fields)
    assert str(raised.value).startswith(problem)


def test_defaults_of_every_kind_are_accepted() -> None:
    parse_definition(
        'a: int64 not null default 5, b: decimal(4,2) default "9.50", c: decimal(20,0) default 5, '
        'd: float64 default 1, e: list<string> default ["x"], f: map<int64, bool> default {"1": true}, '
        'g: struct<x: date> default {}, h: timestamp default "2026-07-31T09:30:00Z", '
        'i: binary default "eA==", j: float32 default "NaN"'
    )


def test_definitions_that_are_compiled_at_the_same_time_leave_stderr_alone() -> None:
    before = os.fstat(2)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: parse_definition(PROTO, message="Order"), range(8)))
    assert all(schema == found[0] for schema in found)
    assert os.path.samestat(before, os.fstat(2))


def test_what_the_compiler_says_is_in_the_error_without_paths_of_this_machine() -> None:
    with pytest.raises(errors.SchemaInvalid) as raised:
        parse_definition('syntax = "proto3";\nmessage A { int33 x = 1; }')
    assert '"int33" is not defined' in str(raised.value)
    assert tempfile.gettempdir() not in str(raised.value)


@pytest.mark.parametrize(
    "pattern", [r"^(\d{1,3}\.){3}\d{1,3}$", r"^(?:ab|c)?(?P<x>d)(?=e)[(?i)]+\(\?i\)$", "^([0-9]{3}-?){12}$"]
)
def test_patterns_in_use_are_accepted(pattern: str) -> None:
    parse_definition(_property({"type": "string", "pattern": pattern}))


def test_a_decimal_comes_back_from_json_schema_without_a_limit() -> None:
    schema = parse_definition("price: decimal(10,2)")
    assert parse_definition(json.dumps(to_json_schema(schema))).fields == schema.fields
