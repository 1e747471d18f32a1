"""The default of a field as an Arrow scalar."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from oncemq.arrow.object_columns import object_columns
from oncemq.protocol.schema import Field
from oncemq.protocol.schema.values.defaults import decode_default


def default_scalar(field: Field) -> Any:
    """Return the default, which a schema has in the form of JSON, as a scalar of the field's type."""
    return object_columns([decode_default(field)], (field,), struct_member)[0][0]


def struct_member(_: Field, index: int) -> Any:
    """How the value of a field is found in a struct of `struct_of`."""
    return attrgetter(f"f{index}")
