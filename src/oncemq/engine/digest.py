"""Digests of operations: they show whether a retry under the same number or key is the same operation."""

from __future__ import annotations

import msgspec
import xxhash

from oncemq.protocol import commands

_encode = msgspec.msgpack.Encoder().encode

#: Operations that have got more fields since journal version 1, and their number of elements in that version.
_ELEMENTS_IN_VERSION_1: dict[type, int] = {
    commands.CreateTopic: 4,
    commands.Subscribe: 4,
    commands.Open: 4,
    commands.Commit: 5,
}


def digest_of(operation: commands.Operation) -> int:
    """Return the digest of an operation. It covers the payload through its checksum.

    Later fields count only if they differ from their defaults: operations that were decided before an upgrade are
    recognised after it.
    """
    comparable = _put(operation) if type(operation) is commands.Put else _comparable(operation)
    return xxhash.xxh3_64_intdigest(_encode(comparable))


def _comparable(operation: commands.Operation) -> object:
    """Return what is encoded for an operation other than a put: its elements without later fields that have their
    defaults."""
    if isinstance(operation, commands.Stage):
        named = (operation.stage, operation.topic, operation.writer, operation.batch)
        return ("stage", *named, _envelope(operation.envelope))
    if isinstance(operation, commands.Transact):
        acks = [_ack(ack) for ack in operation.acks]
        return ("transact", acks, operation.settles, [_put(put) for put in operation.puts])
    return _elements(operation) if type(operation) in _ELEMENTS_IN_VERSION_1 else operation


def _put(put: commands.Put) -> object:
    return ("put", put.topic, _envelope(put.envelope), put.create)


def _ack(ack: commands.AckUpto) -> object:
    return ack if ack.since else (ack.topic_id, ack.subscriber, ack.epoch, ack.upto)


def _envelope(envelope: commands.Envelope) -> object:
    if envelope.schema_version or envelope.schema_topic_id:
        return envelope
    # Without a schema, an envelope has the elements that it had before topics could have one.
    return (
        envelope.count,
        envelope.size,
        envelope.checksum,
        envelope.ttl_ms,
        envelope.due_ms,
        envelope.key_hashes,
    )


def _elements(operation: commands.Operation) -> list[object]:
    """Return the elements of an operation without later fields that have their defaults."""
    kind = type(operation)
    elements: list[object] = [kind.__struct_config__.tag, *msgspec.structs.astuple(operation)]
    defaults = list(kind.__struct_defaults__)
    while len(elements) > _ELEMENTS_IN_VERSION_1[kind] and elements[-1] == defaults.pop():
        elements.pop()
    return elements
