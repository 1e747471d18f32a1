"""Checks of whole batches: what clients, gateways and the broker call before they put or store messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oncemq.protocol import errors
from oncemq.protocol.batch import SchemaLookup, schema_version_of, split
from oncemq.protocol.schema.model import Schema
from oncemq.protocol.schema.values.codec import Codec, codec_of


def check_values(
    values: Iterable[bytes], schema: Schema, topic: str, first: int = 0, codecs: Callable[[Schema], Codec] = codec_of
) -> None:
    """Raise SchemaMismatch if a value does not match: it names the topic, the message, the field and the reason.

    `first` is the index of the first value among the messages that are put together."""
    problem_of = codecs(schema).problem
    for index, value in enumerate(values):
        problem = problem_of(value)
        if problem is not None:
            raise errors.SchemaMismatch(f"message {first + index} for '{topic}' does not match the schema: {problem}")


def check_payload(
    payload: bytes, schemas: SchemaLookup, topic: str, codecs: Callable[[Schema], Codec] = codec_of
) -> None:
    """Raise SchemaMismatch if a message of a batch does not match the schema version that its head names, SchemaUnknown
    if the topic has no such version, Malformed if the payload can't be decoded."""
    version = schema_version_of(payload)
    schema = schemas(version)
    if schema is None:
        raise errors.SchemaUnknown(f"the schema of '{topic}' has no version {version}")
    columns = split(payload)
    at, ends = columns.values_at, columns.value_offsets
    values = (columns.values[at + ends[index] : at + ends[index + 1]] for index in range(columns.count))
    check_values(values, schema, topic, 0, codecs)
