"""Checks that need the payload or the installed packages: values of topics whose schema the broker checks.

The engine decides without payloads. What is wrong with one is found here, before the engine decides, and handed to it
as a refusal, so that it is recorded under the command's number like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.protocol import commands, errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import Refusal
from oncemq.protocol.schema import Schema, validate_schema
from oncemq.protocol.schema.constraints import without_patterns
from oncemq.protocol.schema.extras import missing_for
from oncemq.protocol.schema.values.codec import Codec, codec_of
from oncemq.protocol.schema.values.defaults import validate_defaults
from oncemq.protocol.schema.values.payload import check_payload


def refuse_values(state: State, command: commands.Command, payloads: Sequence[Frame]) -> Refusal | None:
    """Return what is wrong with a command whose payloads are intact: a value that does not match the schema, or a
    schema whose values this broker can't check."""
    if type(command) is not commands.Numbered and type(command) is not commands.Keyed:
        return None
    operation = command.operation
    if type(operation) is commands.PutSchema:
        return _refuse_schema(state, operation)
    for index, (topic, envelope) in enumerate(_puts(state, operation)):
        if topic is None or not is_checked(topic, envelope):
            continue
        assert topic.schema is not None
        try:
            codecs = partial(_codec, (state.broker_id, topic.id, envelope.schema_version))
            check_payload(bytes(payloads[index]), topic.schema.find, topic.name, codecs)
        except errors.SchemaUnknown:
            # The engine says so.
            return None
        except (errors.SchemaMismatch, errors.SchemaInvalid, errors.Malformed) as error:
            which = f"put {index}: " if isinstance(operation, commands.Transact) else ""
            return Refusal(error.code, which + error.text)
        except errors.MissingExtra as error:
            return Refusal("UNSUPPORTED", f"this broker can't check the values of topic '{topic.name}': {error.text}")
    return None


#: By broker, topic id and version: a version never changes.
_codecs: dict[tuple[str, int, int], Codec] = {}
_CODECS_MAX = 1_000


def _codec(version: tuple[str, int, int], schema: Schema) -> Codec:
    """Return the codec of a schema without its patterns: the time of a match is not bounded, and others wait meanwhile.
    Clients and gateways check them."""
    found = _codecs.get(version)
    if found is None:
        if len(_codecs) >= _CODECS_MAX:
            _codecs.clear()
        found = _codecs[version] = codec_of(without_patterns(schema))
    return found


def checked_bytes(state: State, operation: commands.Operation) -> int:
    """Return the bytes of an operation's payloads that the broker decodes to check them."""
    size = 0
    for topic, envelope in _puts(state, operation):
        if topic is not None and is_checked(topic, envelope):
            size += envelope.size
    return size


def is_checked(topic: Topic, envelope: commands.Envelope) -> bool:
    """Whether the broker checks the values of a batch. One that names no version is refused or stored unchecked. One
    that was checked against the schema of a deleted topic is refused."""
    if topic.schema is None or not topic.schema.is_checked or not envelope.schema_version:
        return False
    return envelope.schema_topic_id in (0, topic.id)


def _puts(state: State, operation: commands.Operation) -> Sequence[tuple[Topic | None, commands.Envelope]]:
    if type(operation) is commands.Put or type(operation) is commands.Stage:
        return ((state.topics.get(operation.topic), operation.envelope),)
    if type(operation) is commands.Transact:
        return [(state.topics.get(put.topic), put.envelope) for put in operation.puts]
    return ()


def _refuse_schema(state: State, operation: commands.PutSchema) -> Refusal | None:
    topic = state.topics.get(operation.topic)
    known = topic.schema if topic is not None else None
    check = operation.check or (known.check if known is not None else commands.CHECK_CLIENT)
    schema = operation.schema or (known.versions[-1].schema if known is not None and known.versions else None)
    if schema is None:
        return None
    missing = missing_for(schema.encoding)
    if missing:
        if check != commands.CHECK_BROKER:
            return _refuse_unusable(schema, has_codec=False)
        text = f"this broker can't check values in {schema.encoding}: pip install 'oncemq[{missing}]' where it runs"
        return Refusal("UNSUPPORTED", text)
    return _refuse_unusable(schema, has_codec=True)


def _refuse_unusable(schema: Schema, *, has_codec: bool) -> Refusal | None:
    try:
        validate_schema(schema)
        validate_defaults(schema.fields)
        if has_codec:
            codec_of(schema)
    except errors.SchemaInvalid as error:
        return Refusal(error.code, error.text)
    return None
