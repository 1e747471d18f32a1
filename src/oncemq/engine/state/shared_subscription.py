"""The state of a shared subscription: which messages are leased, acked, to be redelivered, or blocked by their key.

    not yet delivered ─────► leased ──► acked
      │  (`next_offset`)      ▲  │
      │ key is busy           │  │ nack, lease expired, member left
      ▼                       │  ▼
    blocked ──────────► redeliveries
            key is free

Every offset from the floor to `next_offset` is in exactly one of these states. Only apply/leases.py and Topic change
it. It knows neither payloads nor the clock. Costs are per range; with key order, O(1) per message that has a key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from oncemq.engine.state.offset_ranges import AckedRanges, Span, Spans
from oncemq.engine.state.schedule import DueQueue
from oncemq.protocol.commands import Sharing

#: A member without a lease is removed after this many lease durations, and not before this time.
MEMBER_IDLE_LEASES = 10
MEMBER_IDLE_MS_MIN = 600_000


class Lease:
    """The messages of one take that are not settled yet. Never empty."""

    __slots__ = ("member", "number", "spans", "token", "until_ms")

    def __init__(self, token: int, member: str, number: int, until_ms: int, spans: Spans) -> None:
        self.token = token
        self.member = member
        self.number = number
        self.until_ms = until_ms
        self.spans = spans


class Member:
    __slots__ = ("active_ms", "last_number", "tokens")

    def __init__(self, last_number: int, active_ms: int) -> None:
        #: Number of its last take that got messages.
        self.last_number = last_number
        #: When it last got a lease or settled its last one.
        self.active_ms = active_ms
        #: Number of a take → token of its lease.
        self.tokens: dict[int, int] = {}


class Redeliveries:
    """Ranges that wait for delivery: nacked, expired or unblocked messages. No two ranges start at the same offset."""

    __slots__ = ("_ready", "_waiting", "count", "spans")

    def __init__(self) -> None:
        #: First offset → (end, number of deliveries so far, not before this time)
        self.spans: dict[int, tuple[int, int, int]] = {}
        #: Number of messages in all ranges.
        self.count = 0
        # Heaps over `spans`, by first offset and by time. They may contain stale entries.
        self._ready: list[int] = []
        self._waiting: list[tuple[int, int]] = []

    def add(self, first: int, end: int, tries: int, not_before_ms: int) -> None:
        self.spans[first] = (end, tries, not_before_ms)
        self.count += end - first
        if not_before_ms:
            heappush(self._waiting, (not_before_ms, first))
        else:
            heappush(self._ready, first)

    def remove(self, first: int, end: int) -> None:
        """Remove a range, which must start where one of the ranges starts and must have no gaps."""
        while first < end:
            span_end, tries, not_before_ms = self.spans.pop(first)
            self.count -= span_end - first
            if span_end > end:
                self.add(end, span_end, tries, not_before_ms)
            first = span_end
        self._pop_stale()

    def remove_below(self, floor: int) -> list[tuple[int, int]]:
        """Remove all offsets below `floor`; return them as (first, end). Scans all ranges."""
        low = [(first, min(floor, span[0])) for first, span in self.spans.items() if first < floor]
        for first, end in low:
            self.remove(first, end)
        return low

    def promote(self, now_ms: int) -> None:
        """Make ranges ready whose delay has ended. This changes no recorded state."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            not_before_ms, first = heappop(self._waiting)
            if self._exists(first, not_before_ms):
                heappush(self._ready, first)

    def ready(self, now_ms: int) -> Iterator[Span]:
        """Yield the ranges that can be delivered, the oldest first, without removing them. Traverses the heap."""
        self.promote(now_ms)
        last = -1
        nodes = [(self._ready[0], 0)] if self._ready else []
        while nodes:
            first, node = heappop(nodes)
            for child in (2 * node + 1, 2 * node + 2):
                if child < len(self._ready):
                    heappush(nodes, (self._ready[child], child))
            span = self.spans.get(first)
            if span is not None and first != last and span[2] <= now_ms:
                last = first
                yield first, span[0], span[1]

    def has_ready(self, now_ms: int) -> bool:
        return next(self.ready(now_ms), None) is not None

    def next_ms(self) -> int | None:
        """Return when the next delayed range becomes ready. The time may be too early."""
        return self._waiting[0][0] if self._waiting else None

    def _exists(self, first: int, not_before_ms: int) -> bool:
        span = self.spans.get(first)
        return span is not None and span[2] == not_before_ms

    def _pop_stale(self) -> None:
        """Remove stale entries from the top of the heaps."""
        while self._ready and self._ready[0] not in self.spans:
            heappop(self._ready)
        while self._waiting and not self._exists(self._waiting[0][1], self._waiting[0][0]):
            heappop(self._waiting)


class KeyOrder:
    """At most one message of each key is leased or waits for redelivery. The others are blocked behind it."""

    __slots__ = ("blocked", "hashes", "waiting")

    def __init__(self) -> None:
        #: Offset → key hash, of keyed messages that are leased or wait for redelivery.
        self.hashes: dict[int, int] = {}
        #: Hash of a busy key → blocked offsets, the oldest first.
        self.waiting: dict[int, deque[int]] = {}
        #: Number of blocked offsets of all keys.
        self.blocked = 0

    def is_busy(self, key_hash: int) -> bool:
        return key_hash in self.waiting

    def occupy(self, offset: int, key_hash: int) -> None:
        """A message is delivered, and no other message of its key is in flight."""
        if key_hash:
            self.hashes[offset] = key_hash
            self.waiting[key_hash] = deque()

    def block(self, offset: int, key_hash: int) -> None:
        """A message is skipped. It waits behind all others of its key."""
        self.waiting[key_hash].append(offset)
        self.blocked += 1

    def release(self, first: int, end: int) -> Iterator[int]:
        """Messages are acked: yield the next offset of each of their keys."""
        for offset in range(first, end) if self.hashes else ():
            key_hash = self.hashes.pop(offset, 0)
            if not key_hash:
                continue
            behind = self.waiting[key_hash]
            if not behind:
                del self.waiting[key_hash]
                continue
            following = behind.popleft()
            self.blocked -= 1
            self.hashes[following] = key_hash
            yield following

    def remove_below(self, floor: int) -> None:
        """Remove all blocked offsets below `floor`. Scans all busy keys."""
        for behind in self.waiting.values():
            while behind and behind[0] < floor:
                behind.popleft()
                self.blocked -= 1


class SharedState:
    __slots__ = (
        "acked_ranges",
        "keys",
        "leased",
        "leases",
        "leases_due",
        "members",
        "members_due",
        "next_offset",
        "policy",
        "redeliveries",
    )

    def __init__(self, policy: Sharing, position: int) -> None:
        self.policy = policy
        self.members: dict[str, Member] = {}
        self.members_due: DueQueue[str] = DueQueue()
        self._reset(position)

    def _reset(self, position: int) -> None:
        #: The first offset that was never leased, blocked or skipped.
        self.next_offset = position
        self.acked_ranges = AckedRanges(position)
        #: By token.
        self.leases: dict[int, Lease] = {}
        #: Number of messages in all leases.
        self.leased = 0
        self.leases_due: DueQueue[int] = DueQueue()
        self.redeliveries = Redeliveries()
        self.keys = KeyOrder()

    def floor(self) -> int:
        """Return the offset below which everything is acked."""
        return self.acked_ranges.floor

    @property
    def member_idle_ms(self) -> int:
        return max(MEMBER_IDLE_MS_MIN, MEMBER_IDLE_LEASES * self.policy.lease_ms)

    def next_ms(self) -> int | None:
        """Return when to check the subscription again. The time may be too early."""
        times = (self.leases_due.next_ms(), self.members_due.next_ms(), self.redeliveries.next_ms())
        return min((time for time in times if time is not None), default=None)

    def seek(self, position: int) -> None:
        """Discard all leases and acks. Members keep their numbers, so that a late retry of a take finds nothing."""
        for member in self.members.values():
            member.tokens.clear()
        self._reset(position)

    # Members and leases.

    def update_member(self, name: str, number: int, time_ms: int) -> Member:
        """Record that a member got a lease. The first lease creates the member."""
        member = self.members.get(name)
        if member is None:
            member = self.members[name] = Member(number, time_ms)
            self.members_due.add(time_ms + self.member_idle_ms, name)
        member.last_number = max(number, member.last_number)
        member.active_ms = time_ms
        return member

    def add_lease(self, lease: Lease) -> None:
        """Add a lease. Its member must exist."""
        self.leases[lease.token] = lease
        self.leased += lease.spans.count
        self.members[lease.member].tokens[lease.number] = lease.token
        self.leases_due.add(lease.until_ms, lease.token)

    def remove_from_lease(self, token: int, first: int, end: int, time_ms: int) -> list[Span]:
        """Remove a range from a lease and return what it contained. The lease ends when it is empty."""
        lease = self.leases[token]
        count = lease.spans.count
        found = lease.spans.remove(first, end)
        self.leased -= count - lease.spans.count
        if not lease.spans.count:
            self._end_lease(lease, time_ms)
        return found

    def _end_lease(self, lease: Lease, time_ms: int) -> None:
        del self.leases[lease.token]
        member = self.members[lease.member]
        del member.tokens[lease.number]
        member.active_ms = max(time_ms, member.active_ms)
        self.leases_due.discard_others(self.leases, len(self.leases))

    def return_lease(self, token: int, time_ms: int) -> None:
        """End a lease. Its messages can be delivered again immediately."""
        lease = self.leases[token]
        self.leased -= lease.spans.count
        for first, end, tries in lease.spans:
            self.redeliveries.add(first, end, tries, 0)
        self._end_lease(lease, time_ms)

    def remove_member(self, name: str, time_ms: int) -> None:
        for token in sorted(self.members[name].tokens.values()):
            self.return_lease(token, time_ms)
        del self.members[name]
        self.members_due.discard_others(self.members, len(self.members))

    # Messages.

    def ack(self, first: int, end: int) -> None:
        self.acked_ranges.add(first, end)
        self._free_keys(first, end)

    def _free_keys(self, first: int, end: int) -> None:
        """Make the next messages of the keys of a range available to takes."""
        for offset in self.keys.release(first, end):
            self.redeliveries.add(offset, offset + 1, 0, 0)

    def drop_below(self, floor: int) -> int:
        """Discard all messages below `floor`, leased or not. Return how many were not acked. Scans all leases."""
        if floor <= self.acked_ranges.floor:
            return 0
        self.keys.remove_below(floor)
        gone = self.redeliveries.remove_below(floor)
        for token in list(self.leases):
            gone += [(first, end) for first, end, _ in self.remove_from_lease(token, self.acked_ranges.floor, floor, 0)]
        for first, end in gone:
            self._free_keys(first, end)
        self.next_offset = max(self.next_offset, floor)
        return self.acked_ranges.advance(floor)
