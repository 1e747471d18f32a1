"""Lists of topics, subscriptions, sessions and registry entries, one page at a time."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import LIST_PAGE_MAX


def _page(names: Iterable[str], after: str, limit: int) -> tuple[list[str], str]:
    """Return a page of the names after `after`, and the `after` of the next page ("" = this was the last page)."""
    limit = max(1, min(limit, LIST_PAGE_MAX))
    page = nsmallest(limit, (name for name in names if name > after))
    return page, page[-1] if len(page) == limit else ""


def list_topics(state: State, command: commands.Topics) -> replies.Reply:
    names, after = _page(state.topics, command.after, command.limit)
    return replies.TopicsReply(tuple(_topic_info(state.topics[name]) for name in names), after)


def _topic_info(topic: Topic) -> replies.TopicInfo:
    return replies.TopicInfo(
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


def list_subscriptions(state: State, command: commands.Subscriptions) -> replies.Reply:
    topic = state.topics.get(command.topic)
    if topic is None:
        return replies.Refusal("TOPIC_UNKNOWN", f"there is no topic '{command.topic}'")
    names, after = _page(topic.subscriptions, command.after, command.limit)
    found = [topic.subscriptions[name] for name in names]
    return replies.SubscriptionsReply(tuple(_subscription_info(topic, entry) for entry in found), after)


def _subscription_info(topic: Topic, entry: Subscription) -> replies.SubscriptionInfo:
    shared = entry.shared
    owner = entry.pattern or entry
    return replies.SubscriptionInfo(
        topic.name,
        entry.subscriber.partition(commands.BY_PATTERN)[0],
        topic.next_offset - _lag(topic, entry),
        topic.next_offset,
        owner.epoch,
        entry.pattern.pattern if entry.pattern is not None else "",
        shared.policy if shared is not None else None,
        shared.acked_ranges.count if shared is not None else 0,
        shared.leased if shared is not None else 0,
        len(shared.members) if shared is not None else 0,
        entry.dropped,
    )


def _lag(topic: Topic, entry: Subscription) -> int:
    """Return the number of unacked messages. Expired messages that are deleted do not count."""
    return topic.next_offset - max(entry.acked, topic.index.first)


def list_patterns(state: State, command: commands.Patterns) -> replies.Reply:
    by_name = {commands.BY_PATTERN.join(key): entry for key, entry in state.patterns.items()}
    names, after = _page(by_name, command.after, command.limit)
    return replies.PatternsReply(tuple(_pattern_info(state, by_name[name]) for name in names), after)


def _pattern_info(state: State, entry: PatternSubscription) -> replies.PatternInfo:
    lag = sum(_lag(state.topics_by_id[topic_id], entry.topics[topic_id]) for topic_id in entry.pending)
    return replies.PatternInfo(entry.pattern, entry.subscriber, len(entry.topics), entry.epoch, lag)


def list_sessions(state: State, command: commands.Sessions) -> replies.Reply:
    names, after = _page(state.sessions, command.after, command.limit)
    found = [state.sessions[name] for name in names]
    infos = tuple(
        replies.SessionInfo(
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
    return replies.SessionsReply(infos, after)


def list_registry(state: State, command: commands.RegistryList) -> replies.Reply:
    entries = state.registry.get(command.namespace, {})
    matching = (key for key in entries if key.startswith(command.prefix))
    keys, after = _page(matching, command.after, command.limit)
    return replies.RegistryListReply(tuple(entries[key] for key in keys), after)
