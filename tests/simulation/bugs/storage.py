"""Planted bugs in the broker's loop, its housekeeping, and the journal. Omitted syncs are in registry.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oncemq.broker import clock, loop, round
from oncemq.broker.group_builder import GroupBuilder, copy_bytes
from oncemq.broker.housekeeping import Housekeeping
from oncemq.broker.loop import Broker
from oncemq.broker.offline import check as journal_check
from oncemq.engine.engine import Engine
from oncemq.journal.contract import GROUP_HEADER_BYTES, RecordHead
from oncemq.journal.files import group as group_module
from oncemq.journal.files import record_reader
from oncemq.journal.files import recovery as recovery_module
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.layout import Layout
from oncemq.journal.files.recovery import Recovery
from oncemq.journal.files.scan import Segment
from tests.simulation.bugs.registry import Patch, bug

# The broker.


@bug("replies are sent before the sync")
def reply_before_the_sync() -> Sequence[Patch]:
    def run_once(self: Broker, wait_ms: int = 0) -> None:
        self._receive(wait_ms)
        builder = GroupBuilder(self.journal, self.clock.now_ms(), self.limits.group_bytes_max)
        finished, _ = self._decide(builder)
        if builder.events:
            self.journal.append(builder.build())
        for request in finished:
            self.network.send(request.peer, request.encode_response(self.reader))
        if builder.events:
            self.journal.sync()
        self._after_round(builder)

    return [(Broker, "run_once", run_once)]


@bug("a payload that was damaged in transit is stored")
def damaged_payload_is_stored() -> Sequence[Patch]:
    class Anything(int):
        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    return [(round, "checksum", lambda _payload: Anything())]


@bug("a leap of the clock is believed, although nobody has confirmed it")
def leap_of_the_clock_is_believed() -> Sequence[Patch]:
    def start(at: clock.Clock, recorded_ms: int, leap_ms_max: int, *, is_trusted: bool) -> int:
        return clock.start_clock(at, recorded_ms, leap_ms_max, is_trusted=True)

    return [(loop, "start_clock", start)]


@bug("a snapshot is started at one group and contains the state of a later one")
def snapshot_is_ahead_of_its_group() -> Sequence[Patch]:
    real_after: Any = Housekeeping.after_round

    def begin(self: Housekeeping) -> None:
        if self._capture is None and self._writer is None:
            self._writer = self._journal.begin_snapshot()

    def after_round(self: Housekeeping, builder: GroupBuilder) -> None:
        if self._writer is not None and self._capture is None and builder.events:
            self._capture = self._engine.capture()
            self._events = 0
        real_after(self, builder)

    return [(Housekeeping, "_begin_snapshot", begin), (Housekeeping, "after_round", after_round)]


@bug("copy-forward records a move without copying the batch")
def copy_forward_drops_the_batch() -> Sequence[Patch]:
    def copy(self: Housekeeping, builder: GroupBuilder, head: RecordHead, first_offset: int, position: int) -> None:
        moved = self._engine.move(builder.now_ms, head, first_offset, position)
        builder.add(moved, copy_bytes(head.size))

    return [(Housekeeping, "_copy", copy)]


@bug("copy-forward treats a live batch as dead, and its segment is deleted")
def copy_forward_forgets_live_batches() -> Sequence[Patch]:
    def copy(self: Housekeeping, _builder: GroupBuilder, head: RecordHead, _first_offset: int, _position: int) -> None:
        self._engine.state.count_dead(head.position, head.size)

    return [(Housekeeping, "_copy", copy)]


# The journal.


@bug("segments are deleted although a replay from a snapshot still needs them")
def release_ignores_snapshots() -> Sequence[Patch]:
    def is_covered(self: FileJournal, number: int) -> bool:
        return number != self._segments.active

    return [(FileJournal, "_is_covered", is_covered)]


@bug("segments are deleted although their messages are needed")
def release_ignores_the_index() -> Sequence[Patch]:
    real: Any = FileJournal.release

    def release(self: FileJournal, _live: Mapping[int, int]) -> None:
        real(self, {})

    return [(FileJournal, "release", release)]


@bug("a read that fails is not repeated")
def read_is_not_repeated() -> Sequence[Patch]:
    return [(record_reader, "READ_TRIES", 1)]


@bug("the checksums of groups are not checked")
def torn_group_is_accepted() -> Sequence[Patch]:
    def decode(data: bytes, at: int, position: int, layout: Layout, _check: bool = True) -> group_module.DecodedGroup:
        opening = data[at : at + GROUP_HEADER_BYTES]
        if opening[:8] != group_module.MAGIC or int.from_bytes(opening[16:24], "little") != position:
            raise group_module.BadGroup
        _, sequence, _, time_ms, records_bytes, events_bytes, count, _, _ = group_module._HEAD.unpack_from(opening)
        events_at = at + GROUP_HEADER_BYTES + records_bytes
        end = events_at + events_bytes
        records = group_module._records(data, at + GROUP_HEADER_BYTES, events_at, position - at, count)
        events = data[events_at:end]
        return group_module.DecodedGroup(position, sequence, time_ms, events, records, layout.padded(end - at))

    return [(recovery_module, "decode", decode)]


@bug("the checksums of payloads are not checked in recovery")
def torn_payload_is_accepted() -> Sequence[Patch]:
    def check(*_: object) -> None: ...

    return [(group_module, "_check_payloads", check)]


@bug("the old content of a recycled segment is treated as new")
def recycled_segment_is_read_as_new() -> Sequence[Patch]:
    real: Any = group_module.decode

    def good_groups(self: Recovery, segment: Segment) -> Iterator[Any]:
        data = segment.data
        while True:
            position = int.from_bytes(data[self.at + 16 : self.at + 24], "little")
            try:
                group = real(data, self.at, position, self._layout)
            except group_module.BadGroup:
                return
            self.last = recovery_module.LastGroup(self.number, group, data, self.at)
            self.sequence += 1
            self.at += group.size
            self.time_ms = group.time_ms
            self.replayed_bytes += group.size
            yield group

    return [(Recovery, "_good_groups", good_groups)]


@bug("a bad group ends recovery even if good groups follow it")
def damage_is_taken_for_the_end() -> Sequence[Patch]:
    def start(self: Recovery, sequence: int, position: int) -> None:
        real(self, sequence, position)
        self._half = True  # type: ignore[attr-defined]

    real: Any = Recovery.start
    real_groups: Any = Recovery._good_groups

    def good_groups(self: Recovery, segment: Segment) -> Iterator[Any]:
        for count, group in enumerate(real_groups(self, segment)):
            yield group
            if count == 40:
                return

    def check_end(_self: Recovery, _segment: Segment) -> None: ...

    return [(Recovery, "start", start), (Recovery, "_good_groups", good_groups), (Recovery, "_check_end", check_end)]


@bug("`journal check` does not read the messages")
def check_reads_no_messages() -> Sequence[Patch]:
    def lost_batches(*_: object) -> Iterator[journal_check.LostBatch]:
        return iter(())

    return [(journal_check, "_lost_batches", lost_batches)]


@bug("live records are not counted when a state is restored")
def restored_state_forgets_live_bytes() -> Sequence[Patch]:
    real: Any = Engine.restore

    def restore(self: Engine, chunks: Any) -> None:
        real(self, chunks)
        for extent in list(self.state.live)[:1]:
            del self.state.live[extent]

    return [(Engine, "restore", restore)]
