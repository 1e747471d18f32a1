"""The rows that a round's events change in the SQL tables, which users query.

The events say where to look, and the state after them says what is there. So any number of events results in one row,
and what was created and deleted in the same round leaves none. This module decides and changes nothing, and is not
called for journals without tables. Only users read the tables: a failure here must not stop the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import msgspec

from oncemq.engine.events import (
    AckedMany,
    Committed,
    Dropped,
    Event,
    Moved,
    PatternSought,
    PatternSubscribed,
    PatternUnsubscribed,
    RegistryChanged,
    Released,
    Staged,
    TopicCreated,
    Transacted,
)
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.journal.rows import (
    BatchRow,
    ConsumerKey,
    ConsumerRow,
    PatternGone,
    ProducerRow,
    Rows,
    TablesWanted,
    TopicRow,
)
from oncemq.protocol.commands import BY_PATTERN
from oncemq.protocol.patterns import matches

log = logging.getLogger("oncemq.broker")

#: Namespace and key prefix under which the HTTP gateway keeps its producers in the registry.
_NAMESPACE, _PRODUCER = "queue", "producer/"


class _ProducerEntry(msgspec.Struct):
    topic: str


_decode_producer = msgspec.json.Decoder(_ProducerEntry).decode


def project(state: State, events: Iterable[Event], wanted: TablesWanted) -> Rows | None:
    """Return the rows for a group, or None if the journal has no tables."""
    if not wanted:
        return None
    try:
        return project_all(state) if wanted == "all" else _changes(state, events)
    except Exception:
        # A bug of ours, but the decisions are good. The next take-over writes all tables again.
        log.exception("the SQL tables are out of date from now on; the next start on this journal writes them again")
        return Rows(are_stale=True)


def _changes(state: State, events: Iterable[Event]) -> Rows:
    changes = _Changes()
    for event in events:
        changes.note(event)
    return changes.rows(state)


def project_all(state: State) -> Rows:
    """Return all rows of all tables."""
    topics = state.topics_by_id.values()
    batches = tuple(row for topic in topics for row in _batches(topic, topic.index.first, topic.index.end))
    return msgspec.structs.replace(_all_names(state), batches=batches, has_all=True)


def _all_names(state: State) -> Rows:
    topics = state.topics_by_id.values()
    return Rows(
        topics=tuple(map(_topic_row, topics)),
        consumers=tuple(_consumer_row(topic, key) for topic in topics for key in topic.subscriptions),
        producers=tuple(
            row for key in state.registry.get(_NAMESPACE, {}) if (row := _producer_row(state, key)) is not None
        ),
        has_all_names=True,
    )


class _Changes:
    """What the events of a round have changed."""

    def __init__(self) -> None:
        # Dictionaries keep their order: rows that are always written in the same order can't deadlock.
        self._topics: dict[int, None] = {}
        #: (topic id, subscriber)
        self._consumers: dict[tuple[int, str], None] = {}
        #: Topics of which all subscriptions may have changed.
        self._all_consumers_of: dict[int, None] = {}
        self._producers: dict[str, None] = {}
        #: (topic id, first offset, end)
        self._batches: list[tuple[int, int, int]] = []
        self._positions_deleted: list[int] = []
        #: (pattern, subscriber), as the state has them.
        self._patterns: dict[tuple[str, str], None] = {}
        self._patterns_deleted: dict[tuple[str, str], None] = {}
        self._is_all_changed = False

    def note(self, event: Event) -> None:
        if isinstance(event, Transacted):
            for part in event.parts:
                self.note(part)
        elif isinstance(event, Committed):
            for published in event.parts or (event,):
                self._note_published(published.topic_id, published.first_offset, published.count)
        elif isinstance(event, AckedMany):
            self._consumers.update(((topic_id, subscriber), None) for topic_id, subscriber, _ in event.acks)
        elif isinstance(event, PatternSubscribed):
            if event.created:
                self._patterns[(event.pattern, event.subscriber)] = None
        elif isinstance(event, PatternUnsubscribed):
            self._note_pattern_deleted((event.pattern, event.subscriber))
        elif isinstance(event, PatternSought):
            key = event.subscriber + BY_PATTERN + event.pattern
            self._consumers.update(((topic_id, key), None) for topic_id, _ in event.positions)
        elif isinstance(event, RegistryChanged):
            if event.namespace == _NAMESPACE and event.key.startswith(_PRODUCER):
                self._producers[event.key] = None
        else:
            self._note_topic(event)

    def _note_pattern_deleted(self, pattern: tuple[str, str]) -> None:
        self._patterns_deleted[pattern] = None
        # Topics that it was attached to and that were deleted with it, all in this round, are known neither to the
        # state nor to the tables.
        self._is_all_changed = self._is_all_changed or pattern in self._patterns

    def _note_topic(self, event: Event) -> None:
        topic_id: int = getattr(event, "topic_id", 0)
        if not topic_id or isinstance(event, Staged):
            return
        self._topics[topic_id] = None
        subscriber: str = getattr(event, "subscriber", "")
        if subscriber:
            self._consumers[(topic_id, subscriber)] = None
        if isinstance(event, Moved):
            self._note_moved(event)
        elif isinstance(event, Released):
            self._batches.append((topic_id, event.first_offset, event.first_offset + 1))
        elif isinstance(event, TopicCreated | Dropped) or bool(getattr(event, "topic_name", "")):
            # A new topic has the subscriptions of matching patterns. Dropped messages move subscriptions that lag.
            self._all_consumers_of[topic_id] = None

    def _note_published(self, topic_id: int, first_offset: int, count: int) -> None:
        if topic_id and first_offset >= 0:
            self._topics[topic_id] = None
            self._batches.append((topic_id, first_offset, first_offset + count))

    def _note_moved(self, event: Moved) -> None:
        self._positions_deleted.append(event.old_position)
        if event.first_offset >= 0:
            self._batches.append((event.topic_id, event.first_offset, event.first_offset + 1))

    def rows(self, state: State) -> Rows:
        known = state.topics_by_id
        consumers = dict(self._consumers)
        for topic_id in self._all_consumers_of:
            topic = known.get(topic_id)
            consumers.update(((topic_id, key), None) for key in (topic.subscriptions if topic is not None else ()))
        for named in self._patterns:
            pattern = state.patterns.get(named)
            if pattern is not None:
                consumers.update(((topic_id, pattern.key), None) for topic_id in pattern.topics)
        # An ack may have deleted messages of the topic.
        topics = dict.fromkeys((*self._topics, *(topic_id for topic_id, _ in consumers)))
        deleted = () if self._is_all_changed else self._patterns_deleted
        patterns_gone = tuple(_pattern_gone(state, *each) for each in deleted)
        topics.update(dict.fromkeys(topic_id for gone in patterns_gone for topic_id in gone.topics_left))
        names = _all_names(state) if self._is_all_changed else self._changed_names(state, topics, consumers)
        return msgspec.structs.replace(
            names,
            patterns_gone=patterns_gone,
            batches=tuple(self._published(state)),
            batches_gone=tuple(self._positions_deleted),
        )

    def _changed_names(self, state: State, topics: Iterable[int], consumers: Iterable[tuple[int, str]]) -> Rows:
        known = state.topics_by_id
        pairs = [(known[topic_id], key) for topic_id, key in consumers if topic_id in known]
        producers = {key: _producer_row(state, key) for key in self._producers}
        return Rows(
            topics=tuple(_topic_row(known[topic_id]) for topic_id in topics if topic_id in known),
            topics_gone=tuple(topic_id for topic_id in topics if topic_id not in known),
            consumers=tuple(_consumer_row(topic, key) for topic, key in pairs if key in topic.subscriptions),
            consumers_gone=tuple(_consumer_key(topic, key) for topic, key in pairs if key not in topic.subscriptions),
            producers=tuple(row for row in producers.values() if row is not None),
            producers_gone=tuple(key.removeprefix(_PRODUCER) for key, row in producers.items() if row is None),
        )

    def _published(self, state: State) -> Iterator[BatchRow]:
        for topic_id, first_offset, end in dict.fromkeys(self._batches):
            topic = state.topics_by_id.get(topic_id)
            if topic is not None:
                yield from _batches(topic, first_offset, end)


def _topic_row(topic: Topic) -> TopicRow:
    return TopicRow(topic.id, topic.name, topic.index.first, topic.next_offset)


def _consumer_key(topic: Topic, key: str) -> ConsumerKey:
    subscriber, _, pattern = key.partition(BY_PATTERN)
    return ConsumerKey(topic.id, subscriber, pattern)


def _consumer_row(topic: Topic, key: str) -> ConsumerRow:
    return ConsumerRow(_consumer_key(topic, key), topic.name, topic.subscriptions[key].acked)


def _pattern_gone(state: State, pattern: str, subscriber: str) -> PatternGone:
    levels = pattern.split(".")
    left = tuple(topic_id for topic_id, topic in state.topics_by_id.items() if matches(levels, topic.name))
    return PatternGone(subscriber, pattern, left)


def _producer_row(state: State, key: str) -> ProducerRow | None:
    entry = state.registry.get(_NAMESPACE, {}).get(key)
    if entry is None or not key.startswith(_PRODUCER):
        return None
    try:
        row = ProducerRow(key.removeprefix(_PRODUCER), _decode_producer(entry.value).topic)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # Not written by the gateway: any client may write to the registry.
        return None
    return None if "\0" in row.id + row.topic else row


def _batches(topic: Topic, offset: int, end: int) -> Iterator[BatchRow]:
    """Yield the stored batches from the one that holds `offset` to `end`."""
    index = topic.index
    end = min(end, index.end)
    offset = max(offset, index.first)
    entry = index.find(offset) if offset < end else 0
    while offset < end:
        yield BatchRow(index.positions[entry], offset, index.times[entry])
        offset = index.ends[entry]
        entry += 1
