"""Upper bounds of the journal space that commands need.

Space must be known before `step` decides, because a failed append is final.
"""

from __future__ import annotations

import msgspec

from oncemq.journal.contract import record_bytes
from oncemq.protocol import commands
from oncemq.protocol.limits import RANGES_MAX, SEEK_TOPICS_MAX
from oncemq.protocol.patterns import is_pattern

_encode = msgspec.msgpack.Encoder().encode

#: Maximum size of an event, without the names and payloads of its command. The text of a refusal is part of it.
EVENT_BYTES_MAX = 1024
#: Maximum size of the text of a refusal that is recorded: it may quote a schema, which has any length.
REFUSAL_BYTES_MAX = 800
#: The same for one put of a transaction.
_PUT_BYTES_MAX = 640
#: The same for one topic of a commit.
_COMMIT_PART_BYTES_MAX = 64
#: The same for one range of a lease or settle.
_RANGE_BYTES_MAX = 40
#: Maximum size of the positions of a pattern seek.
SEEK_BYTES_MAX = 32 * SEEK_TOPICS_MAX
#: Maximum number of held and lost pieces per range of a settle.
_PIECES_PER_RANGE_MAX = 8
#: One entry of an event that records owners: two names, a user and a kind.
_OWNED_BYTES_MAX = 2 * 255 + 64 + 64
#: Commands whose event needs no more than `EVENT_BYTES_MAX`.
_WITH_SMALL_EVENT = frozenset((commands.Hello, commands.Bye, commands.Ack, commands.Get, commands.Leave))


def need_bytes(command: commands.Command) -> int:
    """Return the maximum journal space of a command, including its payloads; 0 = it records nothing."""
    if type(command) is commands.Numbered or type(command) is commands.Keyed:
        operation = command.operation
        if type(operation) is commands.Put:
            envelope = operation.envelope
            names_bytes = 2 * len(operation.topic) + len(envelope.key_hashes)
            if type(command) is commands.Keyed:
                names_bytes += len(command.principal.encode()) + len(command.key.encode())
            return EVENT_BYTES_MAX + names_bytes + record_bytes(envelope.size)
        payload_bytes = sum(_PUT_BYTES_MAX + record_bytes(each.size) for each in commands.envelopes_of(operation))
        return EVENT_BYTES_MAX + _outcome_bytes(operation) + len(_encode(command)) + payload_bytes
    if type(command) in _WITH_SMALL_EVENT:
        return EVENT_BYTES_MAX
    if isinstance(command, commands.GetAny):
        return EVENT_BYTES_MAX + len(command.acks) * (len(_encode((command.pattern, command.subscriber))) + 32)
    if isinstance(command, commands.Take):
        return EVENT_BYTES_MAX + RANGES_MAX * _RANGE_BYTES_MAX
    if isinstance(command, commands.Extend):
        return EVENT_BYTES_MAX + len(command.tokens) * _RANGE_BYTES_MAX
    return 0


def owned_bytes(command: commands.Command) -> int:
    """Return the maximum size of the event that records the owner of what a command creates."""
    if type(command) is commands.Numbered and type(command.operation) is commands.Put and not command.operation.create:
        return 0
    operation = command.operation if isinstance(command, commands.Numbered | commands.Keyed) else None
    return _OWNED_BYTES_MAX * (1 + (len(operation.puts) if isinstance(operation, commands.Transact) else 1))


def refusal_text(text: str) -> str:
    """Return the text of a refusal as it is recorded: its beginning, if it is too long."""
    raw = text.encode(errors="replace")
    return text if len(raw) <= REFUSAL_BYTES_MAX else raw[: REFUSAL_BYTES_MAX - 3].decode(errors="ignore") + "…"


def _outcome_bytes(operation: commands.Operation) -> int:
    """Return the maximum size of what an event contains in addition to its operation."""
    if isinstance(operation, commands.Seek) and is_pattern(operation.topic):
        return SEEK_BYTES_MAX
    if isinstance(operation, commands.Settle):
        return settle_pieces_max(operation) * _RANGE_BYTES_MAX
    if isinstance(operation, commands.Commit):
        return _COMMIT_PART_BYTES_MAX * len(operation.parts)
    if isinstance(operation, commands.Transact):
        return sum(settle_pieces_max(settle) * _RANGE_BYTES_MAX for settle in operation.settles)
    return 0


def settle_pieces_max(settle: commands.Settle) -> int:
    """Return the maximum number of held and lost pieces into which the ranges of a settle may split."""
    return min(2 * RANGES_MAX, _PIECES_PER_RANGE_MAX * (len(settle.done) + len(settle.returned)))
