"""What a client states about the values that it puts: that it has checked them against a version of the topic's schema.

Pure functions: nothing here asks the broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import msgspec

from oncemq.client.producer.encoding import NO_CLAIM, Claim, all_as_bytes, are_bytes, as_bytes
from oncemq.protocol import commands, errors
from oncemq.protocol.batch import checksum, schema_version_of, with_schema_version
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import SchemasReply
from oncemq.protocol.schema.model import SchemaVersion
from oncemq.protocol.schema.values.codec import Codec, codec_of
from oncemq.protocol.schema.values.payload import check_payload, check_values
from oncemq.protocol.schema.values.python_values import plain_of

#: Values that are put as they are. Anything else is encoded by the topic's schema.
RAW = (bytes, str, bytearray, memoryview)


class SchemaNeeded(TypeError):
    """An object was put to a topic that has no schema, as far as is known."""


#: Errors that another version of the schema may cure.
OUTDATED = (errors.SchemaMismatch, SchemaNeeded)


@dataclass(eq=False)
class KnownSchema:
    """What was looked up of a topic."""

    topic_id: int
    #: Empty: the topic has no schema.
    versions: tuple[SchemaVersion, ...] = ()
    #: Values must match.
    is_required: bool = False

    @property
    def newest(self) -> SchemaVersion | None:
        return self.versions[-1] if self.versions else None

    @cached_property
    def codec(self) -> Codec:
        """The codec of the newest version. Raises MissingExtra."""
        return codec_of(self.versions[-1].schema)

    @cached_property
    def claim(self) -> Claim:
        """The claim of values that match the newest version."""
        return Claim(self.versions[-1].version, self.topic_id) if self.versions else NO_CLAIM

    def is_same(self, other: KnownSchema) -> bool:
        """Whether both say the same."""
        same = (self.topic_id, self.is_required) == (other.topic_id, other.is_required)
        return same and self.newest == other.newest


def known_of(reply: SchemasReply, earlier: Sequence[SchemaVersion] = ()) -> KnownSchema:
    """Return what the broker says of a topic. `earlier`: versions that it has returned before."""
    versions = (*earlier, *reply.versions)
    return KnownSchema(reply.topic_id, versions, bool(versions) and reply.check != commands.CHECK_NONE)


#: Topic → what is known; None = nothing is.
FindSchema = Callable[[str], KnownSchema | None]


def checked(topic: str, value: object, known: KnownSchema | None) -> tuple[bytes, Claim]:
    """Return a value as it is put, and the claim that goes with it. Raises SchemaMismatch, and SchemaNeeded for an
    object that is put to a topic without a schema."""
    is_raw = isinstance(value, RAW)
    newest = known.newest if known is not None else None
    if known is None or newest is None or (is_raw and not known.is_required):
        if not is_raw:
            kind = type(value).__name__
            raise SchemaNeeded(f"values, keys and headers are bytes or str, not {kind}: topic '{topic}' has no schema")
        return as_bytes(cast(Any, value)), NO_CLAIM
    codec = known.codec
    try:
        raw = as_bytes(cast(Any, value)) if is_raw else codec.encode(plain_of(value))
        problem = codec.problem(raw)
    except errors.SchemaMismatch as error:
        raw, problem = b"", error.text
    if problem is not None:
        text = f"the value for '{topic}' does not match version {newest.version} of its schema: {problem}"
        raise errors.SchemaMismatch(text)
    return raw, known.claim


def checked_all(topic: str, values: Sequence[object], known: KnownSchema | None) -> tuple[list[bytes], Claim]:
    """Return values that are put together, and the claim that holds for all of them. Raises as `checked` does."""
    if known is None or not known.is_required:
        # There are many of them. TypeError: there are objects among them.
        with contextlib.suppress(TypeError):
            return all_as_bytes(cast(Any, values)), NO_CLAIM
    found = [checked(topic, value, known) for value in values]
    claims = {claim for _, claim in found}
    return [value for value, _ in found], claims.pop() if len(claims) == 1 else NO_CLAIM


def raw_or_object(value: object) -> object:
    """Return a raw value as bytes, and an object as it is: it is encoded when the topic's schema is known."""
    return as_bytes(value) if isinstance(value, RAW) else value


def all_raw_or_objects(values: Iterable[object]) -> list[object]:
    """As `raw_or_object` for many values, most of which are bytes already."""
    found = list(values)
    return found if are_bytes(found) else [raw_or_object(value) for value in found]


def claim_of(topic: str, values: Sequence[bytes], known: KnownSchema | None) -> Claim:
    """Return the claim for values that are put together, after they were checked. Raises SchemaMismatch."""
    if known is None or known.newest is None or not known.is_required:
        return NO_CLAIM
    check_values(values, known.newest.schema, topic)
    return known.claim


def claim_payloads(
    operation: commands.Operation, payloads: Sequence[Frame], find: FindSchema, *, lowest: bool = False
) -> tuple[commands.Operation, tuple[Frame, ...]]:
    """Check payloads that were encoded without a version, and name the version in them and in their envelopes.

    `lowest`: the lowest version that all values of a payload match, so that a request that is repeated after another
    version was added is the same request. Otherwise the newest one. Raises SchemaMismatch."""
    if isinstance(operation, commands.Put | commands.Stage):
        envelope, payload = _claimed(operation.topic, operation.envelope, payloads[0], find, lowest)
        return msgspec.structs.replace(operation, envelope=envelope), (payload,)
    if not isinstance(operation, commands.Transact):
        return operation, tuple(payloads)
    puts, found = [], []
    for put, payload in zip(operation.puts, payloads, strict=True):
        envelope, payload = _claimed(put.topic, put.envelope, payload, find, lowest)
        puts.append(msgspec.structs.replace(put, envelope=envelope))
        found.append(payload)
    return msgspec.structs.replace(operation, puts=tuple(puts)), tuple(found)


def _claimed(
    topic: str, envelope: commands.Envelope, payload: Frame, find: FindSchema, lowest: bool
) -> tuple[commands.Envelope, Frame]:
    known = find(topic)
    if envelope.schema_version or known is None or not known.is_required or known.newest is None:
        return envelope, payload
    raw = bytes(payload)
    named = schema_version_of(raw)
    if named:
        raise errors.Malformed(f"a batch for '{topic}' names version {named} of its schema, and its envelope none")
    version = _match(topic, raw, known.versions if lowest else known.versions[-1:])
    raw = with_schema_version(raw, version)
    claimed = msgspec.structs.replace(
        envelope, checksum=checksum(raw), schema_version=version, schema_topic_id=known.topic_id
    )
    return claimed, raw


def _match(topic: str, payload: bytes, versions: Sequence[SchemaVersion]) -> int:
    """Return the first version that all values match. Raises SchemaMismatch of the last one."""
    for each in versions:
        try:
            check_payload(payload, lambda _, schema=each.schema: schema, topic)  # type: ignore[misc]
        except errors.SchemaMismatch:
            if each is versions[-1]:
                raise
        else:
            return each.version
    raise AssertionError("a schema has at least one version")


def topics_of(operation: commands.Operation) -> set[str]:
    """Return the topics that an operation puts to."""
    if isinstance(operation, commands.Put | commands.Stage):
        return {operation.topic}
    return {put.topic for put in operation.puts} if isinstance(operation, commands.Transact) else set()
