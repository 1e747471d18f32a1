"""A broker process for the crash campaigns, on a plain disk or on one that loses unsynced data.

Everything except the disk is the production server: the same loop, the same journal, the same network.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from types import FrameType

from oncemq.broker.network.listeners import Listeners
from oncemq.config.settings import ServeSettings
from oncemq.disk.contract import Disk
from oncemq.disk.os_disk import OsDisk
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.worker import ThreadWorker
from oncemq.server.serve import run
from tests.acceptance.faults.lossy_disk import LossyDisk


def settings_for(folder: str, *urls: str) -> ServeSettings:
    """Return settings for small files, as the flags in processes.py."""
    return ServeSettings(
        listen=urls,
        data=folder,
        segment_bytes=2**20,
        snapshot_bytes=2**20,
        snapshot_events=400,
        batch_bytes_max=256 * 1024,
    )


def run_broker(settings: ServeSettings, loss_seed: int | None, announce: Callable[[Sequence[str]], None]) -> int:
    """Run until SIGTERM, and return the exit code. `loss_seed` None: on a plain disk."""
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    network = Listeners(settings)
    disk: Disk = OsDisk(settings.folder) if loss_seed is None else LossyDisk(settings.folder, loss_seed)
    journal = FileJournal(disk, ThreadWorker(), segment_bytes=settings.segment_bytes)
    return run(journal, network, settings, announce, lambda: stopping)
