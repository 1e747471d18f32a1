"""Decides settles, extends and leaves of shared subscriptions. Takes are in takes.py."""

from __future__ import annotations

from itertools import pairwise

from oncemq.engine import events
from oncemq.engine.decide.decision import Decision
from oncemq.engine.event_bytes import settle_pieces_max
from oncemq.engine.state.offset_ranges import merged
from oncemq.engine.state.shared_subscription import SharedState
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands
from oncemq.protocol.limits import BLOCKED_MAX, LEASE_MS_MAX, RANGES_MAX, Limits
from oncemq.protocol.replies import Done, ExtendReply, Refusal


def decide_settle(
    topic: Topic,
    subscription: Subscription,
    now_ms: int,
    claim: events.AnyClaim | None,
    command: commands.Settle,
    *,
    strict: bool = False,
) -> events.Settled | Refusal:
    """Settle what the leases contain. The rest is reported as lost; if `strict`, it causes a refusal."""
    shared = subscription.shared
    assert shared is not None
    refusal = _refuse_ranges(topic, command)
    if refusal is not None:
        return refusal
    lost: list[tuple[int, int]] = []
    done = [
        (token, first, end - first)
        for token, start, count in command.done
        for first, end in _leased(shared, token, start, start + count, lost)
    ]
    returned = [
        (token, first, end - first, now_ms + delay_ms if delay_ms else 0)
        for token, start, count, delay_ms in command.returned
        for first, end in _leased(shared, token, start, start + count, lost)
    ]
    if strict and lost:
        text = f"the lease of '{command.subscriber}' on offset {min(lost)[0]} of '{topic.name}' has ended"
        return Refusal("LEASE_LOST", text)
    if len(done) + len(returned) + len(lost) > settle_pieces_max(command):
        return Refusal("MALFORMED", "the ranges of a settle must be those of its leases, without the gaps between them")
    return events.Settled(claim, topic.id, command.subscriber, tuple(done), tuple(returned), merged(lost))


def _refuse_ranges(topic: Topic, command: commands.Settle) -> Refusal | None:
    ranges = sorted([*command.done, *(entry[:3] for entry in command.returned)])
    if len(ranges) > RANGES_MAX:
        return Refusal("MALFORMED", f"a settle has at most {RANGES_MAX} ranges")
    if any(count < 1 or first < 0 for _, first, count in ranges):
        return Refusal("MALFORMED", "a range needs an offset of at least 0 and a count of at least 1")
    end = max((first + count for _, first, count in ranges), default=0)
    if end > topic.next_offset:
        text = f"settle of offset {end - 1}; topic '{topic.name}' ends at {topic.next_offset}"
        return Refusal("OFFSET_OUT_OF_RANGE", text)
    if any(not 0 <= entry[3] <= LEASE_MS_MAX for entry in command.returned):
        return Refusal("MALFORMED", f"the delay before a redelivery must be 0 to {LEASE_MS_MAX} ms")
    for (token, first, count), (next_token, next_first, _) in pairwise(ranges):
        if token == next_token and first + count > next_first:
            return Refusal("MALFORMED", f"offset {next_first} is settled twice")
    return None


def _leased(
    shared: SharedState, token: int, first: int, end: int, lost: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the parts of a range that a lease contains, as (first, end); append the rest to `lost`."""
    lease = shared.leases.get(token)
    leased: list[tuple[int, int]] = []
    for leased_first, leased_end, _ in lease.spans.within(first, end) if lease is not None else ():
        if leased_first > first:
            lost.append((first, leased_first))
        if leased and leased[-1][1] == leased_first:
            leased[-1] = (leased[-1][0], leased_end)
        else:
            leased.append((leased_first, leased_end))
        first = leased_end
    if first < end:
        lost.append((first, end))
    return leased


def decide_extend(
    _state: State, _limits: Limits, now_ms: int, topic: Topic, subscription: Subscription, command: commands.Extend
) -> Decision:
    shared = subscription.shared
    assert shared is not None
    if len(command.tokens) > RANGES_MAX:
        return Decision(Refusal("MALFORMED", f"an extend has at most {RANGES_MAX} tokens"))
    tokens = dict.fromkeys(command.tokens)
    active = tuple(token for token in tokens if token in shared.leases)
    reply = ExtendReply(tuple(token for token in tokens if token not in shared.leases))
    if not active:
        return Decision(reply)
    return Decision(reply, events.Extended(topic.id, command.subscriber, active, now_ms + shared.policy.lease_ms))


def decide_leave(
    _state: State, _limits: Limits, _now_ms: int, topic: Topic, subscription: Subscription, command: commands.Leave
) -> Decision:
    """Remove a member. A member that has left, or that never got a message, is not an error."""
    shared = subscription.shared
    assert shared is not None
    if command.member not in shared.members:
        return Decision(Done())
    return Decision(Done(), events.MembersLeft(topic.id, command.subscriber, (command.member,)))


def has_work(topic: Topic, shared: SharedState, limits: Limits, now_ms: int) -> bool:
    """Return whether a take may find messages, so that waiting takes should try again."""
    if shared.redeliveries.has_ready(now_ms):
        return True
    if shared.next_offset >= topic.next_offset or shared.keys.blocked >= BLOCKED_MAX:
        return False
    return shared.leased + shared.redeliveries.count < limits.leased_max
