"""Removes a segment as an experiment: recovery or `journal check` must detect it. Then the segment is restored."""

from __future__ import annotations

from collections import Counter

from oncemq.broker.offline.check import check
from oncemq.broker.recovery import recover
from oncemq.disk.overlay import OverlayDisk
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.layout import segment_numbers, segment_path
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from oncemq.protocol.limits import Limits
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


def wrong_check(disk: SimDisk, choice: int) -> str:
    """Return what `journal check` gets wrong, before and after one of the segments is removed; "" if all is right. The
    disk must have just lost power."""
    if not disk.exists("journal.meta"):
        return ""
    report = check(disk)
    if not report.is_good:
        return f"`journal check` reports damage, though no synced byte was damaged: {report}"
    live = recover(FileJournal(OverlayDisk(disk), InlineWorker()), Limits(), Counter()).state.live
    numbers = [number for number in segment_numbers(disk) if number in live]
    if not numbers:
        return ""
    number = numbers[choice % len(numbers)]
    with disk.without(segment_path(number)):
        if check(disk).is_good:
            return f"lost: segment {number} was removed, and `journal check` did not detect it"
    return ""
