"""One life of a broker for the crash campaign, on a plain disk or on one that loses what was not synced.

Everything but the disk is the production server: same loop, same journal, same network.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable
from types import FrameType

from oncemq.broker.network import ZmqNetwork
from oncemq.config.settings import ServeSettings
from oncemq.disk.contract import Disk
from oncemq.disk.os_disk import OsDisk
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.worker import ThreadWorker
from oncemq.server.serve import run
from tests.acceptance.shim_disk import ShimDisk


def settings_for(folder: str, url: str) -> ServeSettings:
    """The same small files that the flags in processes.py make."""
    return ServeSettings(
        listen=(url,),
        data=folder,
        segment_bytes=2**20,
        snapshot_bytes=2**20,
        snapshot_events=400,
        batch_bytes_max=256 * 1024,
    )


def live(settings: ServeSettings, shim_seed: int | None, announce: Callable[[str], None]) -> int:
    """Until SIGTERM; returns the exit code. `shim_seed` None: on a plain disk."""
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    network = ZmqNetwork(settings.listen, settings.batch_bytes_max)
    disk: Disk = OsDisk(settings.folder) if shim_seed is None else ShimDisk(settings.folder, shim_seed)
    journal = FileJournal(disk, ThreadWorker(), segment_bytes=settings.segment_bytes)
    return run(journal, network, settings, announce, lambda: stopping)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="on a disk that loses nothing")
    arguments = parser.parse_args()
    seed = None if arguments.plain else arguments.seed
    announce: Callable[[str], None] = lambda address: print(address, flush=True)  # noqa: E731, T201
    return live(settings_for(arguments.data, arguments.listen), seed, announce)


if __name__ == "__main__":
    sys.exit(main())
