"""Where a stored record is needed: what copy-forward asks about each record of an extent."""

from __future__ import annotations

from oncemq.engine.state import State
from oncemq.journal.contract import RecordHead


class Locator:
    """Good for one round: it remembers what it has looked up, and the state must not change beside its moves."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._offsets: dict[int, dict[int, int]] = {}
        self._staged: set[int] | None = None
        self._delayed: dict[int, set[int]] = {}

    def offset_of(self, head: RecordHead) -> int | None:
        """The offset at which a record is needed, -1 where it has none yet, None if nobody needs it."""
        if head.first_offset < 0:
            offset = self._offset_at(head.topic_id, head.position)
            if offset is None and head.position in self._hidden_positions(head.topic_id):
                return -1
            return offset
        topic = self._state.topics_by_id.get(head.topic_id)
        if topic is None or not topic.index.first <= head.first_offset < topic.index.end:
            return None
        entry = topic.index.find(head.first_offset)
        return head.first_offset if topic.index.positions[entry] == head.position else None

    def _offset_at(self, topic_id: int, position: int) -> int | None:
        """Of a record that was staged or delayed: it does not know its offset, so the whole topic is looked through, once."""
        offsets = self._offsets.get(topic_id)
        if offsets is None:
            topic = self._state.topics_by_id.get(topic_id)
            offsets = dict(topic.index.first_offsets()) if topic is not None else {}
            self._offsets[topic_id] = offsets
        return offsets.get(position)

    def _hidden_positions(self, topic_id: int) -> set[int]:
        if self._staged is None:
            self._staged = {batch.position for stage in self._state.stages.values() for batch in stage.batches}
        if topic_id not in self._delayed:
            topic = self._state.topics_by_id.get(topic_id)
            batches = topic.delayed.values() if topic is not None else ()
            self._delayed[topic_id] = {batch.position for batch in batches}
        return self._staged | self._delayed[topic_id] if self._delayed[topic_id] else self._staged
