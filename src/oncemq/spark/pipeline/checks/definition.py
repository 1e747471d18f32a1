"""Checks of the definitions of values in Avro and Protobuf."""

from __future__ import annotations

from collections.abc import Iterator

from oncemq.protocol import errors
from oncemq.protocol.schema import DefinitionKind, Scalar, Schema
from oncemq.spark.pipeline.model import MALFORMED_COLUMN, MESSAGE_PREFIX, Value
from oncemq.spark.pipeline.problems import Path, Problem, problem
from oncemq.spark.pipeline.schema_file import UNREADABLE

#: Formats whose schema is a definition, and the language of the definition.
DEFINED: dict[str, DefinitionKind] = {"avro": "avro", "protobuf": "protobuf"}


def check_definition(value: Value, columns: tuple[str, ...], path: Path) -> Iterator[Problem]:
    """Check a definition. `columns` are those of the message that are added to its columns."""
    if value.schema == UNREADABLE:
        return
    try:
        schema = _parse(value)
    except (errors.SchemaInvalid, errors.MissingExtra) as error:
        yield problem((*path, "schema"), error.text, "correct the definition, or the file that it is in")
        return
    taken = {MESSAGE_PREFIX + name: "source.columns" for name in columns}
    if value.policy == "keep":
        taken[MALFORMED_COLUMN] = "malformed: keep"
    for field in schema.fields:
        if field.name.lower() in taken:
            text = f"column {field.name!r} has the same name as the column that `{taken[field.name.lower()]}` adds"
            yield problem((*path, "schema"), text, "remove that")


def defined_columns(value: Value) -> dict[str, str] | None:
    """The columns of a definition with their types; None if they are not known."""
    if value.format not in DEFINED or value.schema in ("", UNREADABLE):
        return None
    try:
        fields = _parse(value).fields
    except (errors.SchemaInvalid, errors.MissingExtra):
        return None
    return {field.name: field.type.kind if isinstance(field.type, Scalar) else "nested" for field in fields}


def _parse(value: Value) -> Schema:
    from oncemq.protocol.schema.definitions.parse import parse_definition

    return parse_definition(value.schema, DEFINED[value.format], message=value.message)
