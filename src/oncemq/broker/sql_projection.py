"""What a round's events change in the tables that people query: rows, read off the state behind those events.

Events say where to look, and the state says what is there: so one row comes out for however many events, and what was
made and removed in the same round leaves nothing. Decides nothing, changes nothing, and is not called for journals
that want no tables. Tables are for people: a failure here must not end the broker.
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
    TopicMade,
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

#: Where the HTTP gateway keeps its producers in the registry.
_NAMESPACE, _PRODUCER = "queue", "producer/"


class _ProducerEntry(msgspec.Struct):
    topic: str


_decode_producer = msgspec.json.Decoder(_ProducerEntry).decode


def project(state: State, events: Iterable[Event], wants: TablesWanted) -> Rows | None:
    """None: the journal wants no tables."""
    if not wants:
        return None
    try:
        return everything(state) if wants == "all" else _changes(state, events)
    except Exception:
        # A bug of ours; what was decided is good all the same. The next take-over writes all of them anew.
        log.exception("the tables for queries are out of date from here on")
        return Rows(are_stale=True)


def _changes(state: State, events: Iterable[Event]) -> Rows:
    touched = _Touched()
    for event in events:
        touched.note(event)
    return touched.rows(state)


def everything(state: State) -> Rows:
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


class _Touched:
    """Where a round's events have changed something."""

    def __init__(self) -> None:
        # Dictionaries for their order: rows that come out in the same order can't lock each other out.
        self._topics: dict[int, None] = {}
        #: (topic id, subscriber)
        self._consumers: dict[tuple[int, str], None] = {}
        #: Topics with all of their subscriptions.
        self._whole: dict[int, None] = {}
        self._producers: dict[str, None] = {}
        #: (topic id, first offset, end)
        self._batches: list[tuple[int, int, int]] = []
        self._positions_gone: list[int] = []
        #: (pattern, subscriber), as the state has them.
        self._patterns: dict[tuple[str, str], None] = {}
        self._patterns_gone: dict[tuple[str, str], None] = {}
        self._is_everywhere = False

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
            self._note_pattern_gone((event.pattern, event.subscriber))
        elif isinstance(event, PatternSought):
            key = event.subscriber + BY_PATTERN + event.pattern
            self._consumers.update(((topic_id, key), None) for topic_id, _ in event.positions)
        elif isinstance(event, RegistryChanged):
            if event.namespace == _NAMESPACE and event.key.startswith(_PRODUCER):
                self._producers[event.key] = None
        else:
            self._note_topic(event)

    def _note_pattern_gone(self, pattern: tuple[str, str]) -> None:
        self._patterns_gone[pattern] = None
        # Topics that it found and took with it, all in this round, are known neither to the state nor to the tables.
        self._is_everywhere = self._is_everywhere or pattern in self._patterns

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
        elif isinstance(event, TopicMade | Dropped) or bool(getattr(event, "topic_name", "")):
            # New: patterns attach to it. Dropped: whoever was behind is pushed on.
            self._whole[topic_id] = None

    def _note_published(self, topic_id: int, first_offset: int, count: int) -> None:
        if topic_id and first_offset >= 0:
            self._topics[topic_id] = None
            self._batches.append((topic_id, first_offset, first_offset + count))

    def _note_moved(self, event: Moved) -> None:
        self._positions_gone.append(event.old_position)
        if event.first_offset >= 0:
            self._batches.append((event.topic_id, event.first_offset, event.first_offset + 1))

    def rows(self, state: State) -> Rows:
        known = state.topics_by_id
        consumers = dict(self._consumers)
        for topic_id in self._whole:
            topic = known.get(topic_id)
            consumers.update(((topic_id, key), None) for key in (topic.subscriptions if topic is not None else ()))
        for named in self._patterns:
            pattern = state.patterns.get(named)
            if pattern is not None:
                consumers.update(((topic_id, pattern.key), None) for topic_id in pattern.topics)
        # The topic of whoever has acked may have let go of messages.
        topics = dict.fromkeys((*self._topics, *(topic_id for topic_id, _ in consumers)))
        ended = () if self._is_everywhere else self._patterns_gone
        patterns_gone = tuple(_pattern_gone(state, *gone) for gone in ended)
        topics.update(dict.fromkeys(topic_id for gone in patterns_gone for topic_id in gone.topics_left))
        names = _all_names(state) if self._is_everywhere else self._changed_names(state, topics, consumers)
        return msgspec.structs.replace(
            names,
            patterns_gone=patterns_gone,
            batches=tuple(self._published(state)),
            batches_gone=tuple(self._positions_gone),
        )

    def _changed_names(self, state: State, topics: Iterable[int], consumers: Iterable[tuple[int, str]]) -> Rows:
        known = state.topics_by_id
        there = [(known[topic_id], key) for topic_id, key in consumers if topic_id in known]
        producers = {key: _producer_row(state, key) for key in self._producers}
        return Rows(
            topics=tuple(_topic_row(known[topic_id]) for topic_id in topics if topic_id in known),
            topics_gone=tuple(topic_id for topic_id in topics if topic_id not in known),
            consumers=tuple(_consumer_row(topic, key) for topic, key in there if key in topic.subscriptions),
            consumers_gone=tuple(_consumer_key(topic, key) for topic, key in there if key not in topic.subscriptions),
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
        # Not the gateway's: anybody may put anything there.
        return None
    return None if "\0" in row.id + row.topic else row


def _batches(topic: Topic, offset: int, end: int) -> Iterator[BatchRow]:
    """The stored batches from the one that holds an offset on."""
    index = topic.index
    end = min(end, index.end)
    offset = max(offset, index.first)
    entry = index.find(offset) if offset < end else 0
    while offset < end:
        yield BatchRow(index.positions[entry], offset, index.times[entry])
        offset = index.ends[entry]
        entry += 1
