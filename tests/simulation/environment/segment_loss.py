"""A segment that is lost between two incarnation of a broker, as an experiment: it must be missed. Then it is back."""

from __future__ import annotations

from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.layout import segment_numbers, segment_path
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from tests.simulation.environment.disk import SimDisk


def is_loss_detected(disk: SimDisk, acknowledged: int) -> bool:
    """The newest segment is taken away, if an acknowledged group lies in it: `acknowledged` is the last that has one.

    For a disk that has just lost power: names that wait for a sync would be told wrongly."""
    numbers = segment_numbers(disk) if disk.exists("journal.meta") else []
    if not numbers or numbers[-1] != acknowledged:
        return True
    with disk.without(segment_path(acknowledged)):
        try:
            for _ in FileJournal(disk, InlineWorker()).load().groups:
                pass
        except errors.JournalCorrupt:
            return True
    return False
