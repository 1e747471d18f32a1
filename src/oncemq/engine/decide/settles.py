"""Shared subscriptions: what becomes of a settle, an extend or a leave, and how their events change them.

`decide_…` changes nothing, `apply_…` decides nothing. What a take gets is in takes.py; the state is in
shared_subscription.py, its image in shared_image.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from oncemq.engine import events
from oncemq.engine.decide.takes import Taken, decide_take, key_hashes
from oncemq.engine.snapshot.shared_image import SharedImage, image_of, shared_of
from oncemq.engine.state.batch_index import BatchIndex
from oncemq.engine.state.offset_ranges import Spans, merged
from oncemq.engine.state.shared_subscription import Lease, Shared
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands
from oncemq.protocol.limits import BLOCKED_MAX, LEASE_MS_MAX, RANGES_MAX, Limits
from oncemq.protocol.replies import ExtendReply, Refusal

__all__ = [
    "SharedImage",
    "Taken",
    "apply_extended",
    "apply_leased",
    "apply_leases_expired",
    "apply_members_left",
    "apply_settled",
    "begin_anew",
    "decide_extend",
    "decide_leave",
    "decide_settle",
    "decide_take",
    "drop_below",
    "expire",
    "has_work",
    "image_of",
    "info",
    "need_bytes",
    "next_ms",
    "seek",
    "shared_of",
]

#: What a range takes in the journal at the most.
_RANGE_BYTES = 40
#: Into so many pieces, held and lost, the ranges of a settle may fall.
_PIECES_PER_RANGE_MAX = 8
#: A member's name takes as much in the journal as the tokens of so many leases, at the least.
_TOKENS_PER_NAME = 25


def need_bytes(command: commands.Take | commands.Settle | commands.Extend | commands.Leave) -> int:
    """Journal room for the ranges of a command's event, at the most."""
    if isinstance(command, commands.Take):
        return RANGES_MAX * _RANGE_BYTES
    if isinstance(command, commands.Settle):
        return _pieces_max(command) * _RANGE_BYTES
    return len(command.tokens) * _RANGE_BYTES if isinstance(command, commands.Extend) else 0


def _pieces_max(command: commands.Settle) -> int:
    return min(2 * RANGES_MAX, _PIECES_PER_RANGE_MAX * (len(command.done) + len(command.returned)))


# Deciding.


def decide_settle(
    topic: Topic,
    subscription: Subscription,
    now_ms: int,
    claim: events.AnyClaim | None,
    command: commands.Settle,
    *,
    strict: bool = False,
) -> events.Settled | Refusal:
    """What leases do not hold is lost; if strict, it is a refusal."""
    shared = subscription.shared
    assert shared is not None
    refusal = _refuse_ranges(topic, command)
    if refusal is not None:
        return refusal
    lost: list[tuple[int, int]] = []
    done = [
        (token, first, end - first)
        for token, start, count in command.done
        for first, end in _held(shared, token, start, start + count, lost)
    ]
    returned = [
        (token, first, end - first, now_ms + delay_ms if delay_ms else 0)
        for token, start, count, delay_ms in command.returned
        for first, end in _held(shared, token, start, start + count, lost)
    ]
    if strict and lost:
        text = f"'{command.subscriber}' on '{topic.name}' has no lease on offset {min(lost)[0]} any more"
        return Refusal("LEASE_LOST", text)
    if len(done) + len(returned) + len(lost) > _pieces_max(command):
        return Refusal("MALFORMED", "a settle names the ranges that its leases hold, without what lies between them")
    return events.Settled(claim, topic.id, command.subscriber, tuple(done), tuple(returned), merged(lost))


def _refuse_ranges(topic: Topic, command: commands.Settle) -> Refusal | None:
    ranges = sorted([*command.done, *(entry[:3] for entry in command.returned)])
    if len(ranges) > RANGES_MAX:
        return Refusal("MALFORMED", f"a settle has {RANGES_MAX} ranges at the most")
    if any(count < 1 or first < 0 for _, first, count in ranges):
        return Refusal("MALFORMED", "a range has an offset from 0 on, and 1 message at least")
    end = max((first + count for _, first, count in ranges), default=0)
    if end > topic.next_offset:
        text = f"settle of {end - 1}; topic '{topic.name}' ends at {topic.next_offset}"
        return Refusal("OFFSET_OUT_OF_RANGE", text)
    if any(not 0 <= entry[3] <= LEASE_MS_MAX for entry in command.returned):
        return Refusal("MALFORMED", f"a message is delivered again after 0 to {LEASE_MS_MAX} ms")
    for (token, first, count), (next_token, next_first, _) in pairwise(ranges):
        if token == next_token and first + count > next_first:
            return Refusal("MALFORMED", f"offset {next_first} is settled twice")
    return None


def _held(shared: Shared, token: int, first: int, end: int, lost: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What a lease has of a range, as (first, end); the rest goes to `lost`."""
    lease = shared.leases.get(token)
    held: list[tuple[int, int]] = []
    for held_first, held_end, _ in lease.spans.within(first, end) if lease is not None else ():
        if held_first > first:
            lost.append((first, held_first))
        if held and held[-1][1] == held_first:
            held[-1] = (held[-1][0], held_end)
        else:
            held.append((held_first, held_end))
        first = held_end
    if first < end:
        lost.append((first, end))
    return held


def decide_extend(
    topic: Topic, subscription: Subscription, now_ms: int, command: commands.Extend
) -> tuple[events.Extended | None, ExtendReply] | Refusal:
    shared = subscription.shared
    assert shared is not None
    if len(command.tokens) > RANGES_MAX:
        return Refusal("MALFORMED", f"an extend has {RANGES_MAX} tokens at the most")
    tokens = dict.fromkeys(command.tokens)
    living = tuple(token for token in tokens if token in shared.leases)
    reply = ExtendReply(tuple(token for token in tokens if token not in shared.leases))
    if not living:
        return None, reply
    return events.Extended(topic.id, command.subscriber, living, now_ms + shared.policy.lease_ms), reply


def decide_leave(topic: Topic, subscription: Subscription, command: commands.Leave) -> events.MembersLeft | None:
    """None: it is no member; it left before, or never got anything."""
    shared = subscription.shared
    assert shared is not None
    if command.member not in shared.members:
        return None
    return events.MembersLeft(topic.id, command.subscriber, (command.member,))


def has_work(topic: Topic, shared: Shared, limits: Limits, now_ms: int) -> bool:
    """Whether a take may find something: those that wait should look."""
    if shared.returned.has_ready(now_ms):
        return True
    has_room = shared.leased + shared.returned.count < limits.leased_max and shared.keys.blocked < BLOCKED_MAX
    return has_room and shared.next < topic.next_offset


# What time brings.


def next_ms(shared: Shared) -> int | None:
    """When to call `expire`, or to wake those that wait; may be too early."""
    return shared.next_ms()


def expire(
    topic_id: int, subscriber: str, shared: Shared, now_ms: int, most: int
) -> Iterator[events.LeasesExpired | events.MembersLeft]:
    """At most so many members, and leases that take as much room. Each event must be applied before the next is
    asked for. Nothing may come of it, and yet something be ready that waited: see `has_work`."""
    shared.returned.promote(now_ms)
    tokens = tuple(_leases_over(shared, now_ms, most * _TOKENS_PER_NAME))
    if tokens:
        yield events.LeasesExpired(topic_id, subscriber, tokens)
    members = tuple(_members_idle(shared, now_ms, most))
    if members:
        yield events.MembersLeft(topic_id, subscriber, members)


def _leases_over(shared: Shared, now_ms: int, most: int) -> Iterator[int]:
    for token in shared.leases_due.take(now_ms, most):
        lease = shared.leases.get(token)
        if lease is not None and lease.until_ms <= now_ms:
            yield token
        elif lease is not None:
            shared.leases_due.add(lease.until_ms, token)


def _members_idle(shared: Shared, now_ms: int, most: int) -> Iterator[str]:
    for name in shared.members_due.take(now_ms, most):
        member = shared.members.get(name)
        if member is None:
            continue
        since_ms = now_ms if member.tokens else member.active_ms
        if since_ms + shared.member_idle_ms <= now_ms:
            yield name
        else:
            shared.members_due.add(since_ms + shared.member_idle_ms, name)


# Applying. What returns an offset returns the floor.


def apply_leased(topic: Topic, shared: Shared, time_ms: int, event: events.Leased) -> int:
    ranges = [(first, first + count) for first, count, _ in event.ranges]
    skipped = [(first, first + count) for first, count in event.skipped]
    blocked = [(first, first + count) for first, count in event.blocked]
    was_next = shared.next
    shared.next = max([was_next, *(end for _, end in (*ranges, *skipped, *blocked))])
    for first, count in merged(_below(was_next, [*ranges, *skipped])):
        shared.returned.remove(first, first + count)
    if shared.policy.key_order:
        for first, end in ranges:
            for offset, key_hash in _hashes(topic.index, max(first, was_next), end):
                shared.keys.occupy(offset, key_hash)
        for first, end in blocked:
            for offset, key_hash in _hashes(topic.index, first, end):
                shared.keys.block(offset, key_hash)
    # After the blocked ones: they may be behind one that is skipped, and go out in its place.
    for first, end in skipped:
        shared.finish(first, end)
    if event.token:
        shared.join(event.member, event.number, time_ms)
        spans = Spans((first, first + count, tries) for first, count, tries in event.ranges)
        shared.add_lease(Lease(event.token, event.member, event.number, event.until_ms, spans))
    return shared.floor()


def _below(offset: int, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    return ((first, min(end, offset)) for first, end in ranges if first < offset)


def _hashes(index: BatchIndex, first: int, end: int) -> Iterator[tuple[int, int]]:
    entry = index.find(first)
    while first < end:
        entry_end = min(end, index.ends[entry])
        yield from key_hashes(index, entry, first, entry_end)
        first = entry_end
        entry += 1


def apply_settled(_topic: Topic, shared: Shared, time_ms: int, event: events.Settled) -> int:
    for token, first, count in event.done:
        found = shared.cut(token, first, first + count, time_ms)
        assert sum(span_end - span_first for span_first, span_end, _ in found) == count
        shared.finish(first, first + count)
    for token, first, count, not_before_ms in event.returned:
        for span_first, span_end, tries in shared.cut(token, first, first + count, time_ms):
            shared.returned.add(span_first, span_end, tries, not_before_ms)
    return shared.floor()


def apply_extended(shared: Shared, _time_ms: int, event: events.Extended) -> None:
    for token in event.tokens:
        shared.leases[token].until_ms = event.until_ms


def apply_leases_expired(_topic: Topic, shared: Shared, time_ms: int, event: events.LeasesExpired) -> None:
    for token in event.tokens:
        shared.give_back(token, time_ms)


def apply_members_left(_topic: Topic, shared: Shared, time_ms: int, event: events.MembersLeft) -> None:
    for name in event.members:
        shared.leave(name, time_ms)


def begin_anew(shared: Shared, time_ms: int) -> None:
    """Every lease has its full time."""
    for lease in shared.leases.values():
        lease.until_ms = time_ms + shared.policy.lease_ms


def seek(shared: Shared, position: int) -> None:
    shared.seek(position)


def drop_below(shared: Shared, floor: int) -> int:
    """Returns how many messages are lost by it."""
    return shared.drop_below(floor)


# Listing.


def info(shared: Shared) -> tuple[int, int, int]:
    """Messages above the floor that are done, messages that are out, members."""
    return shared.done.count, shared.leased, len(shared.members)
