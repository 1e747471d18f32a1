"""Finds out whether a stored record is still needed, and which records of an extent are, for copy-forward."""

from __future__ import annotations

from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.journal.contract import RecordHead


class RecordLocator:
    """Valid for one round: it caches lookups, so the state may change only by the moves of this round."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._offsets: dict[int, dict[int, int]] = {}

    def offset_of(self, head: RecordHead) -> int | None:
        """Return the offset of a record; -1 if it has none yet (staged or delayed); None if it is not needed."""
        if head.first_offset < 0:
            return -1 if head.position in self._state.unpublished else self._offset_at(head.topic_id, head.position)
        topic = self._state.topics_by_id.get(head.topic_id)
        if topic is None or not topic.index.first <= head.first_offset < topic.index.end:
            return None
        entry = topic.index.find(head.first_offset)
        return head.first_offset if topic.index.positions[entry] == head.position else None

    def _offset_at(self, topic_id: int, position: int) -> int | None:
        """Return the offset of a record that was staged or delayed when it was written. Scans the topic once."""
        offsets = self._offsets.get(topic_id)
        if offsets is None:
            topic = self._state.topics_by_id.get(topic_id)
            offsets = dict(topic.index.first_offsets()) if topic is not None else {}
            self._offsets[topic_id] = offsets
        return offsets.get(position)


class ExtentSearch:
    """Finds the live records of an extent through the index, a part at a time. The checksums of the heads are 0.

    The state may change between two parts. A record that was moved or deleted meanwhile is not live any more, which
    RecordLocator finds out.
    """

    def __init__(self, state: State, extent: int) -> None:
        self._state = state
        self._begin = extent * state.extent_bytes
        self._end = self._begin + state.extent_bytes
        #: Ids of the topics to search, the next one last.
        self._topics = list(state.topics_by_id)
        #: Where the search of the next topic continues.
        self._offset = 0
        self._unpublished = [position for position in state.unpublished if self._contains(position)]

    @property
    def is_over(self) -> bool:
        return not self._topics and not self._unpublished

    def _contains(self, position: int) -> bool:
        return self._begin <= position < self._end

    def next_heads(self, entries_max: int) -> list[RecordHead]:
        """Return the live records among the next entries of the index."""
        heads = [head for position in self._unpublished if (head := self._unpublished_head(position)) is not None]
        self._unpublished = []
        while self._topics and entries_max > 0:
            topic = self._state.topics_by_id.get(self._topics[-1])
            entries_max -= self._search(topic, heads, entries_max) if topic is not None else 1
            if topic is None or self._offset >= topic.index.end:
                self._topics.pop()
                self._offset = 0
        return heads

    def _search(self, topic: Topic, heads: list[RecordHead], entries_max: int) -> int:
        """Search at most this many entries of a topic. Return how many there were, at least 1."""
        index = topic.index
        start = index.find(max(self._offset, index.first))
        stop = min(start + entries_max, len(index.ends))
        for entry, position in enumerate(index.positions[start:stop], start):
            if self._contains(position):
                first = index.first_offset(entry)
                heads.append(RecordHead(position, topic.id, first, index.ends[entry] - first, 0, index.sizes[entry]))
        self._offset = index.ends[stop - 1] if stop > start else index.end
        return max(1, stop - start)

    def _unpublished_head(self, position: int) -> RecordHead | None:
        """Return the head of a delayed or staged batch; None if it is published or deleted."""
        name = self._state.unpublished.get(position)
        if isinstance(name, int):
            topic = self._state.topics_by_id[self._state.schedule.delays[name]]
            delayed = topic.delayed[name]
            return RecordHead(position, topic.id, -1, delayed.count, 0, delayed.size)
        if name is None:
            return None
        stage = self._state.stages[name]
        batch = next(batch for batch in stage.batches if batch.position == position)
        return RecordHead(position, stage.topic_id, -1, batch.count, 0, batch.size)
