"""Lists of topics, subscriptions, sessions and registry entries, one page at a time, and a writer's commits.

A caller gets what it may see. Nothing in a page, also not its `after`, shows what it may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from itertools import chain, takewhile
from typing import Any, TypeVar

from oncemq.engine.caller import Caller
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
#: How many entries that the caller does not see one page may pass over.
_HIDDEN_MAX = 2_000
#: An `after` that begins with it is the sealed id of an entry whose name the caller may not see.
_BY_ID = "\0"


_Info = TypeVar("_Info")


def _page(
    names: Iterable[str],
    limit: int,
    info_of: Callable[[str], _Info],
    size_of: Callable[[_Info], int],
    is_visible: Callable[[str], bool] | None = None,
    cursor_of: Callable[[str], str] = str,
) -> tuple[tuple[_Info, ...], str]:
    """Return a page of entries, and the `after` of the next page ("" = this was the last page).

    A page has at most `limit` entries and about LIST_PAGE_BYTES_MAX. It has at least one entry, unless too many in a
    row are not visible: then its `after` is what `cursor_of` makes of the last one."""
    limit = max(1, min(limit, LIST_PAGE_MAX))
    page: list[_Info] = []
    left_bytes = LIST_PAGE_BYTES_MAX
    hidden = 0
    for name in names:
        if is_visible is not None and not is_visible(name):
            hidden += 1
            if hidden >= _HIDDEN_MAX:
                return tuple(page), cursor_of(name)
            continue
        info = info_of(name)
        page.append(info)
        left_bytes -= size_of(info)
        if len(page) == limit or left_bytes <= 0:
            return tuple(page), name
    return tuple(page), ""


def describe_writer(state: State, command: commands.Writer) -> replies.Reply:
    entry = state.writers.get(command.writer)
    return replies.WriterReply(-1) if entry is None else replies.WriterReply(entry.batch, entry.commits)


def list_topics(state: State, command: commands.Topics, caller: Caller | None = None) -> replies.Reply:
    names = state.topic_names = state.topic_names or SortedNames(state.topics)
    after = _name_after(command.after, state.topics_by_id, caller)
    if after is None:
        return _GONE
    return replies.TopicsReply(
        *_page(
            names.after(after),
            command.limit,
            lambda name: _topic_info(state.topics[name]),
            lambda info: _ENTRY_BYTES + len(info.name),
            None if caller is None else caller.sees,
            lambda name: _cursor(state.topics[name].id, caller),
        )
    )


def _cursor(number: int, caller: Caller | None) -> str:
    """Return an `after` that does not show the name of an entry."""
    assert caller is not None
    return _BY_ID + caller.seal(number)


def _name_after(after: str, by_id: Mapping[int, Topic | Session], caller: Caller | None) -> str | None:
    """Return the name that a page begins after. None: what the cursor stands for was deleted."""
    if not after.startswith(_BY_ID) or caller is None:
        return after
    number = caller.unseal(after.removeprefix(_BY_ID))
    found = by_id.get(number) if number is not None else None
    return found.name if found is not None else None


_GONE = replies.NotNow("BUSY", "the list has changed; begin with its first page again")


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


def list_patterns(state: State, command: commands.Patterns, caller: Caller | None = None) -> replies.Reply:
    by_name = {
        commands.BY_PATTERN.join(key): entry
        for key, entry in state.patterns.items()
        if caller is None or caller.sees(key[0]) or state.owners.get(commands.SUBSCRIPTION, *key) == caller.user
    }
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


def list_sessions(state: State, command: commands.Sessions, caller: Caller | None = None) -> replies.Reply:
    names = state.session_names = state.session_names or SortedNames(state.sessions)
    after = _name_after(command.after, state.sessions_by_id, caller)
    if after is None:
        return _GONE
    return replies.SessionsReply(
        *_page(
            names.after(after),
            command.limit,
            lambda name: _session_info(state.sessions[name]),
            lambda info: _ENTRY_BYTES + len(info.name),
            _owned_by(state, commands.SESSION, "", caller),
            lambda name: _cursor(state.sessions[name].id, caller),
        )
    )


def _owned_by(state: State, kind: str, of: str, caller: Caller | None) -> Callable[[str], bool] | None:
    """Return whether the caller sees something that has an owner. None: it sees everything."""
    if caller is None or caller.is_viewer:
        return None
    return lambda name: state.owners.get(kind, of, name) == caller.user


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


def list_shares(state: State, command: commands.Shares, caller: Caller | None = None) -> replies.Reply:
    names: SortedNames
    is_limited = caller is not None and not caller.is_viewer
    if command.table == commands.KEYS:
        names = state.keys.principals()
        entries_of: Callable[[str], Sized] = state.keys.of
    elif command.table == commands.REGISTRY:
        names = state.namespaces = state.namespaces or SortedNames(state.registry)
        entries_of = state.registry.__getitem__
    else:
        return replies.Refusal("MALFORMED", f"'{command.table}' is not a table with owners: use keys or registry")
    listed: Iterable[str] = names.after(command.after)
    if is_limited and command.table == commands.REGISTRY:
        listed = ()
    elif is_limited and caller is not None:
        # A user's principals are its name, and those that begin with its name and a slash.
        own = [name for name in (caller.user,) if name > command.after and state.keys.of(name)]
        prefix = f"{caller.user}/"
        others = names.after(max(prefix, command.after), inclusive=prefix > command.after)
        listed = chain(own, takewhile(lambda name: name.startswith(prefix), others))
    return replies.SharesReply(
        *_page(
            listed,
            command.limit,
            lambda name: replies.ShareInfo(name, len(entries_of(name))),
            lambda info: _ENTRY_BYTES + len(info.owner),
        )
    )


def list_registry(state: State, command: commands.RegistryList, caller: Caller | None = None) -> replies.Reply:
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
            _entries_of(state, command.namespace, caller),
        )
    )


def _entries_of(state: State, namespace: str, caller: Caller | None) -> Callable[[str], bool] | None:
    """Like `_owned_by`, but entries from before there were users are seen by the first user who needs them, too. Only
    gateways list the registry."""
    if caller is None or caller.is_viewer:
        return None
    return lambda key: state.owners.get(commands.ENTRY, namespace, key) in ("", caller.user)


#: Lists that depend on who asks.
LISTS: dict[type, Callable[[State, Any, Caller | None], replies.Reply]] = {
    commands.Topics: list_topics,
    commands.Patterns: list_patterns,
    commands.Sessions: list_sessions,
    commands.Shares: list_shares,
    commands.RegistryList: list_registry,
}
