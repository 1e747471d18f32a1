"""The options for typed columns: which schema, and what happens to a value that does not match it. Does not import
Spark."""

from __future__ import annotations

from typing import Literal, cast

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.schema import DefinitionKind, Field, Schema
from oncemq.spark.raw_options import RawOptions

#: The schema that the topic has.
TOPIC = "topic"
_KINDS = (TOPIC, "fields", "json-schema", "avro", "protobuf")

OnError = Literal["fail", "drop", "keep"]
_ON_ERROR = ("fail", "drop", "keep")
#: The column that onError=keep adds.
ERROR_COLUMN = "error"

SCHEMA_OPTIONS = ("schema", "schemaVersion")
TYPED_SOURCE = (*SCHEMA_OPTIONS, "schemaDefinition", "schemaMessage", "onError")


class TypedOptions(msgspec.Struct, frozen=True, kw_only=True):
    #: The version of the topic's schema; 0 = the newest one.
    version: int = 0
    on_error: OnError = "fail"
    #: Instead of the topic's schema: a definition, its language, and the message of a Protobuf definition.
    definition: str = ""
    definition_kind: DefinitionKind = "fields"
    message: str = ""
    #: The columns that Spark was told, once they are known.
    fields: tuple[Field, ...] = ()
    #: The schema of the definition, once it is parsed.
    schema: Schema | None = None


def parse_typed(options: RawOptions) -> TypedOptions | None:
    """Return the options for typed columns of a source; None if there is no option `schema`. Raises SettingInvalid."""
    kind = options.text("schema")
    if not kind:
        for name in TYPED_SOURCE:
            if name in options:
                raise errors.SettingInvalid(f"'{name}' needs the option 'schema', as in .option(\"schema\", \"topic\")")
        return None
    if kind not in _KINDS:
        raise errors.SettingInvalid(f"'schema' must be one of {', '.join(_KINDS)}, not {kind!r}")
    definition = options.text("schemaDefinition")
    if (kind == TOPIC) == bool(definition):
        advice = "leave it out: the topic has its schema" if definition else f"it has the text of the {kind} definition"
        raise errors.SettingInvalid(f"'schemaDefinition' with schema={kind}: {advice}")
    if kind != TOPIC and "schemaVersion" in options:
        raise errors.SettingInvalid("'schemaVersion' is for schema=topic; a definition has no versions")
    if "schemaMessage" in options and kind != "protobuf":
        raise errors.SettingInvalid("'schemaMessage' is the name of a Protobuf message; use schema=protobuf")
    return TypedOptions(
        version=options.number("schemaVersion"),
        on_error=cast(OnError, options.choice("onError", _ON_ERROR)),
        definition=definition,
        definition_kind="fields" if kind == TOPIC else cast(DefinitionKind, kind),
        message=options.text("schemaMessage"),
    )
