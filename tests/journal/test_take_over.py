"""The journal in memory when another broker takes it over."""

from __future__ import annotations

import pytest

from oncemq.journal.contract import Group
from oncemq.journal.memory import MemoryJournal
from oncemq.protocol import errors


def append(journal: MemoryJournal, events: bytes) -> None:
    journal.next_slot(len(events))
    journal.append(Group(1, events, ()))


def written() -> MemoryJournal:
    journal = MemoryJournal(extent_bytes=32 * 1024)
    append(journal, b"first")
    journal.sync()
    return journal


def test_a_take_over_finds_what_was_synced_and_begins_a_term() -> None:
    former = written()
    append(former, b"not synced")
    journal = former.take_over()
    assert (former.term, journal.term) == (0, 1)
    assert [group.events for group in journal.load().groups] == [b"first"]
    append(journal, b"second")
    journal.sync()
    later = journal.take_over()
    assert later.term == 2
    assert [(group.sequence, group.events) for group in later.load().groups] == [(1, b"first"), (2, b"second")]


def test_a_fenced_journal_can_neither_write_nor_answer() -> None:
    former = written()
    append(former, b"not synced")
    journal = former.take_over()
    with pytest.raises(errors.JournalFenced):
        former.sync()
    with pytest.raises(errors.JournalFenced):
        append(former, b"too late")
    with pytest.raises(errors.JournalFenced):
        former.ensure_not_fenced()
    former.close()
    journal.ensure_not_fenced()
    assert [group.events for group in journal.load().groups] == [b"first"]


def test_the_snapshot_of_a_fenced_journal_does_not_count() -> None:
    former = written()
    writer = former.begin_snapshot()
    assert writer is not None
    journal = former.take_over()
    writer.add(b"an old state")
    writer.finish()
    with pytest.raises(errors.JournalFenced):
        former.maintain()
    assert journal.load().snapshot is None
