"""Reads of a running broker that the disk answers with an error."""

from __future__ import annotations

import pytest

from oncemq.protocol import errors
from tests.journal.rig import new_journal, write


@pytest.mark.parametrize("failures", [1, 2])
def test_a_read_that_fails_for_a_moment_is_repeated(failures: int) -> None:
    disk, journal = new_journal()
    refs = write(journal, [b"one", b"two"])
    disk.fail_reads(failures)
    assert [payload for payload, _ in journal.read(refs)] == [b"one", b"two"]


def test_a_read_that_keeps_failing_is_reported_as_damage_and_nothing_else_stops() -> None:
    disk, journal = new_journal()
    refs = write(journal, [b"one"])
    disk.fail_reads(100)
    with pytest.raises(errors.RecordCorrupt, match="can't be read"):
        journal.read(refs)
    disk.fail_reads(0)
    assert journal.read(refs)[0][0] == b"one"
