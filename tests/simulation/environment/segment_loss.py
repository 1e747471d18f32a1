"""Removes a segment as an experiment: recovery must detect the loss. Then the segment is restored."""

from __future__ import annotations

from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.layout import segment_numbers, segment_path
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from tests.simulation.environment.disk import SimDisk


def is_loss_detected(disk: SimDisk, acknowledged: int) -> bool:
    """Remove the newest segment if it contains an acknowledged group, and return whether recovery refuses to start.

    `acknowledged` is the last segment with such a group. The disk must have just lost power, so that no names are
    pending.
    """
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
