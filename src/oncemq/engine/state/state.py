"""Everything that the engine knows. Changed by dispatch.py alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from oncemq.engine.state.pattern import Pattern
from oncemq.engine.state.schedule import Schedule
from oncemq.engine.state.session import Session
from oncemq.engine.state.topic import Topic
from oncemq.journal.contract import record_bytes
from oncemq.protocol.replies import RegistryEntry, Verdict

if TYPE_CHECKING:
    from oncemq.engine.snapshot.capture import Capture


class StagedBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    count: int
    size: int
    position: int
    ttl_ms: int = 0
    key_hashes: bytes = b""


class StageEntry(msgspec.Struct, array_like=True, frozen=True):
    """Batches that nobody sees before their commit."""

    name: str
    topic_id: int
    expires_ms: int
    #: Messages in all of its batches.
    count: int
    batches: tuple[StagedBatch, ...]


class KeyEntry(msgspec.Struct, array_like=True, frozen=True):
    principal: str
    key: str
    digest: int
    verdict: Verdict
    time_ms: int


class State:
    def __init__(self, broker_id: str, first_topic_id: int, extent_bytes: int) -> None:
        self.broker_id = broker_id
        #: The journal's, told to clients. Not a part of what is recorded.
        self.term = 0
        self.extent_bytes = extent_bytes
        self.next_topic_id = first_topic_id
        #: Sessions' ids and all epochs come from it, none is given twice: what belonged to a session or
        #: subscription that was removed does not fit a later one of the same name.
        self.next_epoch = 1
        #: The last recorded time: time never falls.
        self.time_ms = 0
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        self.subscriptions = 0
        #: By pattern and subscriber.
        self.patterns: dict[tuple[str, str], Pattern] = {}
        #: Batches that are not due yet, on all topics.
        self.delayed = 0
        self.sessions: dict[str, Session] = {}
        self.sessions_by_id: dict[int, Session] = {}
        #: In the order of their time.
        self.keys: OrderedDict[tuple[str, str], KeyEntry] = OrderedDict()
        self.registry: dict[str, dict[str, RegistryEntry]] = {}
        self.registry_entries = 0
        self.stages: dict[str, StageEntry] = {}
        #: writer → its last committed batch
        self.writers: dict[str, int] = {}
        #: Position → delay id or stage's name, of batches that have no offset yet. Derived.
        self.hidden: dict[int, int | str] = {}
        #: extent → bytes of records in it that are still needed
        self.live: dict[int, int] = {}
        self.schedule = Schedule()
        #: Replayed from a journal, and no tick since.
        self.is_recovered = False
        self.capture: Capture | None = None

    def topic_to_change(self, topic_id: int) -> Topic:
        topic = self.topics_by_id[topic_id]
        if self.capture is not None:
            self.capture.before_topic_changes(topic)
        return topic

    def session_to_change(self, session_id: int) -> Session | None:
        session = self.sessions_by_id.get(session_id)
        if session is not None and self.capture is not None:
            self.capture.before_session_changes(session)
        return session

    def count_live(self, position: int, size: int) -> None:
        extent = position // self.extent_bytes
        self.live[extent] = self.live.get(extent, 0) + record_bytes(size)

    def count_dead(self, position: int, size: int) -> None:
        extent = position // self.extent_bytes
        left = self.live[extent] - record_bytes(size)
        if left:
            self.live[extent] = left
        else:
            del self.live[extent]

    def collect(self, topic: Topic) -> None:
        """Drop the batches that nobody needs any more."""
        for position, size in topic.index.drop_below(topic.floor()):
            topic.stored_bytes -= size
            self.count_dead(position, size)
