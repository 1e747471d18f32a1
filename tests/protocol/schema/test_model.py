"""The model of schemas, the fields form as text and JSON, and identity."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncemq import errors
from oncemq.protocol.schema import (
    ITEM,
    VALUE,
    Decimal,
    Field,
    ListType,
    MapType,
    Scalar,
    Schema,
    StructType,
    Type,
    decode_schema,
    encode_schema,
    fields_from_builtins,
    fields_text,
    fields_to_builtins,
    fingerprint,
    parse_fields,
    same_types,
    validate_schema,
)
from oncemq.protocol.schema.model import SCALAR_KINDS

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters='"\\'), min_size=1, max_size=8)
SCALARS = st.sampled_from(SCALAR_KINDS).map(Scalar)
DECIMALS = st.integers(1, 38).flatmap(lambda p: st.builds(Decimal, st.just(p), st.integers(0, p)))


def defaults(kind: Type) -> st.SearchStrategy[object]:
    if isinstance(kind, Decimal):
        return st.just("0")
    if isinstance(kind, ListType | MapType):
        return st.just([] if isinstance(kind, ListType) else {})
    if isinstance(kind, Scalar):
        integers = {f"int{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}
        others = {"bool": st.booleans(), "string": st.text(max_size=5), "float64": st.integers(-(2**53), 2**53)}
        return (others | integers | {"uint64": st.integers(0, 2**64 - 1)}).get(kind.kind, st.none())
    return st.none()


def fields(types: st.SearchStrategy[Type], name: st.SearchStrategy[str] = NAMES) -> st.SearchStrategy[Field]:
    return types.flatmap(
        lambda kind: st.builds(
            Field, name, st.just(kind), st.booleans(), st.none() | defaults(kind), st.text(max_size=10)
        )
    )


def nested(types: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    structs = st.lists(fields(types), min_size=1, max_size=3, unique_by=lambda field: field.name)
    maps = st.builds(MapType, st.sampled_from([Scalar("string"), Scalar("int64")]), fields(types, st.just(VALUE)))
    return st.builds(ListType, fields(types, st.just(ITEM))) | maps | structs.map(lambda them: StructType(tuple(them)))


TYPES: st.SearchStrategy[Type] = st.recursive(SCALARS | DECIMALS, nested, max_leaves=6)
FIELDS = st.lists(fields(TYPES), min_size=1, max_size=5, unique_by=lambda field: field.name).map(tuple)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FIELDS)
def test_fields_survive_text_json_and_bytes(them: tuple[Field, ...]) -> None:
    assert parse_fields(fields_text(them)) == them
    assert parse_fields(fields_text(them, "\n")) == them
    assert fields_from_builtins(json.loads(json.dumps(fields_to_builtins(them)))) == them
    schema = Schema(them, "json", fields_text(them))
    assert decode_schema(encode_schema(schema)) == schema
    validate_schema(schema)


def test_the_fields_form_reads_as_documented() -> None:
    found = parse_fields(
        """
        id: int64 not null            # the number
        price: decimal(10, 2) default "0.00"
        tags: list<string not null>, "first name": utf8 comment "as it is printed"
        seen: timestamp[us, tz=UTC], local: timestamp[us]
        counts: map<string, int32 not null>
        address: struct<street: string, zip: string not null>
        """
    )
    assert [field.name for field in found] == [
        "id", "price", "tags", "first name", "seen", "local", "counts", "address",
    ]  # fmt: skip
    assert found[0] == Field("id", Scalar("int64"), nullable=False)
    assert found[1] == Field("price", Decimal(10, 2), default="0.00")
    assert found[2].type == ListType(Field(ITEM, Scalar("string"), nullable=False))
    assert found[3].doc == "as it is printed"
    assert (found[4].type, found[5].type) == (Scalar("timestamp"), Scalar("timestamp_ntz"))
    assert parse_fields("x: list<element: string not null>") == parse_fields("x: list<string not null>")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id int64", "line 1, column 4 of the fields: expected ':'"),
        ("id: int46", "'int46' is not a type"),
        ("id: decimal(40, 2)", "1 to 38 digits"),
        ("id: list<string", "expected '>'"),
        ("a: int8\nb: map<list<int8>, int8>", "line 2, column 18 of the fields: the key of a map"),
        ("id: int8 default", "expected a JSON value"),
        ("id: int8; b: int8", "line 1, column 9"),
        ("x: " + "list<" * 100 + "int8" + ">" * 100, "nested"),
    ],
)
def test_an_invalid_definition_names_the_place(text: str, problem: str) -> None:
    with pytest.raises(errors.SchemaInvalid) as raised:
        parse_fields(text)
    assert problem in raised.value.text


def test_constraints_survive_json() -> None:
    price = Field("price", Decimal(10, 2), False, None, "", {"minimum": 0})
    them = (price, Field("prices", ListType(Field(ITEM, Scalar("int8"), constraints={"maximum": 5}))))
    assert fields_from_builtins({"fields": fields_to_builtins(them)}) == them


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": 1}, "expected a list"),
        ([{"type": "int8"}], "[0]: the field has no name"),
        ([{"name": "a", "type": "int9"}], "[0].type: line 1"),
        ([{"name": "a", "type": {"list": {"type": "x"}}}], "[0].type.list.type: line 1"),
        ([{"name": "a", "kind": "int8"}], "[0]: "),
    ],
)
def test_invalid_json_fields_name_the_path(value: object, problem: str) -> None:
    with pytest.raises(errors.SchemaInvalid) as raised:
        fields_from_builtins(value)
    assert problem in raised.value.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "at least one field"),
        ("a: int8, a: int16", "a: there are two fields"),
        ("a: struct<b: int8, b: int8>", "a.b: there are two fields"),
        ("a: map<float64, int8>", "a: the key of a map must be a string or an integer, not float64"),
        ("a: struct<>", "a: a struct needs"),
        ('"": int8', "a field: a name has"),
        ('"a\\\\b": int8', "no control characters"),
    ],
)
def test_an_unusable_schema_is_refused_with_the_path(text: str, problem: str) -> None:
    with pytest.raises(errors.SchemaInvalid) as raised:
        validate_schema(Schema(parse_fields(text)))
    assert problem in raised.value.text


def test_the_fingerprint_depends_on_what_decides_how_values_are_read() -> None:
    them = parse_fields("id: int64, name: string")
    as_fields, as_json_schema = (
        Schema(them, definition="id: int64, name: string"),
        Schema(them, "json", "{}", "json-schema"),
    )
    assert fingerprint(as_fields) == fingerprint(as_json_schema)
    assert fingerprint(as_fields) != fingerprint(Schema(parse_fields("id: int64, name: string not null")))
    assert fingerprint(Schema(them, "avro", "a", "avro")) != fingerprint(Schema(them, "avro", "b", "avro"))


def test_types_are_compared_without_documentation() -> None:
    left, right = parse_fields('a: list<struct<x: int8 comment "one">>, b: list<struct<x: int8 default 5>>')
    other = parse_fields("a: list<struct<x: int16>>")[0]
    assert same_types(left.type, right.type)
    assert not same_types(left.type, other.type)


def test_arrow_schemas_are_converted_both_ways() -> None:
    arrow = pytest.importorskip("oncemq.protocol.schema.arrow")
    text = (
        "a: int64 not null, b: decimal(12,3), c: list<string not null>, d: map<string, struct<x: date, y: time>>, "
        "e: timestamp, f: timestamp_ntz, g: binary, h: uint8, i: float32, j: bool"
    )
    schema = Schema(parse_fields(text), definition=text)
    assert arrow.from_arrow(arrow.to_arrow(schema)) == schema


def test_an_arrow_type_without_equivalent_is_named_with_its_path() -> None:
    arrow = pytest.importorskip("oncemq.protocol.schema.arrow")
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(errors.SchemaInvalid, match=r"a\.item\.b: a schema can't express Arrow's type timestamp\[ns\]"):
        arrow.from_arrow(pa.schema({"a": pa.list_(pa.struct({"b": pa.timestamp("ns")}))}))
