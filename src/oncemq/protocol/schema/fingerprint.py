"""The identity of a schema, and its bytes."""

from __future__ import annotations

import msgspec
import xxhash

from oncemq.protocol import errors
from oncemq.protocol.schema.model import Schema

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Schema).decode


def fingerprint(schema: Schema) -> str:
    """Return 32 hexadecimal digits that are equal for equal schemas.

    A JSON value is interpreted by the fields alone, so two definitions with the same fields are equal. Avro and
    Protobuf values are interpreted by their definition, which therefore counts too.
    """
    wire: str | bytes = ""
    if schema.encoding == "avro":
        wire = schema.definition
    elif schema.encoding == "protobuf":
        wire = schema.descriptors
    return xxhash.xxh3_128_hexdigest(_encode((schema.encoding, schema.fields, schema.message, wire)))


def encode_schema(schema: Schema) -> bytes:
    """Return the bytes of a schema: deterministic, for storage and for comparison.

    Raises SchemaInvalid if a default or a constraint has no such form.
    """
    try:
        return _encode(schema)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise errors.SchemaInvalid(f"the schema can't be stored: {error}") from None


def decode_schema(raw: bytes) -> Schema:
    """Return the schema of these bytes. Raises Malformed."""
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise errors.Malformed(f"the schema could not be decoded: {error}") from None
