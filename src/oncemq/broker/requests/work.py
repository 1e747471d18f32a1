"""What commands cost, and how much of it a round and one peer's turn may do.

The cost is counted in units, so that a test and the simulator see the same rounds in every run. One unit is about the
work of a small put, ten microseconds. The time is a second bound, for what costs more than its units say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from oncemq.broker.clock import Clock
from oncemq.broker.schema_checks import checked_bytes
from oncemq.engine.decide.decision import Decision
from oncemq.engine.events import AckedMany, Event, PatternSought, PatternSubscribed, PatternUnsubscribed
from oncemq.engine.state.state import State
from oncemq.protocol import commands, replies
from oncemq.protocol.frames import Frame
from oncemq.protocol.patterns import is_pattern
from oncemq.protocol.schema.model import count_fields

#: Work of one peer until another peer gets its turn.
TURN_UNITS_MAX = 150
TURN_MS_MAX = 4
#: Work of all turns of a round.
ROUND_UNITS_MAX = 1_000
ROUND_MS_MAX = 20
#: Requests of all peers and of one peer that a round refuses because the queue is full, with the replies to them.
REFUSALS_BYTES_MAX = 1024 * 1024
PEER_REFUSALS_BYTES_MAX = 256 * 1024
#: A command of more units than this overdraws its turn by far. A list, a get, or a put of the largest size is below it.
OVERDRAFT_UNITS_MIN = 1_000
#: The clock is read after this many units: reading it costs a few percent of a small command.
_CLOCK_EVERY_UNITS = 4

#: Parts of each kind that are as much work as a unit.
_ENTRIES_PER_UNIT = 3
_TOPICS_PER_UNIT = 4
#: Topics that are only compared with a pattern or a position.
_COMPARISONS_PER_UNIT = 32
_SLICES_PER_UNIT = 8
_PATTERNS_PER_UNIT = 16
_HEADER_BYTES_PER_UNIT = 1024
_PUT_BYTES_PER_UNIT = 64 * 1024
#: Payloads that are decoded to check their values.
_CHECKED_BYTES_PER_UNIT = 1024
#: Fields of a new schema, whose values the broker must be able to check, and fields of earlier versions that it is
#: compared with.
_UNITS_PER_NEW_FIELD = 2
_FIELDS_PER_UNIT = 8
#: Payloads that are read after the sync.
_FETCH_BYTES_PER_UNIT = 16 * 1024


class WorkBudget:
    """Counts the work of a round."""

    __slots__ = (
        "_clock",
        "_clock_units",
        "_left_units",
        "_round_end_ms",
        "_turn_end_ms",
        "_turn_units",
        "is_round_over",
        "is_turn_over",
        "overdraft_units",
    )

    def __init__(self, clock: Clock, now_ms: int) -> None:
        self._clock = clock
        self._left_units = ROUND_UNITS_MAX
        self._round_end_ms = now_ms + ROUND_MS_MAX
        self.is_round_over = False
        self.start_turn(now_ms)

    def start_turn(self, now_ms: int) -> None:
        self._turn_units = TURN_UNITS_MAX
        self._turn_end_ms = now_ms + TURN_MS_MAX
        self._clock_units = 0
        self.is_turn_over = self.is_round_over
        #: What a single command did beyond the turn. Time does not count: the process may have been interrupted.
        self.overdraft_units = 0

    def spend(self, units: int) -> None:
        """Count the work of one command."""
        if units > OVERDRAFT_UNITS_MIN:
            self.overdraft_units = units - TURN_UNITS_MAX
        self._left_units -= units
        self._turn_units -= units
        self._clock_units += units
        if self._clock_units >= _CLOCK_EVERY_UNITS:
            self._clock_units = 0
            self._check_time()
        if self._turn_units <= 0 or self._left_units <= 0:
            self.is_turn_over = True
            self.is_round_over = self._left_units <= 0

    def _check_time(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms >= self._turn_end_ms:
            self._turn_units = 0
        if now_ms >= self._round_end_ms:
            self._left_units = 0

    @property
    def is_turn_unused(self) -> bool:
        return self._turn_units == TURN_UNITS_MAX


class RefusalBudget:
    """Counts the requests that are refused in a round because the queue is full, and the replies to them, in bytes."""

    __slots__ = ("_by_peer", "_left_bytes")

    def __init__(self) -> None:
        self._left_bytes = REFUSALS_BYTES_MAX
        self._by_peer: Counter[bytes] = Counter()

    def is_over(self, peer: bytes) -> bool:
        return self._left_bytes <= 0 or self._by_peer[peer] >= PEER_REFUSALS_BYTES_MAX

    def spend(self, peer: bytes, size: int) -> None:
        self._left_bytes -= size
        self._by_peer[peer] += size


def units_of_header(frames: Sequence[Frame]) -> int:
    """Return the cost of decoding a request."""
    return len(frames[0]) // _HEADER_BYTES_PER_UNIT if frames else 0


def units_of(state: State, command: commands.Command, decision: Decision) -> int:
    """Return the cost of a command that was decided."""
    if type(command) is commands.Numbered or type(command) is commands.Keyed:
        operation = command.operation
        units = 1
        if type(operation) is commands.Put:
            units += operation.envelope.size // _PUT_BYTES_PER_UNIT
        elif isinstance(operation, commands.Subscribe | commands.Unsubscribe | commands.Seek):
            units += _by_pattern(state, operation.topic, decision.event)
        elif (cost := _OPERATIONS.get(type(operation))) is not None:
            units += cost(state, operation)
        units += checked_bytes(state, operation) // _CHECKED_BYTES_PER_UNIT
        # A new topic is compared with all patterns.
        return units + len(state.patterns) // _PATTERNS_PER_UNIT if getattr(decision.event, "topic_name", "") else units
    units = 1
    if isinstance(command, commands.GetAny):
        units += (len(command.acks) + len(command.positions)) // _COMPARISONS_PER_UNIT
        units += len(decision.event.acks) // _ENTRIES_PER_UNIT if isinstance(decision.event, AckedMany) else 0
    elif isinstance(command, commands.Extend):
        units += len(command.tokens) // _ENTRIES_PER_UNIT
    if decision.slices:
        fetch_bytes = sum(entry.size for entry in decision.slices)
        return units + len(decision.slices) // _SLICES_PER_UNIT + fetch_bytes // _FETCH_BYTES_PER_UNIT
    if isinstance(decision.reply, replies.PatternsReply):
        units += sum(info.topics for info in decision.reply.patterns) // _COMPARISONS_PER_UNIT
    entries = _ENTRIES.get(type(decision.reply))
    return units + len(entries(decision.reply)) // _ENTRIES_PER_UNIT if entries is not None else units


_ENTRIES: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    replies.TopicsReply: lambda reply: reply.topics,
    replies.SchemasReply: lambda reply: reply.versions,
    replies.SubscriptionsReply: lambda reply: reply.subscriptions,
    replies.PatternsReply: lambda reply: reply.patterns,
    replies.SessionsReply: lambda reply: reply.sessions,
    replies.RegistryListReply: lambda reply: reply.entries,
    replies.KeysReply: lambda reply: reply.keys,
    replies.SharesReply: lambda reply: reply.shares,
    replies.HelloReply: lambda reply: reply.verdicts,
}


def _by_pattern(state: State, name: str, event: Event | None) -> int:
    if not is_pattern(name) or event is None or (isinstance(event, PatternSubscribed) and not event.created):
        return 0
    is_changed = isinstance(event, PatternSubscribed | PatternUnsubscribed | PatternSought)
    return len(state.topics) // (_TOPICS_PER_UNIT if is_changed else _COMPARISONS_PER_UNIT)


def _settle(_state: State, operation: commands.Settle) -> int:
    return (len(operation.done) + len(operation.returned)) // _ENTRIES_PER_UNIT


def _transact(state: State, operation: commands.Transact) -> int:
    payload_bytes = sum(put.envelope.size for put in operation.puts)
    settles = sum(1 + _settle(state, settle) for settle in operation.settles)
    return len(operation.acks) + len(operation.puts) + settles + payload_bytes // _PUT_BYTES_PER_UNIT


def _stage(_state: State, operation: commands.Stage) -> int:
    return operation.envelope.size // _PUT_BYTES_PER_UNIT


def _commit(_state: State, operation: commands.Commit) -> int:
    return sum(len(stages) for _, stages in operation.by_topic()) // _ENTRIES_PER_UNIT


def _abort(_state: State, operation: commands.Abort) -> int:
    return len(operation.stages) // _ENTRIES_PER_UNIT


def _remove_keys(_state: State, operation: commands.RemoveKeys) -> int:
    return len(operation.keys) // _ENTRIES_PER_UNIT


def _put_schema(state: State, operation: commands.PutSchema) -> int:
    topic = state.topics.get(operation.topic)
    known = topic.schema if topic is not None else None
    if operation.schema is None:
        return 0
    units = count_fields(operation.schema.fields) * _UNITS_PER_NEW_FIELD
    if known is not None:
        units += sum(count_fields(each.schema.fields) for each in known.versions) // _FIELDS_PER_UNIT
    return units


_OPERATIONS: dict[type, Callable[[State, Any], int]] = {
    commands.Settle: _settle,
    commands.Transact: _transact,
    commands.Stage: _stage,
    commands.Commit: _commit,
    commands.Abort: _abort,
    commands.RemoveKeys: _remove_keys,
    commands.PutSchema: _put_schema,
}
