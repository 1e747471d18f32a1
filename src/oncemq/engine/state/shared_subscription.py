"""A shared subscription: which messages are with whom, which go out again, which wait for another of their key.

    never handed out ──► leased ──► done
      │      from `next`   ▲  │
      │ key is busy        │  │ given back, lease over, member gone
      ▼                    │  ▼
    blocked ──────────► returned
            key is free

Every offset from the floor up to `next` is in one of these places. Changed by settles.py alone; knows neither
payloads nor the time. Costs are per range; with order per key, O(1) for each message that has a key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from oncemq.engine.state.offset_ranges import DoneRanges, Span, Spans
from oncemq.engine.state.schedule import DueList
from oncemq.protocol.commands import Sharing

#: A member that has had nothing for so many leases' time, and at least so long, leaves.
MEMBER_IDLE_LEASES = 10
MEMBER_IDLE_MS_MIN = 600_000


class Lease:
    """What one take got, as far as it is not settled: never empty."""

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
        #: Of its takes that got something.
        self.last_number = last_number
        #: When it got a lease or had none left, whichever came last.
        self.active_ms = active_ms
        #: Take's number → token of its lease.
        self.tokens: dict[int, int] = {}


class Returned:
    """Ranges that are to be delivered: again, or at last. A range begins where no other does."""

    __slots__ = ("_ready", "_waiting", "count", "spans")

    def __init__(self) -> None:
        #: First offset → (end, tries so far, not before this time)
        self.spans: dict[int, tuple[int, int, int]] = {}
        #: Messages in all of them.
        self.count = 0
        # Heaps over the above, by first offset and by time. They may name what is gone.
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
        """Take out a range, which begins where one of ours does and has no gaps."""
        while first < end:
            span_end, tries, not_before_ms = self.spans.pop(first)
            self.count -= span_end - first
            if span_end > end:
                self.add(end, span_end, tries, not_before_ms)
            first = span_end
        self._forget()

    def remove_below(self, floor: int) -> list[tuple[int, int]]:
        """Take out every offset below; returns them as (first, end). Looks at every range."""
        low = [(first, min(floor, span[0])) for first, span in self.spans.items() if first < floor]
        for first, end in low:
            self.remove(first, end)
        return low

    def promote(self, now_ms: int) -> None:
        """What has waited long enough is ready. Changes nothing that is recorded."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            not_before_ms, first = heappop(self._waiting)
            if self._is_there(first, not_before_ms):
                heappush(self._ready, first)

    def ready(self, now_ms: int) -> Iterator[Span]:
        """What may be delivered, the oldest first, without taking it out: a walk down the heap."""
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
        """When something that waits will be ready; may be too early."""
        return self._waiting[0][0] if self._waiting else None

    def _is_there(self, first: int, not_before_ms: int) -> bool:
        span = self.spans.get(first)
        return span is not None and span[2] == not_before_ms

    def _forget(self) -> None:
        """Let go of names of what is gone, where they lie on top."""
        while self._ready and self._ready[0] not in self.spans:
            heappop(self._ready)
        while self._waiting and not self._is_there(self._waiting[0][1], self._waiting[0][0]):
            heappop(self._waiting)


class KeyOrder:
    """Of messages with the same key only one is out, leased or returned. The others are blocked behind it."""

    __slots__ = ("blocked", "hashes", "waiting")

    def __init__(self) -> None:
        #: Offset → key hash, of what is out and has a key.
        self.hashes: dict[int, int] = {}
        #: Hash of a busy key → offsets that are blocked, the oldest first.
        self.waiting: dict[int, deque[int]] = {}
        #: Offsets that are blocked, on all keys.
        self.blocked = 0

    def is_busy(self, key_hash: int) -> bool:
        return key_hash in self.waiting

    def occupy(self, offset: int, key_hash: int) -> None:
        """A message goes out; none of its key was."""
        if key_hash:
            self.hashes[offset] = key_hash
            self.waiting[key_hash] = deque()

    def block(self, offset: int, key_hash: int) -> None:
        """A message is passed over, behind all others of its key."""
        self.waiting[key_hash].append(offset)
        self.blocked += 1

    def release(self, first: int, end: int) -> Iterator[int]:
        """Messages are done: yields the offsets that go out in their place."""
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

    def forget_below(self, floor: int) -> None:
        """Nothing below is blocked any more. Looks at every busy key."""
        for behind in self.waiting.values():
            while behind and behind[0] < floor:
                behind.popleft()
                self.blocked -= 1


class Shared:
    __slots__ = (
        "done",
        "keys",
        "leased",
        "leases",
        "leases_due",
        "members",
        "members_due",
        "next",
        "policy",
        "returned",
    )

    def __init__(self, policy: Sharing, position: int) -> None:
        self.policy = policy
        self.members: dict[str, Member] = {}
        self.members_due: DueList[str] = DueList()
        self._begin(position)

    def _begin(self, position: int) -> None:
        #: The first offset that was never handed out, blocked or skipped.
        self.next = position
        self.done = DoneRanges(position)
        #: By token.
        self.leases: dict[int, Lease] = {}
        #: Messages in all of them.
        self.leased = 0
        self.leases_due: DueList[int] = DueList()
        self.returned = Returned()
        self.keys = KeyOrder()

    def floor(self) -> int:
        """Everything below is done."""
        return self.done.floor

    @property
    def member_idle_ms(self) -> int:
        return max(MEMBER_IDLE_MS_MIN, MEMBER_IDLE_LEASES * self.policy.lease_ms)

    def next_ms(self) -> int | None:
        """When to look at it again; may be too early."""
        times = (self.leases_due.next_ms(), self.members_due.next_ms(), self.returned.next_ms())
        return min((time for time in times if time is not None), default=None)

    def seek(self, position: int) -> None:
        """Forget what is out and what is done. Members keep their numbers: a late repetition finds nothing."""
        for member in self.members.values():
            member.tokens.clear()
        self._begin(position)

    # Members and leases.

    def join(self, name: str, number: int, time_ms: int) -> Member:
        """A member, which is made with its first lease."""
        member = self.members.get(name)
        if member is None:
            member = self.members[name] = Member(number, time_ms)
            self.members_due.add(time_ms + self.member_idle_ms, name)
        member.last_number = max(number, member.last_number)
        member.active_ms = time_ms
        return member

    def add_lease(self, lease: Lease) -> None:
        """Of a member that is there."""
        self.leases[lease.token] = lease
        self.leased += lease.spans.count
        self.members[lease.member].tokens[lease.number] = lease.token
        self.leases_due.add(lease.until_ms, lease.token)

    def cut(self, token: int, first: int, end: int, time_ms: int) -> list[Span]:
        """Take a range out of a lease, which ends with its last message."""
        lease = self.leases[token]
        count = lease.spans.count
        found = lease.spans.cut(first, end)
        self.leased -= count - lease.spans.count
        if not lease.spans.count:
            self._end_lease(lease, time_ms)
        return found

    def _end_lease(self, lease: Lease, time_ms: int) -> None:
        del self.leases[lease.token]
        member = self.members[lease.member]
        del member.tokens[lease.number]
        member.active_ms = max(time_ms, member.active_ms)
        self.leases_due.forget_others(self.leases, len(self.leases))

    def give_back(self, token: int, time_ms: int) -> None:
        """A lease is over: what it holds may be delivered again at once."""
        lease = self.leases[token]
        self.leased -= lease.spans.count
        for first, end, tries in lease.spans:
            self.returned.add(first, end, tries, 0)
        self._end_lease(lease, time_ms)

    def leave(self, name: str, time_ms: int) -> None:
        for token in sorted(self.members[name].tokens.values()):
            self.give_back(token, time_ms)
        del self.members[name]
        self.members_due.forget_others(self.members, len(self.members))

    # Messages.

    def finish(self, first: int, end: int) -> None:
        """A range is done."""
        self.done.add(first, end)
        self._free_keys(first, end)

    def _free_keys(self, first: int, end: int) -> None:
        """The next messages of these keys go out, as soon as somebody takes them."""
        for offset in self.keys.release(first, end):
            self.returned.add(offset, offset + 1, 0, 0)

    def drop_below(self, floor: int) -> int:
        """Everything below is gone, whoever has it. Returns how many messages were not done. Looks at every lease."""
        if floor <= self.done.floor:
            return 0
        self.keys.forget_below(floor)
        gone = self.returned.remove_below(floor)
        for token in list(self.leases):
            gone += [(first, end) for first, end, _ in self.cut(token, self.done.floor, floor, 0)]
        for first, end in gone:
            self._free_keys(first, end)
        self.next = max(self.next, floor)
        return self.done.advance(floor)
