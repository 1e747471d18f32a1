"""Finds out whether a stored record is still needed, for copy-forward."""

from __future__ import annotations

from oncemq.engine.state.state import State
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
