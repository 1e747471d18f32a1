"""The defaults of fields, which a schema has in the form of JSON."""

from __future__ import annotations

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.schema.constraints import without_pattern
from oncemq.protocol.schema.fields_text import type_text
from oncemq.protocol.schema.model import Decimal, Field, nested_fields
from oncemq.protocol.schema.values.json_types import dec_hook, struct_of


def validate_defaults(fields: tuple[Field, ...], path: str = "") -> None:
    """Raise SchemaInvalid, with the path of the field, if a default is not a value of its field."""
    for field in fields:
        where = f"{path}.{field.name}" if path else field.name
        validate_defaults(nested_fields(field.type), where)
        if field.default is None:
            continue
        try:
            decode_default(field)
        except ValueError as error:
            raise errors.SchemaInvalid(
                f"{where}: its default is not of type {type_text(field.type)}: {error}"
            ) from None


def decode_default(field: Field) -> msgspec.Struct:
    """Return a struct whose only member, `f0`, is the default of a field. Raises ValueError if the default is not a
    value of the field. A pattern does not count."""
    default = field.default
    if isinstance(field.type, Decimal) and isinstance(default, int):
        # Spark has decimals in the place of large integers.
        default = str(default)
    try:
        kind = struct_of("Default", (without_pattern(field),))
        found: msgspec.Struct = msgspec.json.decode(
            msgspec.json.encode({field.name: default}), type=kind, dec_hook=dec_hook
        )
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(str(error).partition(" - at `")[0].replace("`", "")) from None
    return found
