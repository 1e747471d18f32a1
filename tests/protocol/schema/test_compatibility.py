"""Compatibility rules between versions of a schema."""

import pytest

from oncemq.protocol.schema import RULES, Rule, Schema, SchemaVersion, compatibility, incompatibilities, parse_fields

OLD = "id: int64 not null, name: string, price: decimal(8,2)"


def _schema(text: str) -> Schema:
    return Schema(parse_fields(text), definition=text)


def _broken(old: str, new: str) -> set[Rule]:
    """Return the rules under which `new` must not follow `old`."""
    return {rule for rule in RULES if compatibility(_schema(old), _schema(new), rule)}


@pytest.mark.parametrize(
    ("old", "new", "broken"),
    [
        (OLD, OLD, set()),
        (OLD, OLD + ", note: string", set()),
        (OLD, OLD + ', note: string not null default ""', set()),
        (OLD, OLD + ", note: string not null", {"backward", "full"}),
        (OLD, "id: int64 not null, name: string", set()),
        (OLD, "name: string, price: decimal(8,2)", {"forward", "full"}),
        ("a: int32", "a: int64", {"forward", "full"}),
        ("a: int64", "a: int32", {"backward", "full"}),
        ("a: int32", "a: float64", {"forward", "full"}),
        ("a: int64", "a: float64", {"backward", "forward", "full"}),
        ("a: uint32", "a: int64", {"forward", "full"}),
        ("a: uint64", "a: int64", {"backward", "forward", "full"}),
        ("a: string", "a: binary", {"backward", "forward", "full"}),
        ("a: decimal(8,2)", "a: decimal(10,3)", {"forward", "full"}),
        ("a: decimal(8,2)", "a: decimal(8,3)", {"backward", "forward", "full"}),
        ("a: int8 not null", "a: int8", {"forward", "full"}),
        ("a: int8", "a: int8 not null", {"backward", "full"}),
        ("a: int8", "a: int8 not null default 0", set()),
        ("a: list<int32>", "a: list<int64>", {"forward", "full"}),
        ("a: map<string, int32>", "a: map<int64, int32>", {"backward", "forward", "full"}),
        ("a: struct<b: int8>", "a: struct<b: int8, c: int8 not null>", {"backward", "full"}),
        ("a: list<struct<b: int8>>", "a: list<struct<b: string>>", {"backward", "forward", "full"}),
        ("a: int8", "a: list<int8>", {"backward", "forward", "full"}),
    ],
)
def test_rules(old: str, new: str, broken: set[Rule]) -> None:
    assert _broken(old, new) == broken


def test_a_problem_names_the_path_and_both_types() -> None:
    [problem] = compatibility(_schema("a: list<struct<b: int8>>"), _schema("a: list<struct<b: string>>"), "backward")
    assert problem == "a[].b: a reader expects string, and values are int8: new readers can't read old values"


def test_an_encoding_can_not_change() -> None:
    fields = parse_fields("a: int8")
    [problem] = compatibility(Schema(fields), Schema(fields, "avro", "{}", "avro"), "backward")
    assert problem == "the values would be avro, and are json: an encoding can't change"


def test_all_versions_are_checked_and_named() -> None:
    versions = [
        SchemaVersion(number, _schema(text))
        for number, text in enumerate(["a: int8, b: string", "a: int8", "a: int8, b: int8"], 1)
    ]
    # Version 3 came under the rule none. The new one can follow it, but readers of it still meet values of version 1.
    assert incompatibilities(versions, _schema("a: int8, b: int8"), "backward") == [
        "b: a reader expects int8, and values are string: new readers can't read old values (version 1)"
    ]
    assert incompatibilities(versions, _schema("a: int8, b: int8"), "none") == []


def test_a_protobuf_field_keeps_its_number() -> None:
    def schema(*fields: tuple[str, int]) -> Schema:
        parsed = [parse_fields(f"{name}: int32")[0] for name, _ in fields]
        numbered = [
            type(field)(field.name, field.type, constraints={"protobuf.number": number})
            for field, (_, number) in zip(parsed, fields, strict=True)
        ]
        return Schema(tuple(numbered))

    old = schema(("a", 1), ("b", 2))
    assert compatibility(old, schema(("a", 1), ("b", 2), ("c", 3)), "full") == []
    assert compatibility(old, schema(("a", 3), ("b", 2)), "backward") == ["a: its Protobuf number was 1 and would be 3"]
    assert compatibility(old, schema(("a", 1), ("c", 2)), "backward") == ["c: its Protobuf number 2 was that of 'b'"]
