"""The default of a field as an Arrow scalar."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from oncemq.arrow.object_columns import object_columns
from oncemq.protocol.schema import Decimal, Field
from oncemq.protocol.schema.values.json_types import dec_hook, struct_of


def default_scalar(field: Field) -> Any:
    """Return the default, which a schema has in the form of JSON, as a scalar of the field's type."""
    default = field.default
    if isinstance(field.type, Decimal) and isinstance(default, int):
        # Spark has decimals in the place of large integers.
        default = str(default)
    decoder = msgspec.json.Decoder(struct_of("Default", (field,)), dec_hook=dec_hook)
    holder = decoder.decode(msgspec.json.encode({field.name: default}))
    return object_columns([holder], (field,), struct_member)[0][0]


def struct_member(_: Field, index: int) -> Any:
    """How the value of a field is found in a struct of `struct_of`."""
    return attrgetter(f"f{index}")
