"""Commands that read, and acks: what they return. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

import msgspec

from oncemq.engine import commands as co
from oncemq.engine import events as ev
from oncemq.engine import replies as re
from oncemq.engine.index import Slice
from oncemq.engine.patterns import Pattern
from oncemq.engine.state import State
from oncemq.engine.storing import refuse_ack_beyond
from oncemq.engine.subscribing import owned, owned_pattern, refuse_offset
from oncemq.engine.tasks import info
from oncemq.engine.topic import Subscription, Topic
from oncemq.limits import GET_BATCHES_MAX, LIST_PAGE_MAX, Limits


#: So many busy topics share a reply to a get by pattern.
TOPICS_PER_GET = 4


class Reading(msgspec.Struct, frozen=True):
    """A reply whose batches the shell still has to read."""

    reply: re.Reply
    event: ev.Event | None = None
    slices: tuple[Slice, ...] = ()
    #: Of a reply about several topics: how many slices belong to each.
    counts: tuple[int, ...] = ()
    #: Nothing is there yet; the topic to wait for, or the pattern and subscriber.
    waits_for: int | tuple[str, str] = 0


def decide_ack(state: State, command: co.Ack) -> Reading:
    found = owned(state, command.topic_id, command.subscriber, command.epoch)
    if isinstance(found, re.Refusal):
        return Reading(found)
    topic, subscription = found
    if command.upto > topic.next_offset:
        return Reading(refuse_ack_beyond(topic, command.upto))
    if command.upto <= subscription.acked:
        return Reading(re.AckReply(subscription.acked))
    event = ev.Acked(topic.id, command.subscriber, command.upto)
    return Reading(re.AckReply(command.upto), event)


def decide_get(state: State, limits: Limits, command: co.Get) -> Reading:
    found = owned(state, command.topic_id, command.subscriber, command.epoch)
    if isinstance(found, re.Refusal):
        return Reading(found)
    topic, subscription = found
    if command.ack > topic.next_offset:
        return Reading(refuse_ack_beyond(topic, command.ack))
    event = None
    if command.ack > subscription.acked:
        event = ev.Acked(topic.id, command.subscriber, command.ack)
    # The ack is applied before the read: what it lets go may be gone.
    acked = max(command.ack, subscription.acked)
    position = _go_on(topic, subscription, max(command.position, command.ack), acked)
    refusal = refuse_offset(topic, position)
    if refusal is not None:
        return Reading(refusal, event)
    slices, position = topic.index.visible(position, min(command.bytes_max, limits.get_bytes_max), GET_BATCHES_MAX)
    reply = re.GetReply(topic.id, position, topic.next_offset, acked, (), subscription.dropped)
    return Reading(reply, event, tuple(slices), (), 0 if slices else topic.id)


def _go_on(topic: Topic, subscription: Subscription, position: int, acked: int) -> int:
    """What lies before the first stored message has expired, or was dropped: there is nothing to wait for."""
    if position < topic.index.first and (position >= acked or subscription.dropped):
        return topic.index.first
    return position


def decide_get_any(state: State, limits: Limits, command: co.GetAny) -> Reading:
    """Topics are read in turn, the one that has waited longest first, until the reply is large enough."""
    pattern = owned_pattern(state, command.pattern, command.subscriber, command.epoch)
    if isinstance(pattern, re.Refusal):
        return Reading(pattern)
    acks: dict[int, int] = {}
    for topic_id, upto in command.acks:
        topic = state.topics_by_id.get(topic_id)
        if topic is None or topic_id not in pattern.topics:
            # Deleted meanwhile: there is nothing to ack.
            continue
        if upto > topic.next_offset:
            return Reading(refuse_ack_beyond(topic, upto))
        acks[topic_id] = max(upto, acks.get(topic_id, pattern.topics[topic_id].acked))
    event = ev.AckedMany(
        tuple((topic_id, pattern.key, upto) for topic_id, upto in acks.items() if upto > pattern.topics[topic_id].acked)
    )
    parts: list[re.AnyPart] = []
    slices: list[Slice] = []
    counts: list[int] = []
    bytes_left, positions = min(command.bytes_max, limits.get_bytes_max), dict(command.positions)
    topic_bytes_max = bytes_left // TOPICS_PER_GET
    is_all = True
    for topic_id in pattern.behind:
        if bytes_left <= 0 or len(slices) >= GET_BATCHES_MAX:
            is_all = False
            break
        topic, subscription = state.topics_by_id[topic_id], pattern.topics[topic_id]
        acked = max(subscription.acked, acks.get(topic_id, 0))
        position = _go_on(topic, subscription, max(positions.get(topic_id, acked), acked), acked)
        if position >= topic.next_offset:
            continue
        found, following = topic.index.visible(position, topic_bytes_max, GET_BATCHES_MAX - len(slices))
        if not found:
            continue
        is_all = is_all and following == topic.next_offset
        bytes_left -= sum(one.size for one in found)
        parts.append(
            re.AnyPart(topic.name, topic_id, following, topic.next_offset, acked, (), subscription.dropped)
        )
        slices += found
        counts.append(len(found))
    waits_for = (command.pattern, command.subscriber) if not slices else 0
    reply = re.GetAnyReply(tuple(parts), is_all)
    return Reading(reply, event if event.acks else None, tuple(slices), tuple(counts), waits_for)


def find_offset(state: State, command: co.Find) -> re.Reply:
    topic = state.topics.get(command.topic)
    if topic is None:
        return re.Refusal("TOPIC_UNKNOWN", f"there is no topic '{command.topic}'")
    return re.FindReply(topic.id, topic.index.find_time(command.time_ms))


def decide_read(state: State, limits: Limits, command: co.Read) -> Reading:
    topic = state.topics.get(command.topic)
    if topic is None or command.topic_id not in (0, topic.id):
        gone = re.Refusal("TOPIC_GONE", f"topic '{command.topic}' was deleted")
        return Reading(gone if command.topic_id else re.Refusal("TOPIC_UNKNOWN", f"no topic '{command.topic}'"))
    position = command.position
    if position == co.START_NEW:
        position = topic.next_offset
    elif position == co.START_EARLIEST:
        position = topic.index.first
    refusal = refuse_offset(topic, position)
    if refusal is not None:
        return Reading(refusal)
    # Whatever its time to live: a replay sees the same.
    slices = topic.index.slices(position, min(command.bytes_max, limits.get_bytes_max), GET_BATCHES_MAX)
    following = slices[-1].first_offset + slices[-1].count if slices else position
    reply = re.GetReply(topic.id, following, topic.next_offset, topic.index.first)
    return Reading(reply, None, tuple(slices), (), 0 if slices else topic.id)


# Lists.


def _page(names: Iterable[str], after: str, limit: int) -> tuple[list[str], str]:
    """Names after `after`, and the name to go on after ("" = that was all)."""
    limit = max(1, min(limit, LIST_PAGE_MAX))
    page = nsmallest(limit, (name for name in names if name > after))
    return page, page[-1] if len(page) == limit else ""


def list_topics(state: State, command: co.Topics) -> re.Reply:
    names, after = _page(state.topics, command.after, command.limit)
    return re.TopicsReply(tuple(_topic_info(state.topics[name]) for name in names), after)


def _topic_info(topic: Topic) -> re.TopicInfo:
    return re.TopicInfo(
        topic.name,
        topic.id,
        topic.stays,
        topic.index.first,
        topic.next_offset,
        topic.stored_bytes,
        len(topic.index),
        len(topic.subscriptions),
        topic.retain_ms,
        topic.retain_bytes,
        topic.quota_bytes,
        topic.overflow,
        sum(batch.count for batch in topic.delayed.values()),
    )


def list_subscriptions(state: State, command: co.Subscriptions) -> re.Reply:
    topic = state.topics.get(command.topic)
    if topic is None:
        return re.Refusal("TOPIC_UNKNOWN", f"there is no topic '{command.topic}'")
    names, after = _page(topic.subscriptions, command.after, command.limit)
    found = [topic.subscriptions[name] for name in names]
    return re.SubscriptionsReply(tuple(_subscription_info(topic, entry) for entry in found), after)


def _subscription_info(topic: Topic, entry: Subscription) -> re.SubscriptionInfo:
    done, leased, members = info(entry.shared) if entry.shared is not None else (0, 0, 0)
    owner = entry.pattern or entry
    return re.SubscriptionInfo(
        topic.name,
        entry.subscriber.partition(co.BY_PATTERN)[0],
        # What has expired is not behind any more.
        max(entry.acked, min(topic.index.first, topic.next_offset)),
        topic.next_offset,
        owner.epoch,
        entry.pattern.pattern if entry.pattern is not None else "",
        entry.shared.policy if entry.shared is not None else None,
        done,
        leased,
        members,
        entry.dropped,
    )


def list_patterns(state: State, command: co.Patterns) -> re.Reply:
    by_name = {f"{pattern}{co.BY_PATTERN}{subscriber}": entry for (pattern, subscriber), entry in state.patterns.items()}
    names, after = _page(by_name, command.after, command.limit)
    return re.PatternsReply(tuple(_pattern_info(state, by_name[name]) for name in names), after)


def _pattern_info(state: State, entry: Pattern) -> re.PatternInfo:
    lag = sum(
        state.topics_by_id[topic_id].next_offset - subscription.acked for topic_id, subscription in entry.topics.items()
    )
    return re.PatternInfo(entry.pattern, entry.subscriber, len(entry.topics), entry.epoch, lag)


def list_sessions(state: State, command: co.Sessions) -> re.Reply:
    names, after = _page(state.sessions, command.after, command.limit)
    found = [state.sessions[name] for name in names]
    infos = tuple(
        re.SessionInfo(
            session.name,
            session.epoch,
            session.last_number,
            session.window,
            len(session.verdicts),
            session.anonymous,
            session.active_ms,
        )
        for session in found
    )
    return re.SessionsReply(infos, after)


def list_registry(state: State, command: co.RegistryList) -> re.Reply:
    entries = state.registry.get(command.namespace, {})
    matching = (key for key in entries if key.startswith(command.prefix))
    keys, after = _page(matching, command.after, command.limit)
    return re.RegistryListReply(tuple(entries[key] for key in keys), after)
