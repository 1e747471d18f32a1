"""Commands that read, and acks: what they return. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

import msgspec

from oncemq.engine import commands as co
from oncemq.engine import events as ev
from oncemq.engine import replies as re
from oncemq.engine.index import Slice
from oncemq.engine.operations import owned, refuse_offset
from oncemq.engine.state import State
from oncemq.engine.topic import Topic
from oncemq.limits import GET_BATCHES_MAX, LIST_PAGE_MAX, Limits


class Reading(msgspec.Struct, frozen=True):
    """A reply whose batches the shell still has to read."""

    reply: re.Reply
    event: ev.Event | None = None
    slices: tuple[Slice, ...] = ()
    #: Nothing is there yet; the topic to wait for.
    waits_for: int = 0


def decide_ack(state: State, command: co.Ack) -> Reading:
    found = owned(state, command.topic_id, command.subscriber, command.epoch)
    if isinstance(found, re.Refusal):
        return Reading(found)
    topic, subscription = found
    if command.upto > topic.next_offset:
        return Reading(_ack_beyond(topic, command.upto))
    if command.upto <= subscription.acked:
        return Reading(re.AckReply(subscription.acked))
    event = ev.Acked(topic.id, command.subscriber, command.upto)
    return Reading(re.AckReply(command.upto), event)


def _ack_beyond(topic: Topic, upto: int) -> re.Refusal:
    return re.Refusal("OFFSET_OUT_OF_RANGE", f"ack of {upto}; topic '{topic.name}' ends at {topic.next_offset}")


def decide_get(state: State, limits: Limits, command: co.Get) -> Reading:
    found = owned(state, command.topic_id, command.subscriber, command.epoch)
    if isinstance(found, re.Refusal):
        return Reading(found)
    topic, subscription = found
    if command.ack > topic.next_offset:
        return Reading(_ack_beyond(topic, command.ack))
    event = None
    if command.ack > subscription.acked:
        event = ev.Acked(topic.id, command.subscriber, command.ack)
    # The ack is applied before the read: what it lets go may be gone.
    position = max(command.position, command.ack)
    acked = max(command.ack, subscription.acked)
    return _read(limits, topic, position, command.bytes_max, acked, event)


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
    return _read(limits, topic, position, command.bytes_max, topic.index.first, None)


def _read(
    limits: Limits, topic: Topic, position: int, bytes_max: int, acked: int, event: ev.Event | None
) -> Reading:
    refusal = refuse_offset(topic, position)
    if refusal is not None:
        return Reading(refusal, event)
    if position == topic.next_offset:
        reply = re.GetReply(topic.id, position, topic.next_offset, acked)
        return Reading(reply, event, waits_for=topic.id)
    slices = topic.index.slices(position, min(bytes_max, limits.get_bytes_max), GET_BATCHES_MAX)
    next_position = slices[-1].first_offset + slices[-1].count
    reply = re.GetReply(topic.id, next_position, topic.next_offset, acked)
    return Reading(reply, event, tuple(slices))


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
    )


def list_subscriptions(state: State, command: co.Subscriptions) -> re.Reply:
    topic = state.topics.get(command.topic)
    if topic is None:
        return re.Refusal("TOPIC_UNKNOWN", f"there is no topic '{command.topic}'")
    names, after = _page(topic.subscriptions, command.after, command.limit)
    found = [topic.subscriptions[name] for name in names]
    infos = tuple(
        re.SubscriptionInfo(topic.name, entry.subscriber, entry.acked, topic.next_offset, entry.epoch)
        for entry in found
    )
    return re.SubscriptionsReply(infos, after)


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
