"""Schemas of topics: the model, its definitions in several languages, compatibility, and checks of values.

A schema is a list of typed fields. It can be defined as fields, as JSON Schema, Avro or Protobuf.
"""

from oncemq.protocol.schema.compatibility import RULES, Rule, compatibility, incompatibilities
from oncemq.protocol.schema.fields_json import fields_from_builtins, fields_to_builtins
from oncemq.protocol.schema.fields_text import fields_text, parse_fields, type_text
from oncemq.protocol.schema.fingerprint import decode_schema, encode_schema, fingerprint
from oncemq.protocol.schema.model import (
    ITEM,
    VALUE,
    Decimal,
    DefinitionKind,
    Encoding,
    Field,
    ListType,
    MapType,
    Scalar,
    ScalarKind,
    Schema,
    SchemaVersion,
    StructType,
    Type,
    same_types,
)
from oncemq.protocol.schema.validate import validate_schema

__all__ = [
    "ITEM",
    "RULES",
    "VALUE",
    "Decimal",
    "DefinitionKind",
    "Encoding",
    "Field",
    "ListType",
    "MapType",
    "Rule",
    "Scalar",
    "ScalarKind",
    "Schema",
    "SchemaVersion",
    "StructType",
    "Type",
    "compatibility",
    "decode_schema",
    "encode_schema",
    "fields_from_builtins",
    "fields_text",
    "fields_to_builtins",
    "fingerprint",
    "incompatibilities",
    "parse_fields",
    "same_types",
    "type_text",
    "validate_schema",
]
