"""What goes on between rounds, in small pieces: snapshots, copy-forward, release of what nobody needs.

Copy-forward frees an extent in which little is alive: its live records are appended again, as ordinary
events, and the extent goes with the next release. It takes its records from the extent itself, so that no
map from extents to batches has to be kept.
"""

from __future__ import annotations

import logging
from collections import Counter, deque

import msgspec

from oncemq.broker.group_builder import GroupBuilder, copy_bytes
from oncemq.engine.engine import Engine
from oncemq.engine.locator import Locator
from oncemq.engine.snapshot.capture import Capture
from oncemq.journal.contract import Extent, Journal, RecordHead, RecordRef, SnapshotWriter
from oncemq.protocol import errors

log = logging.getLogger("oncemq.broker")

#: What one look into an extent reads at the most.
_SCAN_BYTES = 1024 * 1024


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """When to do what."""

    #: A snapshot is taken after so much of the journal …
    snapshot_bytes: int = 256 * 1024 * 1024
    #: … or after so many events.
    snapshot_events: int = 200_000
    #: Live bytes that one round copies at the most.
    copy_round_bytes: int = 256 * 1024
    #: Records that one round looks at for that.
    copy_round_records: int = 500
    #: An extent is copied when less than this share of it is alive.
    copy_below_share: float = 0.5
    #: Extents that may lie around half empty before anything is copied.
    copy_extents_min: int = 4
    look_every_ms: int = 200


class Housekeeping:
    def __init__(self, journal: Journal, engine: Engine, policy: Policy, counters: Counter[str]) -> None:
        self._journal = journal
        self._engine = engine
        self._policy = policy
        self._counters = counters
        self._events = counters["groups_replayed"]
        self._capture: Capture | None = None
        self._writer: SnapshotWriter | None = None
        self._copying: _Copying | None = None
        #: Extents with a record that can't be read: they stay.
        self._damaged: set[int] = set()
        self.next_look_ms = 0

    @property
    def busy(self) -> bool:
        return self._capture is not None or (self._copying is not None and self._copying.has_room)

    # Between rounds: everything is synced here.

    def after_round(self, group: GroupBuilder) -> None:
        self._events += len(group.events)
        if self._capture is not None:
            self._go_on_with_snapshot()
        if group.now_ms >= self.next_look_ms:
            self.next_look_ms = group.now_ms + self._policy.look_every_ms
            self._look()

    def _look(self) -> None:
        journal = self._journal
        journal.maintain()
        journal.release(self._engine.state.live)
        full = journal.writable_bytes() == 0
        if full and not self.busy and journal.replay_bytes == 0:
            # A snapshot at a new boundary lets go of what only the older one needs.
            journal.confirm()
        if self._snapshot_due() or (full and journal.replay_bytes > 0):
            self._begin_snapshot()
        if self._copying is None:
            extent = self._worth_copying(full)
            if extent is not None:
                self._copying = _Copying(journal, extent.number)

    # Snapshots.

    def _snapshot_due(self) -> bool:
        return self._capture is None and (
            self._journal.replay_bytes >= self._policy.snapshot_bytes or self._events >= self._policy.snapshot_events
        )

    def _begin_snapshot(self) -> None:
        if self._capture is not None:
            return
        self._writer = self._journal.begin_snapshot()
        if self._writer is not None:
            self._capture = self._engine.capture()
            self._events = 0

    def _go_on_with_snapshot(self) -> None:
        assert self._capture is not None
        assert self._writer is not None
        chunk = self._capture.chunk()
        try:
            if chunk is not None:
                self._writer.add(chunk)
                return
            self._writer.finish()
            self._counters["snapshots"] += 1
        except OSError as error:
            # Without it a restart takes longer, and nothing else.
            log.warning("snapshot given up: %s", error)
            self._writer.abort()
            self._capture.abandon()
        self._capture = self._writer = None

    def last_snapshot(self) -> None:
        """At a clean stop, so that the next start has nothing to replay."""
        while self._capture is not None:
            self._go_on_with_snapshot()
        self._begin_snapshot()
        while self._capture is not None:
            self._go_on_with_snapshot()

    # Copy-forward.

    def _worth_copying(self, full: bool) -> Extent | None:
        live = self._engine.state.live
        behind = [
            extent
            for extent in self._journal.extents()
            if extent.is_covered_by_snapshots and extent.number in live and extent.number not in self._damaged
        ]
        if not behind or (len(behind) < self._policy.copy_extents_min and not full):
            return None
        emptiest = min(behind, key=lambda extent: live[extent.number] / max(1, extent.used_bytes))
        share = live[emptiest.number] / max(1, emptiest.used_bytes)
        return emptiest if share < (0.9 if full else self._policy.copy_below_share) else None

    def copy_forward(self, group: GroupBuilder) -> None:
        """Add some of the live records of the extent in hand to this round's group."""
        copying = self._copying
        if copying is None:
            return
        if copying.extent not in self._engine.state.live:
            # The last of them went by itself, and the extent may be released by now.
            self._copying = None
            return
        try:
            copying.has_room = self._copy_some(group, copying)
        except errors.RecordCorrupt as error:
            # It stays where it is, and so does its extent: what can't be read is not given up by itself.
            log.error("a stored batch can't be moved: %s", error)
            self._damaged.add(copying.extent)
            self._copying = None

    def _copy_some(self, group: GroupBuilder, copying: _Copying) -> bool:
        """False: there was no room for the next one."""
        locator = Locator(self._engine.state)
        left_bytes = self._policy.copy_round_bytes
        for _ in range(self._policy.copy_round_records):
            head = copying.next()
            if head is None:
                self._copying = None
                return True
            first_offset = locator.offset_of(head)
            if first_offset is None:
                continue
            place = group.next_slot(copy_bytes(head.size))
            if place is None or place.room_bytes <= 0:
                copying.put_back(head)
                return place is None
            self._copy(group, head, first_offset, place.position)
            left_bytes -= head.size
            if left_bytes <= 0:
                break
        return True

    def _copy(self, group: GroupBuilder, head: RecordHead, first_offset: int, position: int) -> None:
        wanted = RecordRef(head.position, head.topic_id, head.first_offset, head.size)
        [(payload, checksum)] = self._journal.read([wanted])
        moved = self._engine.move(group.now_ms, head, first_offset, position)
        group.add(moved, copy_bytes(head.size))
        group.add_payload(moved, head.count, checksum, payload)
        self._counters["records_moved"] += 1


class _Copying:
    """Walks an extent's records."""

    def __init__(self, journal: Journal, extent: int) -> None:
        self._journal = journal
        self.extent = extent
        #: False: the disk is so full that not even a copy fits. There is no hurry then.
        self.has_room = True
        self._position = 0
        self._heads: deque[RecordHead] = deque()
        self._over = False

    def next(self) -> RecordHead | None:
        while not self._heads:
            if self._over:
                return None
            heads, self._position = self._journal.scan(self.extent, self._position, _SCAN_BYTES)
            self._heads.extend(heads)
            self._over = self._position == 0
        return self._heads.popleft()

    def put_back(self, head: RecordHead) -> None:
        self._heads.appendleft(head)
