"""Lists of topics, subscriptions, sessions and registry entries, one page at a time, and a writer's commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from itertools import takewhile
from typing import TypeVar

from oncemq.engine.state.key_table import KeyEntry
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.session import Session
from oncemq.engine.state.sorted_names import SortedNames
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import LIST_PAGE_BYTES_MAX, LIST_PAGE_MAX

#: Of an entry without its names, approximately.
_ENTRY_BYTES = 48


_Info = TypeVar("_Info")


def _page(
    names: Iterable[str], limit: int, info_of: Callable[[str], _Info], size_of: Callable[[_Info], int]
) -> tuple[tuple[_Info, ...], str]:
    """Return a page of entries, and the `after` of the next page ("" = this was the last page).

    A page has at least one entry, at most `limit`, and about LIST_PAGE_BYTES_MAX."""
    limit = max(1, min(limit, LIST_PAGE_MAX))
    page: list[_Info] = []
    left_bytes = LIST_PAGE_BYTES_MAX
    for name in names:
        info = info_of(name)
        page.append(info)
        left_bytes -= size_of(info)
        if len(page) == limit or left_bytes <= 0:
            return tuple(page), name
    return tuple(page), ""


def describe_writer(state: State, command: commands.Writer) -> replies.Reply:
    entry = state.writers.get(command.writer)
    return replies.WriterReply(-1) if entry is None else replies.WriterReply(entry.batch, entry.commits)


def list_topics(state: State, command: commands.Topics) -> replies.Reply:
    names = state.topic_names = state.topic_names or SortedNames(state.topics)
    return replies.TopicsReply(
        *_page(
            names.after(command.after),
            command.limit,
            lambda name: _topic_info(state.topics[name]),
            lambda info: _ENTRY_BYTES + len(info.name),
        )
    )


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
        topic.delayed_count,
        len(topic.schema.versions) if topic.schema is not None else 0,
    )


def list_subscriptions(state: State, command: commands.Subscriptions) -> replies.Reply:
    topic = state.topics.get(command.topic)
    if topic is None:
        return replies.Refusal("TOPIC_UNKNOWN", f"there is no topic '{command.topic}'")
    names = topic.subscriber_names = topic.subscriber_names or SortedNames(topic.subscriptions)
    return replies.SubscriptionsReply(
        *_page(
            names.after(command.after),
            command.limit,
            lambda name: _subscription_info(topic, topic.subscriptions[name]),
            lambda info: _ENTRY_BYTES + len(info.topic) + len(info.subscriber) + len(info.pattern),
        )
    )


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
        owner.sought_epoch > 0,
        entry.acked,
    )


def _lag(topic: Topic, entry: Subscription) -> int:
    """Return the number of unacked messages. Expired messages that are deleted do not count."""
    return topic.next_offset - max(entry.acked, topic.index.first)


def list_patterns(state: State, command: commands.Patterns) -> replies.Reply:
    by_name = {commands.BY_PATTERN.join(key): entry for key, entry in state.patterns.items()}
    return replies.PatternsReply(
        *_page(
            sorted(name for name in by_name if name > command.after),
            command.limit,
            lambda name: _pattern_info(state, by_name[name]),
            # The lag is a sum over topics: they limit the page, too.
            lambda info: _ENTRY_BYTES + len(info.pattern) + len(info.subscriber) + _ENTRY_BYTES * info.topics,
        )
    )


def _pattern_info(state: State, entry: PatternSubscription) -> replies.PatternInfo:
    lag = sum(_lag(state.topics_by_id[topic_id], entry.topics[topic_id]) for topic_id in entry.pending)
    return replies.PatternInfo(entry.pattern, entry.subscriber, len(entry.topics), entry.epoch, lag)


def list_sessions(state: State, command: commands.Sessions) -> replies.Reply:
    names = state.session_names = state.session_names or SortedNames(state.sessions)
    return replies.SessionsReply(
        *_page(
            names.after(command.after),
            command.limit,
            lambda name: _session_info(state.sessions[name]),
            lambda info: _ENTRY_BYTES + len(info.name),
        )
    )


def _session_info(session: Session) -> replies.SessionInfo:
    return replies.SessionInfo(
        session.name,
        session.epoch,
        session.last_number,
        session.window,
        len(session.verdicts),
        session.anonymous,
        session.active_ms,
    )


def list_keys(state: State, command: commands.Keys) -> replies.Reply:
    principal = command.principal
    return replies.KeysReply(
        *_page(
            state.keys.names_of(principal).after(command.after),
            command.limit,
            lambda key: _key_info(state.keys.get(principal, key)),
            lambda info: _ENTRY_BYTES + len(info.key),
        )
    )


def _key_info(entry: KeyEntry | None) -> replies.KeyInfo:
    assert entry is not None
    return replies.KeyInfo(entry.key, entry.time_ms)


def list_shares(state: State, command: commands.Shares) -> replies.Reply:
    names: SortedNames
    if command.table == commands.KEYS:
        names = state.keys.principals()
        entries_of: Callable[[str], Sized] = state.keys.of
    elif command.table == commands.REGISTRY:
        names = state.namespaces = state.namespaces or SortedNames(state.registry)
        entries_of = state.registry.__getitem__
    else:
        return replies.Refusal("MALFORMED", f"'{command.table}' is not a table with owners: use keys or registry")
    return replies.SharesReply(
        *_page(
            names.after(command.after),
            command.limit,
            lambda name: replies.ShareInfo(name, len(entries_of(name))),
            lambda info: _ENTRY_BYTES + len(info.owner),
        )
    )


def list_registry(state: State, command: commands.RegistryList) -> replies.Reply:
    entries = state.registry.get(command.namespace)
    if entries is None:
        return replies.RegistryListReply((), "")
    keys = state.registry_keys.get(command.namespace)
    if keys is None:
        keys = state.registry_keys[command.namespace] = SortedNames(entries)
    prefix = command.prefix
    first = keys.after(command.after) if command.after >= prefix else keys.after(prefix, inclusive=True)
    return replies.RegistryListReply(
        *_page(
            takewhile(lambda key: key.startswith(prefix), first),
            command.limit,
            entries.__getitem__,
            lambda entry: _ENTRY_BYTES + len(entry.key) + len(entry.value),
        )
    )
