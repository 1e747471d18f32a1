"""Values of a schema, in its encoding: checked, encoded from Python objects, decoded to them."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from typing import Any, Protocol

from oncemq.protocol import errors
from oncemq.protocol.schema.fingerprint import fingerprint
from oncemq.protocol.schema.model import Schema
from oncemq.protocol.schema.values.json_values import JsonCodec


class Codec(Protocol):
    """What every encoding can do."""

    def problem(self, value: bytes) -> str | None:
        """Return why a value does not match the schema: the path of the field and the reason. None = it matches."""

    def encode(self, plain: Any) -> bytes:
        """Encode a Python object. Raises SchemaMismatch. The result must still be checked with `problem`."""

    def decode(self, value: bytes) -> Any:
        """Decode a value to dicts, lists and scalars. Raises SchemaMismatch."""


#: Codecs are expensive to make, and serve all topics and clients of a process.
_KEPT_MAX = 1_000
_kept: OrderedDict[str, Codec] = OrderedDict()
_lock = threading.Lock()


def codec_of(schema: Schema) -> Codec:
    """Return the codec of a schema. Raises SchemaInvalid if no value can be checked against it, and MissingExtra if its
    encoding needs a package that is not installed."""
    key = fingerprint(schema)
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
            return found
    try:
        found = _make(schema)
    except (TypeError, ValueError, OverflowError, re.error) as error:
        # Constraints that contradict their type or each other, or a pattern that is no regular expression.
        raise errors.SchemaInvalid(f"the constraints of the schema are not valid: {error}") from None
    with _lock:
        _kept[key] = found
        if len(_kept) > _KEPT_MAX:
            _kept.popitem(last=False)
    return found


def _make(schema: Schema) -> Codec:
    if schema.encoding == "json":
        return JsonCodec(schema)
    # Their packages are optional.
    if schema.encoding == "avro":
        from oncemq.protocol.schema.values.avro_values import AvroCodec

        return AvroCodec(schema)
    from oncemq.protocol.schema.values.protobuf_values import ProtobufCodec

    return ProtobufCodec(schema)
