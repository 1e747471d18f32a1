"""Topics, lists and the registry: the calls that are not about one's own messages."""

from __future__ import annotations

from typing import Literal, get_args

from oncemq.client.producer.batch_buffer import Value, as_bytes
from oncemq.client.runtime.flow import Flow, method
from oncemq.client.runtime.rpc import Calling
from oncemq.protocol import commands, errors, replies

#: What becomes of a topic at its quota.
Overflow = Literal["refuse", "drop", "expire"]


class Administration(Calling):
    """The part of a client that looks after the broker's things."""

    @method
    def create_topic(
        self,
        name: str,
        *,
        retain_ms: int = 0,
        retain_bytes: int = 0,
        quota_bytes: int = 0,
        overflow: Overflow = "refuse",
        alter: bool = False,
    ) -> Flow[bool]:
        """Make a topic that stays. False: it was there. With a retention it keeps messages that all have acked.

        `quota_bytes`: it stores no more than that. Then `overflow` decides: `"refuse"` (puts wait, and raise
        TopicFull in the end), `"drop"` (the oldest messages go, whoever needs them) or `"expire"` (the slowest
        subscription ends, and is told so). A retention beside a quota goes with `"drop"` only. `alter`: give an
        existing topic these settings.

        >>> client.create_topic("orders", retain_ms=24 * 3600 * 1000)
        True
        """
        if overflow not in get_args(Overflow):
            raise ValueError(f"overflow is 'refuse', 'drop' or 'expire', not {overflow!r}")
        command = commands.CreateTopic(name, retain_ms, retain_bytes, quota_bytes, overflow, alter)
        reply = yield from self._call(command, replies.TopicReply)
        return reply.created

    @method
    def delete_topic(self, name: str) -> Flow[None]:
        """Delete a topic, its messages and its subscriptions.

        >>> client.delete_topic("orders")
        """
        return self._do(commands.DeleteTopic(name))

    @method
    def topics(self) -> Flow[list[replies.TopicInfo]]:
        """All topics, by name.

        >>> [topic.name for topic in client.topics()]
        ['orders']
        """
        return self._topics()

    def _topics(self) -> Flow[list[replies.TopicInfo]]:
        found: list[replies.TopicInfo] = []
        after = ""
        while True:
            page = yield from self._ask(commands.Topics(after), replies.TopicsReply)
            found += page.topics
            if not (after := page.after):
                return found

    @method
    def _find_topic(self, name: str) -> Flow[replies.TopicInfo | None]:
        """One topic, without listing all; None: there is none of that name."""
        after = name[:-1]
        while True:
            page = yield from self._ask(commands.Topics(after), replies.TopicsReply)
            for info in page.topics:
                if info.name == name:
                    return info
            if not (after := page.after) or after >= name:
                return None

    @method
    def subscriptions(self, topic: str | None = None) -> Flow[list[replies.SubscriptionInfo]]:
        """The subscriptions of one topic, or of all.

        >>> [entry.lag for entry in client.subscriptions("orders")]
        [1]
        """
        if topic is not None:
            return (yield from self._subscriptions_of(topic))
        found: list[replies.SubscriptionInfo] = []
        for info in (yield from self._topics()):
            if info.subscriptions:
                # It may be deleted while we look.
                try:
                    found += yield from self._subscriptions_of(info.name)
                except errors.TopicUnknown:
                    continue
        return found

    def _subscriptions_of(self, topic: str) -> Flow[list[replies.SubscriptionInfo]]:
        found: list[replies.SubscriptionInfo] = []
        after = ""
        while True:
            page = yield from self._ask(commands.Subscriptions(topic, after), replies.SubscriptionsReply)
            found += page.subscriptions
            if not (after := page.after):
                return found

    @method
    def patterns(self) -> Flow[list[replies.PatternInfo]]:
        """The subscriptions by pattern, also those that no topic matches yet.

        >>> [(entry.pattern, entry.topics, entry.lag) for entry in client.patterns()]
        [('orders.*', 2, 1)]
        """
        found: list[replies.PatternInfo] = []
        after = ""
        while True:
            page = yield from self._ask(commands.Patterns(after), replies.PatternsReply)
            found += page.patterns
            if not (after := page.after):
                return found

    @method
    def sessions(self) -> Flow[list[replies.SessionInfo]]:
        """All sessions that the broker remembers.

        >>> [session.name for session in client.sessions()]
        ['billing']
        """
        found: list[replies.SessionInfo] = []
        after = ""
        while True:
            page = yield from self._ask(commands.Sessions(after), replies.SessionsReply)
            found += page.sessions
            if not (after := page.after):
                return found

    @method
    def remove_session(self, name: str) -> Flow[None]:
        """Forget a session: its client, if it still exists, gets SessionUnknown.

        >>> client.remove_session("billing")
        """
        return self._do(commands.RemoveSession(name))

    @property
    def batch_bytes_max(self) -> int:
        """What the broker takes in one batch, as it said when this client connected; 0 = it did not say."""
        return self._driver.core.batch_bytes_max

    @method
    def health(self) -> Flow[replies.HealthReply]:
        """How the broker is.

        >>> client.health().topics
        1
        """
        return (yield from self._ask(commands.Health(), replies.HealthReply))

    # The registry: a small durable map, for gateways.

    @method
    def registry_set(self, namespace: str, key: str, value: Value | None, *, version: int = -1) -> Flow[int]:
        """Set an entry, or with None remove it; returns its version. `version`: only if it is this one now.

        >>> client.registry_set("push", "alice", b"tcp://127.0.0.1:7000")
        1
        """
        raw = None if value is None else as_bytes(value)
        reply = yield from self._call(commands.RegistrySet(namespace, key, raw, version), replies.RegistryReply)
        return reply.version

    @method
    def registry_list(self, namespace: str, prefix: str = "") -> Flow[list[replies.RegistryEntry]]:
        """A namespace's entries whose keys start with `prefix`.

        >>> [entry.key for entry in client.registry_list("push")]
        ['alice']
        """
        found: list[replies.RegistryEntry] = []
        after = ""
        while True:
            page = yield from self._ask(commands.RegistryList(namespace, prefix, after), replies.RegistryListReply)
            found += page.entries
            if not (after := page.after):
                return found
