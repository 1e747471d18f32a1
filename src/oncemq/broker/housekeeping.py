"""Work between rounds, in small steps: snapshots, copy-forward, and the release of extents that are not needed.

Copy-forward frees an extent that holds few live records: these records are appended again as ordinary events, and the
next release recycles the extent. It scans the extent itself for records, so that no map from extents to batches has to
be kept. Only if the scan misses live records, because their group is damaged, does it search the whole index for them.

A step takes time that the requests of this round and of the next one wait for. So a round that has recorded something
for requests does about as much for housekeeping as for them, and a step of full size is left to rounds without events.
"""

from __future__ import annotations

import logging
from collections import Counter, deque

import msgspec

from oncemq.broker.group_builder import GroupBuilder, copy_bytes
from oncemq.engine.engine import Engine
from oncemq.engine.record_locator import ExtentSearch, RecordLocator
from oncemq.engine.snapshot.capture import CHUNK_ENTITIES, Capture
from oncemq.journal.contract import Extent, Journal, RecordHead, RecordRef, SnapshotWriter
from oncemq.protocol import errors

log = logging.getLogger("oncemq.broker")

#: Maximum bytes of an extent that one scan reads.
_SCAN_BYTES = 1024 * 1024
#: Maximum entries of the index that one round searches.
_SEARCH_ENTRIES = 20_000
#: Records and bytes that a round may copy, and entities that it may add to a snapshot, however little it has recorded.
BUSY_COPY_RECORDS = 20
BUSY_COPY_BYTES = 16 * 1024
BUSY_ENTITIES = 20


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
        #: Extents with a record that can't be read. They are not copied again until the next start, and are released
        #: when nothing in them is needed.
        self._damaged: set[int] = set()
        self.next_look_ms = 0

    @property
    def busy(self) -> bool:
        return self._capture is not None or (self._extent_copy is not None and self._extent_copy.has_space)

    def after_round(self, builder: GroupBuilder) -> None:
        """Continue with a snapshot, and look regularly for other work. Everything is synced at this point."""
        self._events += len(builder.events)
        if self._capture is not None:
            events = len(builder.events)
            self._continue_snapshot(min(CHUNK_ENTITIES, max(events, BUSY_ENTITIES)) if events else CHUNK_ENTITIES)
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
                self._extent_copy = _ExtentCopy(journal, self._engine, extent.number)

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

    def _continue_snapshot(self, entities_max: int = CHUNK_ENTITIES) -> None:
        assert self._capture is not None
        assert self._writer is not None
        chunk = self._capture.chunk(entities_max)
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
            # Its last live record was moved or deleted, and the extent may have been released.
            self._end_copy(extent_copy)
            return
        extent_copy.has_space = self._copy_some(builder, extent_copy)

    def _copy_some(self, builder: GroupBuilder, extent_copy: _ExtentCopy) -> bool:
        """Return False if the journal has no space for the next record."""
        locator = RecordLocator(self._engine.state)
        left_bytes, left_records = self._policy.copy_round_bytes, self._policy.copy_round_records
        if builder.events:
            left_bytes = min(left_bytes, max(builder.record_bytes(), BUSY_COPY_BYTES))
            left_records = min(left_records, max(len(builder.events), BUSY_COPY_RECORDS))
        for _ in range(left_records):
            head = extent_copy.next()
            if head is None:
                if extent_copy.is_over:
                    self._end_copy(extent_copy)
                return True
            first_offset = locator.offset_of(head)
            if first_offset is None:
                continue
            slot = builder.next_slot(copy_bytes(head.size))
            if slot is None or slot.free_bytes <= 0:
                extent_copy.put_back(head)
                return slot is None
            try:
                self._copy(builder, head, first_offset, slot.position)
            except errors.RecordCorrupt as error:
                # The next one waits for the next round, since reading from a failing disk may take long.
                extent_copy.skip(head, error)
                return True
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

    def _end_copy(self, extent_copy: _ExtentCopy) -> None:
        self._extent_copy = None
        self._counters["extents_damaged"] += extent_copy.is_damaged
        self._counters["records_unreadable"] += len(extent_copy.unreadable)
        if extent_copy.extent in self._engine.state.live:
            # Messages that can't be read are never deleted automatically.
            self._damaged.add(extent_copy.extent)
        if extent_copy.is_damaged:
            log.error("%s", extent_copy.report())


class _ExtentCopy:
    """The extent that is being copied, and the records of it that were not looked at yet."""

    def __init__(self, journal: Journal, engine: Engine, extent: int) -> None:
        self._journal = journal
        self._engine = engine
        self.extent = extent
        #: False: the disk has no space for even one copy, so the loop need not hurry.
        self.has_space = True
        #: All records were returned.
        self.is_over = False
        #: Positions of live records that could not be read.
        self.unreadable: set[int] = set()
        self._damage = ""
        self._position = 0
        self._heads: deque[RecordHead] = deque()
        self._is_scanned = False
        self._search: ExtentSearch | None = None

    @property
    def is_damaged(self) -> bool:
        return self._search is not None

    def next(self) -> RecordHead | None:
        """Return the next record. None: all were returned, or the search for more continues in the next round."""
        while not self._heads and not self._is_scanned:
            self._scan()
        if not self._heads and not self.is_over:
            self._search_index()
        return self._heads.popleft() if self._heads else None

    def _scan(self) -> None:
        try:
            heads, self._position = self._journal.scan(self.extent, self._position, _SCAN_BYTES)
        except errors.RecordCorrupt as error:
            self._note(error)
            heads, self._position = [], 0
        self._heads.extend(heads)
        self._is_scanned = self._position == 0

    def _search_index(self) -> None:
        """Find the live records that the scan has missed, because their group is damaged."""
        if self._search is None:
            if self.extent not in self._engine.state.live:
                self.is_over = True
                return
            self._search = ExtentSearch(self._engine.state, self.extent)
        heads = self._search.next_heads(_SEARCH_ENTRIES)
        self._heads.extend(head for head in heads if head.position not in self.unreadable)
        self.is_over = self._search.is_over and not self._heads

    def skip(self, head: RecordHead, error: errors.RecordCorrupt) -> None:
        """Leave a record that can't be read where it is."""
        self.unreadable.add(head.position)
        self._note(error)

    def _note(self, error: errors.RecordCorrupt) -> None:
        self._damage = self._damage or error.text

    def report(self) -> str:
        """Return what is damaged, and what the consequence is."""
        if not self.unreadable:
            return f"extent {self.extent} of the journal has damaged groups; all messages in them were read and moved"
        return (
            f"extent {self.extent} of the journal is damaged: {len(self.unreadable)} batches in it can't be read, and "
            f"its space is not used again while they are needed. The first one: {self._damage}"
        )

    def put_back(self, head: RecordHead) -> None:
        self._heads.appendleft(head)
