"""Definitions of schemas in any of the accepted languages, and schemas in other languages than they were defined in."""

from __future__ import annotations

import json
import re
from typing import Any, Final, get_args

from oncemq.protocol import errors, limits
from oncemq.protocol.schema.definitions.avro import parse_avro
from oncemq.protocol.schema.definitions.json_schema import parse_json_schema
from oncemq.protocol.schema.fields_json import fields_from_builtins
from oncemq.protocol.schema.fields_text import parse_fields
from oncemq.protocol.schema.fingerprint import decode_schema, encode_schema
from oncemq.protocol.schema.model import DefinitionKind, Encoding, Schema
from oncemq.protocol.schema.validate import validate_schema
from oncemq.protocol.schema.values.codec import codec_of
from oncemq.protocol.schema.values.defaults import validate_defaults

KINDS: Final[tuple[DefinitionKind, ...]] = get_args(DefinitionKind)
ENCODINGS: Final[tuple[Encoding, ...]] = get_args(Encoding)
#: Endings of file names → the language.
SUFFIXES: Final[dict[str, DefinitionKind]] = {
    ".avsc": "avro",
    ".proto": "protobuf",
    ".desc": "protobuf",
    ".pb": "protobuf",
    ".fields": "fields",
}

_PROTO = re.compile(r"(?m)^\s*(syntax|edition|message|package|import)\b[^:]*[;{]")


def parse_definition(
    definition: str | bytes,
    kind: DefinitionKind | None = None,
    *,
    encoding: Encoding | None = None,
    message: str = "",
) -> Schema:
    """Return the schema of a definition.

    `kind` is its language; None = found out from the text. `encoding` is how values are encoded; None = json, and avro
    or protobuf for definitions in these languages. `message` names the Protobuf message. Raises SchemaInvalid or
    MissingExtra.
    """
    if len(definition) > limits.SCHEMA_BYTES_MAX:
        raise errors.SchemaInvalid(f"the definition is larger than {limits.SCHEMA_BYTES_MAX} bytes, the limit")
    kind = kind or kind_of(definition)
    try:
        schema = _parse(definition, kind, encoding, message)
        validate_schema(schema)
        validate_defaults(schema.fields)
        # What can't be stored and read again is not a schema: a comment that is a number, a name that is not UTF-8.
        decode_schema(encode_schema(schema))
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        errors.Malformed,
    ) as error:
        # A definition may have anything in the place of anything.
        raise errors.SchemaInvalid(f"the definition is not valid as {kind}: {error}") from None
    # A definition that its own encoder refuses would refuse every value.
    codec_of(schema)
    return schema


def _parse(definition: str | bytes, kind: DefinitionKind, encoding: Encoding | None, message: str) -> Schema:
    if kind == "protobuf":
        # Only here, because its package is optional.
        from oncemq.protocol.schema.definitions.protobuf import parse_protobuf

        return parse_protobuf(_proto(definition), message, encoding or "protobuf")
    text = definition if isinstance(definition, str) else _text(definition)
    if message:
        raise errors.SchemaInvalid("only a Protobuf definition has messages")
    if kind == "avro":
        return parse_avro(text, encoding or "avro")
    if encoding not in (None, "json"):
        raise errors.SchemaInvalid(f"values in {encoding} need a definition in that language, not {kind}")
    return parse_json_schema(text) if kind == "json-schema" else _fields(text)


def kind_of(definition: str | bytes) -> DefinitionKind:
    """Guess the language of a definition from its text."""
    if isinstance(definition, bytes):
        try:
            definition = definition.decode()
        except UnicodeDecodeError:
            return "protobuf"
    text = definition.strip()
    if text.startswith(("{", "[")):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise errors.SchemaInvalid(f"the definition is not JSON: {error}") from None
        return _kind_of_json(value)
    return "protobuf" if _PROTO.search(text) else "fields"


def _kind_of_json(value: Any) -> DefinitionKind:
    if isinstance(value, list) or set(value) == {"fields"}:
        return "fields"
    return "avro" if value.get("type") == "record" else "json-schema"


def _text(definition: bytes) -> str:
    try:
        return definition.decode()
    except UnicodeDecodeError:
        raise errors.SchemaInvalid("the definition is not UTF-8") from None


def _fields(text: str) -> Schema:
    if text.lstrip().startswith(("{", "[")):
        try:
            fields = fields_from_builtins(json.loads(text))
        except ValueError as error:
            raise errors.SchemaInvalid(f"the fields are not JSON: {error}") from None
    else:
        fields = parse_fields(text)
    return Schema(fields, "json", text, "fields")


def _proto(definition: str | bytes) -> str | bytes:
    """Return the text of a .proto file, or the bytes of a FileDescriptorSet."""
    if isinstance(definition, str):
        return definition
    try:
        return definition.decode()
    except UnicodeDecodeError:
        return definition
