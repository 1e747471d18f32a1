"""`journal check` and `journal cut`: what a broker would find in a folder. Both run its own recovery on a view of the
disk (disk/overlay.py), and then read every record that the recovered state needs.

`check` also verifies everything else that the files hold (journal/files/check.py). `cut` refuses a position if a broker
could not start afterwards, or would miss messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from oncemq.broker.recovery import recover
from oncemq.disk.contract import Disk
from oncemq.disk.overlay import OverlayDisk
from oncemq.engine.engine import Engine
from oncemq.engine.snapshot.relocation import NeededRecord, needed_records
from oncemq.journal.contract import Journal, RecordRef
from oncemq.journal.files.check import Report, locked_if_possible
from oncemq.journal.files.check import check as check_files
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.layout import segment_path
from oncemq.journal.files.scan import Problem, Progress, open_layout
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from oncemq.protocol.limits import Limits

#: Records that are read together.
_READ_RECORDS = 256
_READ_BYTES = 4 * 1024 * 1024
#: The two halves of the work have the same share of its progress.
_PART = 1000


class LostBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch that the state needs and that can't be read."""

    record: NeededRecord
    #: Empty if the topic was deleted.
    topic: str
    reason: str


class Examination(msgspec.Struct):
    """What a broker would find."""

    #: Why it would refuse to start; empty if it would start.
    refusal: str = ""
    lost: list[LostBatch] = msgspec.field(default_factory=list)

    @property
    def lost_messages(self) -> int:
        return sum(batch.record.count for batch in self.lost)


def check(disk: Disk, progress: Progress | None = None) -> Report:
    """Verify everything, without changing anything. Raise JournalError, JournalLocked or JournalVersion."""
    layout = open_layout(disk)
    notes: list[str] = []
    with locked_if_possible(disk, notes.append):
        report = check_files(disk, part_of(progress, 0))
        examination = examine(OverlayDisk(disk), part_of(progress, 1))
    report.notes[:0] = notes
    report.refusal = examination.refusal
    report.lost_batches = len(examination.lost)
    report.lost_messages = examination.lost_messages
    report.problems += _lost_problems(examination.lost, layout.segment_bytes)
    return report


def part_of(progress: Progress | None, part: int) -> Progress | None:
    """Return the progress of the first or second half of the work."""
    if progress is None:
        return None
    return lambda done, total: progress(part * _PART + _PART * done // max(1, total), 2 * _PART)


def examine(view: OverlayDisk, progress: Progress | None = None) -> Examination:
    """Recover the state from a view of a journal, and read all records that the state needs."""
    examination = Examination()
    try:
        journal = FileJournal(view, InlineWorker())
        engine = recover(journal, Limits(), Counter())
    except errors.JournalVersion:
        raise
    except errors.JournalError as error:
        examination.refusal = error.text
        return examination
    try:
        examination.lost += _lost_batches(journal, engine, progress)
    finally:
        journal.close()
    return examination


def _lost_batches(journal: Journal, engine: Engine, progress: Progress | None) -> Iterator[LostBatch]:
    names = {topic.id: topic.name for topic in engine.state.topics.values()}
    capture = engine.capture()
    needed = sorted(needed_records(iter(capture.chunk, None)), key=lambda record: record.position)
    done = 0
    for records in _runs(needed):
        for record, reason in _unreadable(journal, records):
            yield LostBatch(record, names.get(record.topic_id, ""), reason)
        done += len(records)
        if progress is not None:
            progress(done, len(needed))


def _runs(needed: Sequence[NeededRecord]) -> Iterator[Sequence[NeededRecord]]:
    first = size = 0
    for index, record in enumerate(needed):
        if index - first >= _READ_RECORDS or size >= _READ_BYTES:
            yield needed[first:index]
            first, size = index, 0
        size += record.size
    if needed:
        yield needed[first:]


def _unreadable(journal: Journal, records: Sequence[NeededRecord]) -> Iterator[tuple[NeededRecord, str]]:
    wanted = [RecordRef(one.position, one.topic_id, one.first_offset, one.size) for one in records]
    try:
        journal.read(wanted)
        return
    except errors.RecordCorrupt:
        # One of them is damaged.
        pass
    for record, ref in zip(records, wanted, strict=True):
        try:
            journal.read([ref])
        except errors.RecordCorrupt as error:
            yield record, error.text


def _lost_problems(lost: Sequence[LostBatch], segment_bytes: int) -> Iterator[Problem]:
    """Return one problem for each topic in each segment."""
    groups: dict[tuple[int, int], list[LostBatch]] = {}
    for batch in lost:
        groups.setdefault((batch.record.position // segment_bytes, batch.record.topic_id), []).append(batch)
    for (number, _), batches in groups.items():
        first = batches[0]
        position = first.record.position
        what = f"{_describe(batches)} can't be read: {first.reason}"
        yield Problem(segment_path(number), position % segment_bytes, position, what)


def _describe(batches: Sequence[LostBatch]) -> str:
    """Describe batches of one topic."""
    offsets = [(one.record.first_offset, one.record.count) for one in batches if one.record.first_offset >= 0]
    messages = sum(batch.record.count for batch in batches)
    topic = f"topic '{batches[0].topic}'" if batches[0].topic else f"topic {batches[0].record.topic_id:x}"
    texts = []
    if offsets:
        last, count = max(offsets)
        texts.append(f"offsets {min(offsets)[0]} to {last + count - 1}")
    if len(offsets) < len(batches):
        texts.append("delayed or staged")
    noun = "message" if messages == 1 else "messages"
    return f"{messages} {noun} of {topic} ({', '.join(texts)})"
