"""Topics, lists, stages and the registry: the calls that are not about one's own messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from oncemq import errors
from oncemq.client.batching import Value, as_bytes, check_is_many
from oncemq.client.driver import Driver
from oncemq.engine import commands as co
from oncemq.engine import replies as re
from oncemq.message import checksum, encode_batch
from oncemq.wire.frames import Frame

_T = TypeVar("_T")


class Administration:
    """The part of a client that looks after the broker's things."""

    _driver: Driver

    def _call_any(self, operation: co.Operation, payload: Frame | None = None, *, give_up_ms: float = 0.0) -> re.Reply:
        raise NotImplementedError

    def _call(
        self, operation: co.Operation, kind: type[_T], payload: Frame | None = None, *, give_up_ms: float = 0.0
    ) -> _T:
        raise NotImplementedError

    def _ask(self, command: co.Command, kind: type[_T]) -> _T:
        reply = self._driver.ask(command).result()
        if not isinstance(reply, kind):
            raise errors.Malformed(f"{type(command).__name__} was answered with {type(reply).__name__}")
        return reply

    def create_topic(self, name: str, *, retain_ms: int = 0, retain_bytes: int = 0) -> bool:
        """Make a topic that stays. False: it was there. With a retention it keeps messages that all have acked.

        >>> client.create_topic("orders", retain_ms=24 * 3600 * 1000)
        True
        """
        return self._call(co.CreateTopic(name, retain_ms, retain_bytes), re.TopicReply).created

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its messages and its subscriptions.

        >>> client.delete_topic("orders")
        """
        self._call_any(co.DeleteTopic(name))

    def topics(self) -> list[re.TopicInfo]:
        """All topics, by name.

        >>> [topic.name for topic in client.topics()]
        ['orders']
        """
        found: list[re.TopicInfo] = []
        after = ""
        while True:
            page = self._ask(co.Topics(after), re.TopicsReply)
            found += page.topics
            if not (after := page.after):
                return found

    def subscriptions(self, topic: str | None = None) -> list[re.SubscriptionInfo]:
        """The subscriptions of one topic, or of all.

        >>> [entry.lag for entry in client.subscriptions("orders")]
        [1]
        """
        if topic is not None:
            return self._subscriptions_of(topic)
        found: list[re.SubscriptionInfo] = []
        for info in self.topics():
            if info.subscriptions:
                # It may be deleted while we look.
                try:
                    found += self._subscriptions_of(info.name)
                except errors.TopicUnknown:
                    continue
        return found

    def _subscriptions_of(self, topic: str) -> list[re.SubscriptionInfo]:
        found: list[re.SubscriptionInfo] = []
        after = ""
        while True:
            page = self._ask(co.Subscriptions(topic, after), re.SubscriptionsReply)
            found += page.subscriptions
            if not (after := page.after):
                return found

    def sessions(self) -> list[re.SessionInfo]:
        """All sessions that the broker remembers.

        >>> [session.name for session in client.sessions()]
        ['billing']
        """
        found: list[re.SessionInfo] = []
        after = ""
        while True:
            page = self._ask(co.Sessions(after), re.SessionsReply)
            found += page.sessions
            if not (after := page.after):
                return found

    def remove_session(self, name: str) -> None:
        """Forget a session: its client, if it still exists, gets SessionUnknown.

        >>> client.remove_session("billing")
        """
        self._call_any(co.RemoveSession(name))

    @property
    def batch_bytes_max(self) -> int:
        """What the broker takes in one batch, as it said when this client connected; 0 = it did not say."""
        return self._driver.core.batch_bytes_max

    def health(self) -> re.HealthReply:
        """How the broker is.

        >>> client.health().topics
        1
        """
        return self._ask(co.Health(), re.HealthReply)

    # Stages: messages that nobody sees before their commit.

    def stage(self, stage: str, topic: str, writer: str, batch: int, values: Sequence[Value]) -> int:
        """Store messages out of sight, for a later `commit` by `writer` as `batch`. Returns the stage's count.

        >>> client.stage("part-0", "results", "nightly", 1, ["a", "b"])
        2
        """
        check_is_many(values, "values")
        payload = encode_batch([as_bytes(value) for value in values])
        envelope = co.Envelope(len(values), len(payload), checksum(payload))
        return self._call(co.Stage(stage, topic, writer, batch, envelope), re.StageReply, payload).count

    def commit(self, writer: str, batch: int, topic: str, stages: Iterable[tuple[str, int]]) -> re.CommitReply:
        """Publish stages, all or nothing; harmless if `batch` was committed before (`.before` tells).

        >>> client.commit("nightly", 1, "results", [("part-0", 2)]).count
        2
        """
        return self._call(co.Commit(writer, batch, topic, tuple(stages)), re.CommitReply)

    def abort(self, stages: Iterable[str]) -> None:
        """Drop stages, those that are there.

        >>> client.abort(["part-0"])
        """
        self._call_any(co.Abort(tuple(stages)))

    # The registry: a small durable map, for gateways.

    def registry_set(self, namespace: str, key: str, value: Value | None, *, version: int = -1) -> int:
        """Set an entry, or with None remove it; returns its version. `version`: only if it is this one now.

        >>> client.registry_set("push", "alice", b"tcp://127.0.0.1:7000")
        1
        """
        raw = None if value is None else as_bytes(value)
        return self._call(co.RegistrySet(namespace, key, raw, version), re.RegistryReply).version

    def registry_list(self, namespace: str, prefix: str = "") -> list[re.RegistryEntry]:
        """A namespace's entries whose keys start with `prefix`.

        >>> [entry.key for entry in client.registry_list("push")]
        ['alice']
        """
        found: list[re.RegistryEntry] = []
        after = ""
        while True:
            page = self._ask(co.RegistryList(namespace, prefix, after), re.RegistryListReply)
            found += page.entries
            if not (after := page.after):
                return found
