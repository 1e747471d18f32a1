"""The group that a round is building: its events and records, and the space that is left for more."""

from __future__ import annotations

import msgspec

from oncemq.engine.events import Delayed, Event, Moved, Staged, Stored
from oncemq.journal.contract import Group, Journal, Record, WriteSlot, record_bytes, record_end
from oncemq.journal.rows import Rows
from oncemq.protocol.frames import Frame

_encode = msgspec.msgpack.Encoder().encode
#: For decisions that write nothing.
NO_SPACE = WriteSlot(0, 0, 0)


class GroupBuilder:
    __slots__ = (
        "_group_bytes_max",
        "_journal",
        "_position",
        "_slot",
        "_used_bytes",
        "capacity_bytes",
        "events",
        "log_lines",
        "now_ms",
        "records",
    )

    def __init__(self, journal: Journal, now_ms: int, group_bytes_max: int) -> None:
        self.now_ms = now_ms
        self.events: list[Event] = []
        self.records: list[Record] = []
        #: Level and text of lines that are logged after the sync, when what they say is true.
        self.log_lines: list[tuple[int, str]] = []
        #: The space of an empty group: what needs more is never accepted.
        self.capacity_bytes = journal.group_capacity_bytes
        self._journal = journal
        self._group_bytes_max = group_bytes_max
        self._slot = NO_SPACE
        #: Of the next record.
        self._position = 0
        self._used_bytes = 0

    def next_slot(self, need_bytes: int) -> WriteSlot | None:
        """Return the position of the next record and the space that is left. None means that this group is full, and
        that the next group may have space."""
        slot, used_bytes = self._slot, self._used_bytes
        if used_bytes + need_bytes > slot.free_bytes or used_bytes > self._group_bytes_max:
            if self.events:
                return None
            slot = self._slot = self._journal.next_slot(need_bytes)
            self._position = slot.position
        free_bytes = slot.free_bytes - used_bytes
        if free_bytes < need_bytes:
            return WriteSlot(self._position, 0, 0)
        if not used_bytes:
            return slot
        # The journal gives either all of the space or none of it to new messages.
        writable_bytes, reserve_bytes = slot.writable_bytes - used_bytes, slot.reserve_bytes - used_bytes
        return WriteSlot(self._position, free_bytes, writable_bytes, reserve_bytes)

    def add(self, event: Event, need_bytes: int) -> None:
        self.events.append(event)
        self._used_bytes += need_bytes

    def add_payload(self, event: Stored | Staged | Delayed | Moved, count: int, checksum: int, payload: Frame) -> None:
        """Add the payload of an event that was added before."""
        assert event.position == self._position
        first_offset = event.first_offset if type(event) is Stored or type(event) is Moved else -1
        self.records.append(Record(event.position, event.topic_id, first_offset, count, checksum, payload))
        self._position = record_end(self._position, len(payload))

    def record_bytes(self) -> int:
        """Return the number of bytes from the start of the first record to the end of the last one."""
        return self._position - self.records[0].position if self.records else 0

    def build(self, rows: Rows | None = None) -> Group:
        return Group(self.now_ms, _encode(self.events), self.records, rows)


def copy_bytes(size: int) -> int:
    """Return the space that a copy of a record needs, its event included."""
    return record_bytes(size) + 256
