"""The group that a round is writing: events and records, and the room that is left for more."""

from __future__ import annotations

import msgspec

from oncemq.engine.events import Delayed, Event, Moved, Staged, Stored
from oncemq.journal.contract import Group, Journal, Record, WriteSlot, record_bytes, record_end
from oncemq.journal.rows import Rows
from oncemq.protocol.frames import Frame

_encode = msgspec.msgpack.Encoder().encode
_NO_ROOM = WriteSlot(0, 0, 0)


class GroupBuilder:
    __slots__ = (
        "_cursor",
        "_group_bytes_max",
        "_journal",
        "_place",
        "_used_bytes",
        "events",
        "log_lines",
        "now_ms",
        "records",
    )

    def __init__(self, journal: Journal, now_ms: int, group_bytes_max: int) -> None:
        self.now_ms = now_ms
        self.events: list[Event] = []
        self.records: list[Record] = []
        #: For the log, once it is true: level and line.
        self.log_lines: list[tuple[int, str]] = []
        self._journal = journal
        self._group_bytes_max = group_bytes_max
        self._place = _NO_ROOM
        self._cursor = 0
        self._used_bytes = 0

    def next_slot(self, need_bytes: int) -> WriteSlot | None:
        """Where the next record goes, and what room there is. None: this group is full, the next may do."""
        if self._used_bytes + need_bytes > self._place.room_bytes or self._used_bytes > self._group_bytes_max:
            if self.events:
                return None
            self._place = self._journal.next_slot(need_bytes)
            self._cursor = self._place.position
        room_bytes = self._place.room_bytes - self._used_bytes
        if room_bytes < need_bytes:
            return WriteSlot(self._cursor, 0, 0)
        # Both are all of the room, or nothing.
        writable_bytes = min(self._place.writable_bytes - self._used_bytes, room_bytes)
        reserve_bytes = min(self._place.reserve_bytes - self._used_bytes, room_bytes)
        return WriteSlot(self._cursor, room_bytes, writable_bytes, reserve_bytes)

    def add(self, event: Event, need_bytes: int) -> None:
        self.events.append(event)
        self._used_bytes += need_bytes

    def add_payload(self, event: Stored | Staged | Delayed | Moved, count: int, checksum: int, payload: Frame) -> None:
        """The payload of an event that was added."""
        assert event.position == self._cursor
        first_offset = event.first_offset if isinstance(event, Stored | Moved) else -1
        self.records.append(Record(event.position, event.topic_id, first_offset, count, checksum, payload))
        self._cursor = record_end(self._cursor, len(payload))

    def record_bytes(self) -> int:
        """From the first record to the end of the last."""
        return self._cursor - self.records[0].position if self.records else 0

    def build(self, rows: Rows | None = None) -> Group:
        return Group(self.now_ms, _encode(self.events), self.records, rows)


def copy_bytes(size: int) -> int:
    """What moving a record takes."""
    return record_bytes(size) + 256
