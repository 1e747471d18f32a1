"""The administration API of a client: topics, lists of what the broker holds, health, and the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, get_args

from oncemq.client.producer.encoding import Value, as_bytes
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.limits import REMOVED_KEYS_MAX

if TYPE_CHECKING:
    from oncemq.client.context import ClientContext
    from oncemq.client.runtime.flow import Flow

#: What happens to a topic at its quota.
Overflow = Literal["refuse", "drop", "expire"]
#: What can be given to another user.
Assignable = Literal["subscription", "session", "writer", "entry"]


class _Page(Protocol):
    """A part of a list."""

    @property
    def after(self) -> str:
        """Where the next page starts; empty: this is the last page."""


P = TypeVar("P", bound=_Page)


class Admin:
    """Calls that are not about the client's own messages. `Client` documents them."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def create_topic(
        self, name: str, retain_ms: int, retain_bytes: int, quota_bytes: int, overflow: Overflow, alter: bool
    ) -> Flow[bool]:
        """Create a topic. Returns False if it existed."""
        if overflow not in get_args(Overflow):
            raise ValueError(f"overflow is 'refuse', 'drop' or 'expire', not {overflow!r}")
        command = commands.CreateTopic(name, retain_ms, retain_bytes, quota_bytes, overflow, alter)
        reply = yield from self._context.call(command, replies.TopicReply)
        return reply.created

    def delete_topic(self, name: str) -> Flow[None]:
        """Delete a topic, its messages and its subscriptions."""
        return self._context.do(commands.DeleteTopic(name))

    def topics(self) -> Flow[list[replies.TopicInfo]]:
        """Return all topics, by name."""
        pages = yield from self._pages(commands.Topics, replies.TopicsReply)
        return [info for page in pages for info in page.topics]

    def find_topic(self, name: str) -> Flow[replies.TopicInfo | None]:
        """Return one topic without listing all of them; None: it does not exist."""
        after = name[:-1]
        while True:
            page = yield from self._context.ask(commands.Topics(after), replies.TopicsReply)
            for info in page.topics:
                if info.name == name:
                    return info
            if not (after := page.after) or after >= name:
                return None

    def subscriptions(self, topic: str | None) -> Flow[list[replies.SubscriptionInfo]]:
        """Return the subscriptions of one topic, or of all."""
        if topic is not None:
            return (yield from self._subscriptions_of(topic))
        found: list[replies.SubscriptionInfo] = []
        for info in (yield from self.topics()):
            if info.subscriptions:
                # The topic may have been deleted since it was listed.
                try:
                    found += yield from self._subscriptions_of(info.name)
                except errors.TopicUnknown:
                    continue
        return found

    def _subscriptions_of(self, topic: str) -> Flow[list[replies.SubscriptionInfo]]:
        pages = yield from self._pages(lambda after: commands.Subscriptions(topic, after), replies.SubscriptionsReply)
        return [info for page in pages for info in page.subscriptions]

    def patterns(self) -> Flow[list[replies.PatternInfo]]:
        """Return the subscriptions by pattern."""
        pages = yield from self._pages(commands.Patterns, replies.PatternsReply)
        return [info for page in pages for info in page.patterns]

    def sessions(self) -> Flow[list[replies.SessionInfo]]:
        """Return all sessions that the broker remembers."""
        pages = yield from self._pages(commands.Sessions, replies.SessionsReply)
        return [info for page in pages for info in page.sessions]

    def remove_session(self, name: str) -> Flow[None]:
        """Delete a session."""
        return self._context.do(commands.RemoveSession(name))

    def assign(self, owner: str, kind: Assignable, name: str, of: str) -> Flow[None]:
        """Give something to another user."""
        if kind not in commands.ASSIGNABLE:
            raise ValueError(f"kind is one of {', '.join(commands.ASSIGNABLE)}, not {kind!r}")
        return self._context.do(commands.Assign(kind, name, owner, of))

    def auth_reload(self) -> Flow[None]:
        """Let the broker read its users and keys again."""
        yield from self._context.ask(commands.AuthReload(), replies.Done)

    def health(self) -> Flow[replies.HealthReply]:
        """Return the broker's counts and state."""
        return self._context.ask(commands.Health(), replies.HealthReply)

    def registry_set(self, namespace: str, key: str, value: Value | None, version: int) -> Flow[int]:
        """Set an entry of the registry, or delete it with None. Returns its version."""
        raw = None if value is None else as_bytes(value)
        command = commands.RegistrySet(namespace, key, raw, version)
        reply = yield from self._context.call(command, replies.RegistryReply)
        return reply.version

    def registry_list(self, namespace: str, prefix: str) -> Flow[list[replies.RegistryEntry]]:
        """Return a namespace's entries whose keys start with `prefix`."""
        pages = yield from self._pages(
            lambda after: commands.RegistryList(namespace, prefix, after), replies.RegistryListReply
        )
        return [entry for page in pages for entry in page.entries]

    def registry_namespaces(self) -> Flow[list[replies.ShareInfo]]:
        """Return the namespaces of the registry, with the number of their entries."""
        return self._shares(commands.REGISTRY)

    def key_principals(self) -> Flow[list[replies.ShareInfo]]:
        """Return the principals that have idempotency keys, with the number of their keys."""
        return self._shares(commands.KEYS)

    def _shares(self, table: str) -> Flow[list[replies.ShareInfo]]:
        pages = yield from self._pages(lambda after: commands.Shares(table, after), replies.SharesReply)
        return [share for page in pages for share in page.shares]

    def keys(self, principal: str) -> Flow[list[replies.KeyInfo]]:
        """Return the idempotency keys of a principal."""
        pages = yield from self._pages(lambda after: commands.Keys(principal, after), replies.KeysReply)
        return [info for page in pages for info in page.keys]

    def remove_keys(self, principal: str, keys: Sequence[str]) -> Flow[None]:
        """Delete idempotency keys of a principal."""
        for first in range(0, len(keys), REMOVED_KEYS_MAX):
            yield from self._context.do(commands.RemoveKeys(principal, tuple(keys[first : first + REMOVED_KEYS_MAX])))

    def _pages(self, command_after: Callable[[str], commands.Command], kind: type[P]) -> Flow[list[P]]:
        """Return all pages of a list."""
        pages: list[P] = []
        after = ""
        while True:
            page = yield from self._context.ask(command_after(after), kind)
            pages.append(page)
            if not (after := page.after):
                return pages
