"""Decides reads and acks."""

from __future__ import annotations

from collections.abc import Iterable

from oncemq.engine import events
from oncemq.engine.decide.decision import Decision
from oncemq.engine.decide.subscriptions.ownership import find_exclusive, find_owned_pattern
from oncemq.engine.decide.subscriptions.positions import refuse_ack_beyond, refuse_offset, start_of
from oncemq.engine.state.batch_index import Slice
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import GET_BATCHES_MAX, MEASURE_BATCHES_MAX, MEASURE_PARTS_MAX, Limits

#: Number of busy topics that share a reply to a pattern get.
TOPICS_PER_GET = 4


def decide_ack(state: State, command: commands.Ack) -> Decision:
    found = find_exclusive(state, command.topic_id, command.subscriber, command.epoch)
    if isinstance(found, replies.Refusal):
        return Decision(found)
    topic, subscription = found
    if command.upto > topic.next_offset:
        return Decision(refuse_ack_beyond(topic, command.upto))
    if command.upto <= subscription.acked:
        return Decision(replies.AckReply(subscription.acked))
    event = events.Acked(topic.id, command.subscriber, command.upto)
    return Decision(replies.AckReply(command.upto), event)


def decide_get(state: State, limits: Limits, command: commands.Get) -> Decision:
    found = find_exclusive(state, command.topic_id, command.subscriber, command.epoch)
    if isinstance(found, replies.Refusal):
        return Decision(found)
    topic, subscription = found
    if command.ack > topic.next_offset:
        return Decision(refuse_ack_beyond(topic, command.ack))
    event = None
    if command.ack > subscription.acked:
        event = events.Acked(topic.id, command.subscriber, command.ack)
    # The ack is applied before the read: the batches below it may be deleted.
    acked = max(command.ack, subscription.acked)
    position = _skip_deleted(topic, subscription, max(command.position, command.ack), acked)
    refusal = refuse_offset(topic, position)
    if refusal is not None:
        return Decision(refusal, event)
    slices, following = topic.index.visible(position, _bytes_max(command, limits), GET_BATCHES_MAX)
    waits_for = 0 if slices else topic.id
    if slices and _is_too_large(slices[0], command):
        slices, following = [], slices[0].first_offset
    reply = replies.GetReply(topic.id, following, topic.next_offset, acked, (), subscription.dropped)
    return Decision(reply, event, tuple(slices), (), waits_for)


def _bytes_max(command: commands.Get | commands.Read, limits: Limits) -> int:
    return min(abs(command.bytes_max), limits.get_bytes_max)


def _is_too_large(first: Slice, command: commands.Get | commands.Read) -> bool:
    """A negative limit also holds for the first batch."""
    return command.bytes_max < 0 and first.size > -command.bytes_max


def _skip_deleted(topic: Topic, subscription: Subscription, position: int, acked: int) -> int:
    """Skip messages before the first stored one if they have expired or were dropped by a quota."""
    if position < topic.index.first and (position >= acked or subscription.dropped):
        return topic.index.first
    return position


def decide_get_any(state: State, limits: Limits, command: commands.GetAny) -> Decision:
    pattern = find_owned_pattern(state, command.pattern, command.subscriber, command.epoch)
    if isinstance(pattern, replies.Refusal):
        return Decision(pattern)
    acks = _rising_acks(state, pattern, command.acks)
    if isinstance(acks, replies.Refusal):
        return Decision(acks)
    event = events.AckedMany(tuple((topic_id, pattern.key, upto) for topic_id, upto in acks.items())) if acks else None
    if command.bytes_max <= 0:
        return Decision(replies.GetAnyReply((), False), event)
    found = _PatternRead(min(command.bytes_max, limits.get_bytes_max))
    found.read(state, pattern, dict(command.positions), acks)
    waits_for = 0 if found.slices else (command.pattern, command.subscriber)
    reply = replies.GetAnyReply(tuple(found.parts), found.is_all)
    return Decision(reply, event, tuple(found.slices), tuple(found.counts), waits_for)


def _rising_acks(
    state: State, pattern: PatternSubscription, acks: Iterable[tuple[int, int]]
) -> dict[int, int] | replies.Refusal:
    """Return topic id → position of the acks that raise a position."""
    rising: dict[int, int] = {}
    for topic_id, upto in acks:
        subscription = pattern.topics.get(topic_id)
        if subscription is None:
            # The topic was deleted: there is nothing to ack.
            continue
        topic = state.topics_by_id[topic_id]
        if upto > topic.next_offset:
            return refuse_ack_beyond(topic, upto)
        if upto > max(subscription.acked, rising.get(topic_id, 0)):
            rising[topic_id] = upto
    return rising


class _PatternRead:
    """Reads the topics of a pattern subscription, the longest waiting first, until the reply is large enough."""

    def __init__(self, bytes_max: int) -> None:
        self.parts: list[replies.AnyPart] = []
        self.slices: list[Slice] = []
        #: Number of slices of each part.
        self.counts: list[int] = []
        self.is_all = True
        self._bytes_left = bytes_max
        self._topic_bytes_max = bytes_max // TOPICS_PER_GET

    def read(self, state: State, pattern: PatternSubscription, positions: dict[int, int], acks: dict[int, int]) -> None:
        for topic_id in pattern.pending:
            if self._bytes_left <= 0 or len(self.slices) >= GET_BATCHES_MAX:
                self.is_all = False
                return
            topic, subscription = state.topics_by_id[topic_id], pattern.topics[topic_id]
            acked = acks.get(topic_id, subscription.acked)
            position = _skip_deleted(topic, subscription, max(positions.get(topic_id, acked), acked), acked)
            if position < topic.next_offset:
                self._read_topic(topic, subscription, position, acked)

    def _read_topic(self, topic: Topic, subscription: Subscription, position: int, acked: int) -> None:
        slices_max = GET_BATCHES_MAX - len(self.slices)
        found, following = topic.index.visible(position, self._topic_bytes_max, slices_max)
        if not found:
            return
        end, dropped = topic.next_offset, subscription.dropped
        self.parts.append(replies.AnyPart(topic.name, topic.id, following, end, acked, (), dropped))
        self.slices += found
        self.counts.append(len(found))
        self.is_all = self.is_all and following == end
        self._bytes_left -= sum(entry.size for entry in found)


def find_offset(state: State, command: commands.Find) -> replies.Reply:
    topic = state.topics.get(command.topic)
    if topic is None:
        return replies.Refusal("TOPIC_UNKNOWN", f"there is no topic '{command.topic}'")
    return replies.FindReply(topic.id, topic.index.find_time(command.time_ms))


def measure(state: State, command: commands.Measure) -> replies.Reply:
    topic = _find_topic(state, command)
    if isinstance(topic, replies.Refusal):
        return topic
    if command.part_bytes < 0:
        return replies.Refusal("MALFORMED", "the size of a part is negative")
    index = topic.index
    found = index.measure(command.start, command.stop, MEASURE_BATCHES_MAX)
    parts = found.divide(command.part_bytes, MEASURE_PARTS_MAX) if command.part_bytes else ()
    if len(parts) == MEASURE_PARTS_MAX:
        size, stop = sum(part for _, part in parts), parts[-1][0]
    else:
        size, stop = found.bytes, found.stop
    return replies.MeasureReply(topic.id, stop, size, found.time_ms, parts)


def _find_topic(state: State, command: commands.Read | commands.Measure) -> Topic | replies.Refusal:
    """The topic of a command that may state the id that the topic must have."""
    topic = state.topics.get(command.topic)
    if topic is not None and command.topic_id in (0, topic.id):
        return topic
    if command.topic_id:
        return replies.Refusal("TOPIC_GONE", f"topic '{command.topic}' was deleted")
    return replies.Refusal("TOPIC_UNKNOWN", f"there is no topic '{command.topic}'")


def decide_read(state: State, limits: Limits, command: commands.Read) -> Decision:
    topic = _find_topic(state, command)
    if isinstance(topic, replies.Refusal):
        return Decision(topic)
    position = start_of(topic, command.position)
    if isinstance(position, replies.Refusal):
        return Decision(position)
    # A read ignores the time to live, so that every replay returns the same messages.
    slices = topic.index.slices(position, _bytes_max(command, limits), GET_BATCHES_MAX)
    waits_for = 0 if slices else topic.id
    if slices and _is_too_large(slices[0], command):
        slices = []
    following = slices[-1].first_offset + slices[-1].count if slices else position
    reply = replies.GetReply(topic.id, following, topic.next_offset, topic.index.first)
    return Decision(reply, None, tuple(slices), (), waits_for)
