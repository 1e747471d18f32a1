"""Decides takes of shared subscriptions: which messages a member gets.

Redeliveries come first, the oldest before all others; then messages that were never delivered. Expired messages are
skipped. With key order, messages of busy keys are blocked. One take scans a limited number of messages. If it finds
nothing there, the skipped and blocked messages are recorded all the same, so that the next take gets further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oncemq.engine.decide.decision import Decision
from oncemq.engine.decide.decision_context import limit_reached
from oncemq.engine.events import Leased
from oncemq.engine.state.batch_index import EXPIRED, BatchIndex, Slice
from oncemq.engine.state.offset_ranges import Span
from oncemq.engine.state.shared_subscription import Lease, SharedState
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol.commands import Take
from oncemq.protocol.limits import BLOCKED_MAX, GET_BATCHES_MAX, RANGES_MAX, Limits
from oncemq.protocol.names import refuse_name
from oncemq.protocol.replies import Refusal, TakeReply, TaskHead

#: Maximum number of index entries that one take scans; with key order, of entries and messages.
SCAN_MAX = 10_000
TAKE_COUNT_MAX = 100_000


def decide_take(
    state: State, limits: Limits, now_ms: int, topic: Topic, subscription: Subscription, command: Take
) -> Decision:
    shared = subscription.shared
    assert shared is not None
    refusal = _refuse(shared, limits, command)
    if refusal is not None:
        return Decision(refusal)
    member = shared.members.get(command.member)
    if member is not None and command.number <= member.last_number:
        lease = shared.leases.get(member.tokens.get(command.number, 0))
        return _repeat(topic, lease, now_ms) if lease is not None else Decision(TakeReply(topic.id, 0, 0))
    scan = _Scan(topic, shared, limits, command)
    scan.run(now_ms)
    return _lease(topic, shared, now_ms, state.next_epoch, command, scan)


def _refuse(shared: SharedState, limits: Limits, command: Take) -> Refusal | None:
    if command.count_max < 1 or command.bytes_max < 0 or command.number < 1:
        return Refusal("MALFORMED", "a take needs a number of at least 1 and a count of at least 1")
    if command.member not in shared.members:
        if len(shared.members) >= limits.members_max:
            return limit_reached(limits.members_max, "members")
        return refuse_name(command.member, "member's name")
    return None


def _repeat(topic: Topic, lease: Lease, now_ms: int) -> Decision:
    """The client retried because the first reply was lost: return what the lease still contains."""
    heads, slices = _heads(topic.index, lease.spans)
    if not heads:
        # The messages have expired and were deleted.
        return Decision(TakeReply(topic.id, 0, 0))
    lease_ms = max(0, lease.until_ms - now_ms)
    return Decision(TakeReply(topic.id, lease.token, lease_ms, heads, len(slices)), None, slices)


def _lease(topic: Topic, shared: SharedState, now_ms: int, token: int, command: Take, scan: _Scan) -> Decision:
    """Lease what the scan found. `token` is used only if it found messages."""
    if not scan.range_count:
        return Decision(TakeReply(topic.id, 0, 0), waits_for=0 if scan.is_incomplete else topic.id)
    lease_ms = shared.policy.lease_ms if scan.ranges else 0
    event = Leased(
        topic.id,
        command.subscriber,
        command.member if scan.ranges else "",
        command.number if scan.ranges else 0,
        token if scan.ranges else 0,
        tuple((first, end - first, tries) for first, end, tries in scan.ranges),
        now_ms + lease_ms,
        tuple((first, end - first) for first, end in scan.skipped),
        tuple((first, end - first) for first, end in scan.blocked),
    )
    heads, slices = _heads(topic.index, scan.ranges)
    reply = TakeReply(topic.id, event.token, lease_ms, heads, len(slices))
    return Decision(reply, event, slices, (), 0 if heads or scan.is_incomplete else topic.id)


class _Scan:
    """Scans a shared subscription for messages to lease."""

    def __init__(self, topic: Topic, shared: SharedState, limits: Limits, command: Take) -> None:
        self.ranges: list[Span] = []
        self.skipped: list[tuple[int, int]] = []
        self.blocked: list[tuple[int, int]] = []
        #: The scan stopped early: another take may find more even if this one found nothing.
        self.is_incomplete = False
        self._topic = topic
        self._shared = shared
        self._count_left = min(command.count_max, TAKE_COUNT_MAX)
        self._bytes_left = min(command.bytes_max, limits.get_bytes_max)
        #: Leased messages and redeliveries together are limited.
        self._new_left = limits.leased_max - shared.leased - shared.redeliveries.count
        self._blocked_left = BLOCKED_MAX - shared.keys.blocked
        self._scan_left = SCAN_MAX
        self._keys: set[int] = set()
        self._payloads = 0
        self._last_entry = -1

    @property
    def range_count(self) -> int:
        """Number of ranges of all kinds, which the event will have."""
        return len(self.ranges) + len(self.skipped) + len(self.blocked)

    def run(self, now_ms: int) -> None:
        shared = self._shared
        for first, end, tries in shared.redeliveries.ready(now_ms):
            if not self._scan(first, end, tries + 1, self._pick):
                return
        # A key that a skipped message frees is free only after this event is applied.
        self.is_incomplete = bool(self.skipped) and shared.policy.key_order
        self._count_left = min(self._count_left, self._new_left)
        pick = self._pick_in_key_order if shared.policy.key_order else self._pick
        self._scan(shared.next_offset, self._topic.next_offset, 1, pick)

    def _scan(self, first: int, end: int, tries: int, pick: Callable[[int, int, int, int], bool]) -> bool:
        """Scan a range, entry by entry. Return False if the take is full or has scanned enough."""
        index = self._topic.index
        while first < end:
            if self._count_left <= 0 or not self._may_continue():
                return False
            if first < index.first:
                upto = min(end, index.first)
                _append(self.skipped, first, upto)
            else:
                entry = index.find(first)
                upto = min(end, index.ends[entry])
                if index.expires[entry] == EXPIRED:
                    _append(self.skipped, first, upto)
                elif not pick(entry, first, upto, tries):
                    return False
            first = upto
        return True

    def _may_continue(self) -> bool:
        self._scan_left -= 1
        if self._scan_left >= 0 and self.range_count < RANGES_MAX:
            return True
        self.is_incomplete = True
        return False

    def _pick(self, entry: int, first: int, end: int, tries: int) -> bool:
        """Add messages of an entry. Return False if the take is full."""
        if not self._admit(entry):
            return False
        upto = min(end, first + self._count_left)
        self._count_left -= upto - first
        last = self.ranges[-1] if self.ranges else (0, -1, 0)
        joins = last[1] == first and last[2] == tries
        if joins:
            self.ranges.pop()
        self.ranges.append((last[0] if joins else first, upto, tries))
        return upto == end

    def _admit(self, entry: int) -> bool:
        """Return whether the payload of an entry fits the reply. The first payload always fits."""
        if entry == self._last_entry:
            return True
        size = self._topic.index.sizes[entry]
        if self._payloads and (size > self._bytes_left or self._payloads >= GET_BATCHES_MAX):
            return False
        self._last_entry = entry
        self._payloads += 1
        self._bytes_left -= size
        return True

    def _pick_in_key_order(self, entry: int, first: int, end: int, tries: int) -> bool:
        for offset, key_hash in self._topic.index.key_hashes(entry, first, end):
            if self._count_left <= 0 or self._blocked_left <= 0 or not self._may_continue():
                return False
            if key_hash and (key_hash in self._keys or self._shared.keys.is_busy(key_hash)):
                self._blocked_left -= 1
                _append(self.blocked, offset, offset + 1)
            elif self._pick(entry, offset, offset + 1, tries):
                self._keys.add(key_hash)
            else:
                return False
        return True


def _append(ranges: list[tuple[int, int]], first: int, end: int) -> None:
    if ranges and ranges[-1][1] == first:
        first = ranges.pop()[0]
    ranges.append((first, end))


def _heads(index: BatchIndex, spans: Iterable[Span]) -> tuple[tuple[TaskHead, ...], tuple[Slice, ...]]:
    """Return heads for ascending ranges, and each of their payloads once. Omit what is no longer stored."""
    heads: list[TaskHead] = []
    slices: list[Slice] = []
    last_entry = -1
    for span_first, end, tries in spans:
        first = max(span_first, index.first)
        entry = index.find(first)
        while first < end:
            if entry != last_entry:
                slices.append(_slice(index, entry))
                last_entry = entry
            upto = min(end, index.ends[entry])
            skip = index.skips[entry] + first - index.first_offset(entry)
            heads.append(TaskHead(first, upto - first, skip, index.times[entry], 0, tries, len(slices) - 1))
            first = upto
            entry += 1
    return tuple(heads), tuple(slices)


def _slice(index: BatchIndex, entry: int) -> Slice:
    first = index.first_offset(entry)
    return Slice(
        index.positions[entry],
        index.sizes[entry],
        first,
        index.ends[entry] - first,
        index.skips[entry],
        index.times[entry],
    )
