"""Work between rounds, in small steps: snapshots, copy-forward, and the release of extents that are not needed.

Copy-forward frees an extent that holds few live records: these records are appended again as ordinary events, and the
next release recycles the extent. It scans the extent itself for records, so that no map from extents to batches has to
be kept.
"""

from __future__ import annotations

import logging
from collections import Counter, deque

import msgspec

from oncemq.broker.group_builder import GroupBuilder, copy_bytes
from oncemq.engine.engine import Engine
from oncemq.engine.record_locator import RecordLocator
from oncemq.engine.snapshot.capture import Capture
from oncemq.journal.contract import Extent, Journal, RecordHead, RecordRef, SnapshotWriter
from oncemq.protocol import errors

log = logging.getLogger("oncemq.broker")

#: Maximum bytes of an extent that one scan reads.
_SCAN_BYTES = 1024 * 1024


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """When housekeeping does what."""

    #: A snapshot is taken after this many bytes of journal …
    snapshot_bytes: int = 256 * 1024 * 1024
    #: … or after this many events.
    snapshot_events: int = 200_000
    #: Maximum live bytes that one round copies.
    copy_round_bytes: int = 256 * 1024
    #: Maximum records that one round looks at for copying.
    copy_round_records: int = 500
    #: An extent is copied when less than this share of it is live.
    copy_below_share: float = 0.5
    #: Number of extents behind the snapshots below which nothing is copied.
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
        self._extent_copy: _ExtentCopy | None = None
        #: Extents with a record that can't be read. They are never copied and so never released.
        self._damaged: set[int] = set()
        self.next_look_ms = 0

    @property
    def busy(self) -> bool:
        return self._capture is not None or (self._extent_copy is not None and self._extent_copy.has_space)

    def after_round(self, builder: GroupBuilder) -> None:
        """Continue with a snapshot, and look regularly for other work. Everything is synced at this point."""
        self._events += len(builder.events)
        if self._capture is not None:
            self._continue_snapshot()
        if builder.now_ms >= self.next_look_ms:
            self.next_look_ms = builder.now_ms + self._policy.look_every_ms
            self._look()

    def _look(self) -> None:
        journal = self._journal
        journal.maintain()
        journal.release(self._engine.state.live)
        full = journal.writable_bytes() == 0
        if full and not self.busy and journal.replay_bytes == 0:
            # A snapshot at a new boundary frees the extents that only the older snapshot needs.
            journal.confirm()
        if self._is_snapshot_due() or (full and journal.replay_bytes > 0):
            self._begin_snapshot()
        if self._extent_copy is None:
            extent = self._extent_to_copy(full)
            if extent is not None:
                self._extent_copy = _ExtentCopy(journal, extent.number)

    # Snapshots.

    def _is_snapshot_due(self) -> bool:
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

    def _continue_snapshot(self) -> None:
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
            # Without the snapshot a restart takes longer. There is no other consequence.
            log.warning("a snapshot was abandoned: %s", error)
            self._writer.abort()
            self._capture.abandon()
        self._capture = self._writer = None

    def last_snapshot(self) -> None:
        """Write a snapshot at a clean stop, so that the next start has nothing to replay."""
        while self._capture is not None:
            self._continue_snapshot()
        self._begin_snapshot()
        while self._capture is not None:
            self._continue_snapshot()

    # Copy-forward.

    def _extent_to_copy(self, full: bool) -> Extent | None:
        live = self._engine.state.live
        candidates = [
            extent
            for extent in self._journal.extents()
            if extent.is_covered_by_snapshots and extent.number in live and extent.number not in self._damaged
        ]
        if not candidates or (len(candidates) < self._policy.copy_extents_min and not full):
            return None
        emptiest = min(candidates, key=lambda extent: live[extent.number] / max(1, extent.used_bytes))
        share = live[emptiest.number] / max(1, emptiest.used_bytes)
        return emptiest if share < (0.9 if full else self._policy.copy_below_share) else None

    def copy_forward(self, builder: GroupBuilder) -> None:
        """Add some live records of the extent that is being copied to the group of this round."""
        extent_copy = self._extent_copy
        if extent_copy is None:
            return
        if extent_copy.extent not in self._engine.state.live:
            # Its last live record was deleted in the meantime, and the extent may have been released.
            self._extent_copy = None
            return
        try:
            extent_copy.has_space = self._copy_some(builder, extent_copy)
        except errors.RecordCorrupt as error:
            # The record and its extent stay: messages that can't be read are never deleted automatically.
            log.error("a stored batch can't be moved: %s", error)
            self._damaged.add(extent_copy.extent)
            self._extent_copy = None

    def _copy_some(self, builder: GroupBuilder, extent_copy: _ExtentCopy) -> bool:
        """Return False if the journal has no space for the next record."""
        locator = RecordLocator(self._engine.state)
        left_bytes = self._policy.copy_round_bytes
        for _ in range(self._policy.copy_round_records):
            head = extent_copy.next()
            if head is None:
                self._extent_copy = None
                return True
            first_offset = locator.offset_of(head)
            if first_offset is None:
                continue
            slot = builder.next_slot(copy_bytes(head.size))
            if slot is None or slot.free_bytes <= 0:
                extent_copy.put_back(head)
                return slot is None
            self._copy(builder, head, first_offset, slot.position)
            left_bytes -= head.size
            if left_bytes <= 0:
                break
        return True

    def _copy(self, builder: GroupBuilder, head: RecordHead, first_offset: int, position: int) -> None:
        wanted = RecordRef(head.position, head.topic_id, head.first_offset, head.size)
        [(payload, checksum)] = self._journal.read([wanted])
        moved = self._engine.move(builder.now_ms, head, first_offset, position)
        builder.add(moved, copy_bytes(head.size))
        builder.add_payload(moved, head.count, checksum, payload)
        self._counters["records_moved"] += 1


class _ExtentCopy:
    """The extent that is being copied, and the records of it that were not looked at yet."""

    def __init__(self, journal: Journal, extent: int) -> None:
        self._journal = journal
        self.extent = extent
        #: False: the disk has no space for even one copy, so the loop need not hurry.
        self.has_space = True
        self._position = 0
        self._heads: deque[RecordHead] = deque()
        self._is_scanned = False

    def next(self) -> RecordHead | None:
        while not self._heads:
            if self._is_scanned:
                return None
            heads, self._position = self._journal.scan(self.extent, self._position, _SCAN_BYTES)
            self._heads.extend(heads)
            self._is_scanned = self._position == 0
        return self._heads.popleft()

    def put_back(self, head: RecordHead) -> None:
        self._heads.appendleft(head)
