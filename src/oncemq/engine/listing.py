"""Lists of what there is, page by page. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from oncemq.engine import commands as co
from oncemq.engine import replies as re
from oncemq.engine.patterns import Pattern
from oncemq.engine.state import State
from oncemq.engine.tasks import info
from oncemq.engine.topic import Subscription, Topic
from oncemq.limits import LIST_PAGE_MAX


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
        topic.next_offset - _lag(topic, entry),
        topic.next_offset,
        owner.epoch,
        entry.pattern.pattern if entry.pattern is not None else "",
        entry.shared.policy if entry.shared is not None else None,
        done,
        leased,
        members,
        entry.dropped,
    )


def _lag(topic: Topic, entry: Subscription) -> int:
    """What has expired and is gone is not to be done any more."""
    return topic.next_offset - max(entry.acked, topic.index.first)


def list_patterns(state: State, command: co.Patterns) -> re.Reply:
    by_name = {co.BY_PATTERN.join(key): entry for key, entry in state.patterns.items()}
    names, after = _page(by_name, command.after, command.limit)
    return re.PatternsReply(tuple(_pattern_info(state, by_name[name]) for name in names), after)


def _pattern_info(state: State, entry: Pattern) -> re.PatternInfo:
    lag = sum(_lag(state.topics_by_id[topic_id], entry.topics[topic_id]) for topic_id in entry.behind)
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
