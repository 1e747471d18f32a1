"""The complete state of the engine. Only the package `apply` changes what is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from oncemq.engine.state.key_table import KeyTable
from oncemq.engine.state.owners import Owners
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.schedule import Schedule
from oncemq.engine.state.session import Session
from oncemq.engine.state.sorted_names import SortedNames
from oncemq.engine.state.topic import Topic
from oncemq.journal.contract import record_bytes
from oncemq.protocol.limits import KEPT_COMMITS_MAX
from oncemq.protocol.replies import RegistryEntry

if TYPE_CHECKING:
    from oncemq.engine.snapshot.capture import Capture


class StagedBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    count: int
    size: int
    position: int
    ttl_ms: int = 0
    key_hashes: bytes = b""


class StageEntry(msgspec.Struct, array_like=True, frozen=True):
    """Batches that are invisible until they are committed."""

    name: str
    topic_id: int
    expires_ms: int
    #: Number of messages in all batches.
    count: int
    batches: tuple[StagedBatch, ...]


class WriterEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A writer of commits."""

    #: The last one that was committed.
    batch: int
    #: (batch, content) of the last commits that had a content, in order.
    commits: tuple[tuple[int, bytes], ...] = ()

    def after(self, batch: int, content: bytes) -> WriterEntry:
        """Return the entry after another commit."""
        commits = (*self.commits[1 - KEPT_COMMITS_MAX :], (batch, content)) if content else self.commits
        return WriterEntry(batch, commits)

    def content_of(self, batch: int) -> bytes | None:
        """Return the content of a commit; None = it had none, is not kept any more, or there was no such commit."""
        return next((content for number, content in reversed(self.commits) if number == batch), None)


class State:
    def __init__(self, broker_id: str, first_topic_id: int, extent_bytes: int) -> None:
        self.broker_id = broker_id
        #: The term of the journal, which is reported to clients. It is not recorded in events.
        self.term = 0
        self.extent_bytes = extent_bytes
        self.next_topic_id = first_topic_id
        #: Source of session ids, epochs, lease tokens and delay ids. No number is used twice, so that nothing which
        #: belongs to a deleted session or subscription can match a later one of the same name.
        self.next_epoch = 1
        #: The last recorded time. Time never goes back.
        self.time_ms = 0
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        #: Number of subscriptions on all topics.
        self.subscriptions = 0
        #: By (pattern, subscriber).
        self.patterns: dict[tuple[str, str], PatternSubscription] = {}
        #: Number of delayed batches on all topics.
        self.delayed = 0
        self.sessions: dict[str, Session] = {}
        self.sessions_by_id: dict[int, Session] = {}
        self.keys = KeyTable()
        self.registry: dict[str, dict[str, RegistryEntry]] = {}
        self.registry_entries = 0
        self.stages: dict[str, StageEntry] = {}
        self.writers: dict[str, WriterEntry] = {}
        self.owners = Owners()
        #: Position → delay id or stage name, of delayed and staged batches, which have no offset yet. Derived.
        self.unpublished: dict[int, int | str] = {}
        #: Extent → bytes of its records that are still needed. Derived.
        self.live: dict[int, int] = {}
        #: The names of topics, sessions and registry namespaces, and the keys of each namespace, once they were listed.
        #: Derived.
        self.topic_names: SortedNames | None = None
        self.session_names: SortedNames | None = None
        self.namespaces: SortedNames | None = None
        self.registry_keys: dict[str, SortedNames] = {}
        self.schedule = Schedule()
        #: The state was replayed from a journal, and no tick has run since.
        self.is_recovered = False
        self.capture: Capture | None = None

    def topic_to_change(self, topic_id: int) -> Topic:
        """Return a topic that is about to change. A running snapshot captures it first."""
        topic = self.topics_by_id[topic_id]
        if self.capture is not None:
            self.capture.before_topic_changes(topic)
        return topic

    def session_to_change(self, session_id: int) -> Session | None:
        """Return a session that is about to change. A running snapshot captures it first."""
        session = self.sessions_by_id.get(session_id)
        if session is not None and self.capture is not None:
            self.capture.before_session_changes(session)
        return session

    def count_live(self, position: int, size: int) -> None:
        extent = position // self.extent_bytes
        self.live[extent] = self.live.get(extent, 0) + record_bytes(size)

    def count_dead(self, position: int, size: int) -> None:
        self._count_extent_dead(position // self.extent_bytes, record_bytes(size))

    def count_all_dead(self, positions: Iterable[int], sizes: Iterable[int]) -> None:
        """Count many records as dead. They are mostly in few extents, so each extent is updated once."""
        extent_bytes = self.extent_bytes
        dead: dict[int, int] = {}
        for position, size in zip(positions, sizes, strict=True):
            extent = position // extent_bytes
            dead[extent] = dead.get(extent, 0) + record_bytes(size)
        for extent, dead_bytes in dead.items():
            self._count_extent_dead(extent, dead_bytes)

    def _count_extent_dead(self, extent: int, dead_bytes: int) -> None:
        left = self.live[extent] - dead_bytes
        if left:
            self.live[extent] = left
        else:
            del self.live[extent]

    def reclaim(self, topic: Topic) -> None:
        """Delete the batches that are no longer needed."""
        positions, sizes = topic.index.drop_below(topic.reclaim_floor())
        if positions:
            topic.stored_bytes -= sum(sizes)
            self.count_all_dead(positions, sizes)
