"""What a take of a shared subscription gets. Decides; changes nothing.

What was returned goes first, the oldest before all; then what was never handed out. What has expired is skipped;
with order per key, messages of busy keys are passed over. One take looks only so far. If it finds nothing there,
what it skipped or passed over is recorded all the same, so that the next one gets further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from oncemq.engine.events import Leased
from oncemq.engine.state.batch_index import EXPIRED, BatchIndex, Slice
from oncemq.engine.state.offset_ranges import Span
from oncemq.engine.state.shared_subscription import Lease, Shared
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol.commands import Take
from oncemq.protocol.limits import BLOCKED_MAX, GET_BATCHES_MAX, RANGES_MAX, Limits
from oncemq.protocol.names import refuse_name
from oncemq.protocol.replies import Refusal, TakeReply, TaskHead

#: What one take looks at: entries of the index; with order per key, messages too.
LOOKS_MAX = 10_000
TAKE_COUNT_MAX = 100_000
_HASH_BYTES = 8


class Taken(msgspec.Struct, frozen=True):
    reply: TakeReply
    event: Leased | None = None
    slices: tuple[Slice, ...] = ()
    #: Nothing is there, as it stands. There may be an event all the same.
    waits: bool = False


def decide_take(
    topic: Topic, subscription: Subscription, limits: Limits, now_ms: int, token: int, command: Take
) -> Taken | Refusal:
    """`token` is given to the lease, if one is made: then the event has it."""
    shared = subscription.shared
    assert shared is not None
    refusal = _refuse(shared, limits, command)
    if refusal is not None:
        return refusal
    member = shared.members.get(command.member)
    if member is not None and command.number <= member.last_number:
        lease = shared.leases.get(member.tokens.get(command.number, 0))
        return _again(topic, lease, now_ms) if lease is not None else Taken(TakeReply(topic.id, 0, 0))
    gathering = _Gathering(topic, shared, limits, command)
    gathering.gather(now_ms)
    return _taken(topic, shared, now_ms, token, command, gathering)


def _refuse(shared: Shared, limits: Limits, command: Take) -> Refusal | None:
    if command.count_max < 1 or command.bytes_max < 0 or command.number < 1:
        return Refusal("MALFORMED", "a take has a number from 1 on, and asks for 1 message at least")
    if command.member not in shared.members:
        if len(shared.members) >= limits.members_max:
            return Refusal("LIMIT_REACHED", f"there are {limits.members_max} members, which is the limit")
        return refuse_name(command.member, "member's name")
    return None


def _again(topic: Topic, lease: Lease, now_ms: int) -> Taken:
    """The client retried because our first reply was lost: what the lease still holds."""
    heads, slices = _heads(topic.index, lease.spans)
    if not heads:
        # Its time to live was over, and it was collected.
        return Taken(TakeReply(topic.id, 0, 0))
    lease_ms = max(0, lease.until_ms - now_ms)
    return Taken(TakeReply(topic.id, lease.token, lease_ms, heads, len(slices)), slices=slices)


def _taken(topic: Topic, shared: Shared, now_ms: int, token: int, command: Take, gathering: _Gathering) -> Taken:
    if not gathering.range_count:
        return Taken(TakeReply(topic.id, 0, 0), waits=not gathering.goes_on)
    lease_ms = shared.policy.lease_ms if gathering.ranges else 0
    event = Leased(
        topic.id,
        command.subscriber,
        command.member if gathering.ranges else "",
        command.number if gathering.ranges else 0,
        token if gathering.ranges else 0,
        tuple((first, end - first, tries) for first, end, tries in gathering.ranges),
        now_ms + lease_ms,
        tuple((first, end - first) for first, end in gathering.skipped),
        tuple((first, end - first) for first, end in gathering.blocked),
    )
    heads, slices = _heads(topic.index, gathering.ranges)
    reply = TakeReply(topic.id, event.token, lease_ms, heads, len(slices))
    return Taken(reply, event, slices, waits=not heads and not gathering.goes_on)


class _Gathering:
    """What one take has found so far."""

    def __init__(self, topic: Topic, shared: Shared, limits: Limits, command: Take) -> None:
        self.ranges: list[Span] = []
        self.skipped: list[tuple[int, int]] = []
        self.blocked: list[tuple[int, int]] = []
        #: Another take would find more, though this one found nothing.
        self.goes_on = False
        self._topic = topic
        self._shared = shared
        self._count_left = min(command.count_max, TAKE_COUNT_MAX)
        self._bytes_left = min(command.bytes_max, limits.get_bytes_max)
        #: What is out is bounded, whether leased or returned.
        self._fresh_left = limits.leased_max - shared.leased - shared.returned.count
        self._blocked_left = BLOCKED_MAX - shared.keys.blocked
        self._looks_left = LOOKS_MAX
        self._keys: set[int] = set()
        self._payloads = 0
        self._last_entry = -1

    @property
    def range_count(self) -> int:
        """Of all kinds: what the event will have."""
        return len(self.ranges) + len(self.skipped) + len(self.blocked)

    def gather(self, now_ms: int) -> None:
        shared = self._shared
        for first, end, tries in shared.returned.ready(now_ms):
            if not self._look(first, end, tries + 1, self._pick):
                return
        # A key that a skipped one leaves behind is free only after this event.
        self.goes_on = bool(self.skipped) and shared.policy.key_order
        self._count_left = min(self._count_left, self._fresh_left)
        pick = self._pick_in_key_order if shared.policy.key_order else self._pick
        self._look(shared.next, self._topic.next_offset, 1, pick)

    def _look(self, first: int, end: int, tries: int, pick: Callable[[int, int, int, int], bool]) -> bool:
        """Go through a range, entry by entry. False: the take is full, or has looked long enough."""
        index = self._topic.index
        while first < end:
            if self._count_left <= 0 or not self._may_look():
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

    def _may_look(self) -> bool:
        self._looks_left -= 1
        if self._looks_left >= 0 and self.range_count < RANGES_MAX:
            return True
        self.goes_on = True
        return False

    def _pick(self, entry: int, first: int, end: int, tries: int) -> bool:
        """False: the take is full."""
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
        """Whether an entry's payload may be sent, too. The first one always may."""
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
        for offset, key_hash in key_hashes(self._topic.index, entry, first, end):
            if self._count_left <= 0 or self._blocked_left <= 0 or not self._may_look():
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


def key_hashes(index: BatchIndex, entry: int, first: int, end: int) -> Iterator[tuple[int, int]]:
    """(offset, key hash) of an entry's messages; 0 = without a key."""
    entry_first = index.first_offset(entry)
    hashes = index.keys.get(entry_first, b"")
    for offset in range(first, end):
        at = (offset - entry_first) * _HASH_BYTES
        yield offset, int.from_bytes(hashes[at : at + _HASH_BYTES], "little")


def _heads(index: BatchIndex, spans: Iterable[Span]) -> tuple[tuple[TaskHead, ...], tuple[Slice, ...]]:
    """What describes ranges that rise, and their payloads, each once. What is not stored any more is left out."""
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
