"""Where a stored record is needed: what copy-forward asks about each record of an extent."""

from __future__ import annotations

from oncemq.engine.state.state import State
from oncemq.journal.contract import RecordHead


class Locator:
    """Good for one round: it remembers what it has looked up, and the state must not change beside its moves."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._offsets: dict[int, dict[int, int]] = {}

    def offset_of(self, head: RecordHead) -> int | None:
        """The offset at which a record is needed, -1 where it has none yet, None if nobody needs it."""
        if head.first_offset < 0:
            return -1 if head.position in self._state.hidden else self._offset_at(head.topic_id, head.position)
        topic = self._state.topics_by_id.get(head.topic_id)
        if topic is None or not topic.index.first <= head.first_offset < topic.index.end:
            return None
        entry = topic.index.find(head.first_offset)
        return head.first_offset if topic.index.positions[entry] == head.position else None

    def _offset_at(self, topic_id: int, position: int) -> int | None:
        """Of a record that was staged or delayed, and does not know it: the whole topic is looked through, once."""
        offsets = self._offsets.get(topic_id)
        if offsets is None:
            topic = self._state.topics_by_id.get(topic_id)
            offsets = dict(topic.index.first_offsets()) if topic is not None else {}
            self._offsets[topic_id] = offsets
        return offsets.get(position)
