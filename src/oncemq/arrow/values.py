"""The vectorised decoder: values in JSON, Avro or Protobuf as typed columns, with the reason for each row that does not
match its schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa

from oncemq.arrow.defaults import default_scalar, struct_member
from oncemq.arrow.object_columns import Member, object_columns, value_column
from oncemq.arrow.protobuf_objects import message_reader
from oncemq.protocol import errors
from oncemq.protocol.schema import Field, Schema
from oncemq.protocol.schema.arrow import to_arrow
from oncemq.protocol.schema.definitions.protobuf import message_descriptor
from oncemq.protocol.schema.values.codec import Codec, codec_of
from oncemq.protocol.schema.values.json_values import JsonCodec, shortened
from oncemq.protocol.schema.values.protobuf_values import ProtobufCodec

#: What a decoder raises for a value that it can't decode.
_FAILURES = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, errors.SchemaMismatch)

_Decode = Callable[[bytes], Any]


def decode_values(values: Any, schema: Schema) -> tuple[Any, Any]:
    """Decode a binary column. Returns a record batch with the columns of the schema, and a string column: row i is
    null, or the reason why value i does not match, which names the column. The columns of such a row are null.

    The columns of the batch are all nullable, since a row may not match."""
    decode, member = _decoder(schema)
    raw = values.to_pylist()
    reasons: list[str | None] | None = None
    try:
        objects = [decode(value) for value in raw]
    except _FAILURES:
        objects, reasons = _decode_each(raw, schema, decode)
    try:
        columns = object_columns(objects, schema.fields, member)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        # A value that its encoding has and Arrow has not, such as a decimal with too many digits.
        objects, reasons = _column_each(objects, reasons, schema, member)
        columns = object_columns(objects, schema.fields, member)
    filled = [_fill(column, field) for column, field in zip(columns, schema.fields, strict=True)]
    loose = pa.schema([field.with_nullable(True) for field in to_arrow(schema)])
    errors_column = pa.nulls(len(raw), pa.string()) if reasons is None else pa.array(reasons, pa.string())
    return pa.record_batch(filled, schema=loose), errors_column


def _decode_each(raw: Sequence[bytes | None], schema: Schema, decode: _Decode) -> tuple[list[Any], list[str | None]]:
    problem = codec_of(schema).problem
    objects: list[Any] = []
    reasons: list[str | None] = []
    for value in raw:
        found, reason = None, None
        if value is None:
            reason = "the value is null"
        else:
            try:
                found = decode(value)
            except _FAILURES as error:
                reason = problem(value) or shortened(str(error))
        objects.append(found)
        reasons.append(reason)
    return objects, reasons


def _column_each(
    objects: Sequence[Any], reasons: Sequence[str | None] | None, schema: Schema, member: Member
) -> tuple[list[Any], list[str | None]]:
    """Find the objects that can't be columns, field by field and row by row."""
    kept, found = list(objects), list(reasons or [None] * len(objects))
    for index, field in enumerate(schema.fields):
        get = member(field, index)
        for row, each in enumerate(kept):
            if each is None:
                continue
            try:
                value_column([get(each)], field, member)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                kept[row], found[row] = None, shortened(f"{field.name}: {error}")
    return kept, found


def _fill(column: Any, field: Field) -> Any:
    """Values that are missing get the default of a field that can't be null."""
    if field.nullable or field.default is None or not column.null_count:
        return column
    return column.fill_null(default_scalar(field))


def _decoder(schema: Schema) -> tuple[_Decode, Member]:
    codec = codec_of(schema)
    if isinstance(codec, JsonCodec):
        return codec.parse, struct_member
    if schema.encoding == "avro":
        return codec.decode, _dict_member
    return _protobuf_decoder(codec, schema), _dict_member


#: By their codecs, which are kept for the whole process.
_protobuf_decoders: WeakKeyDictionary[Codec, _Decode] = WeakKeyDictionary()


def _protobuf_decoder(codec: Codec, schema: Schema) -> _Decode:
    found = _protobuf_decoders.get(codec)
    if found is None:
        assert isinstance(codec, ProtobufCodec)
        read, parse = message_reader(message_descriptor(schema.descriptors, schema.message)), codec.parse
        found = _protobuf_decoders[codec] = lambda value: read(parse(value))
    return found


def _dict_member(field: Field, _: int) -> Callable[[Any], Any]:
    return itemgetter(field.name)
