"""`oncemq serve`: a broker as a process of its own."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable
from types import FrameType

from oncemq import errors
from oncemq.broker.broker import Broker
from oncemq.broker.clock import SystemClock
from oncemq.broker.housekeeping import Policy
from oncemq.broker.network import ZmqNetwork
from oncemq.config import ServeSettings
from oncemq.engine.engine import ApplyFailed
from oncemq.journal.contract import Journal

log = logging.getLogger("oncemq.broker")


class _StopSignal:
    """Set by SIGTERM or SIGINT; the loop looks at it between rounds."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = number


def serve(settings: ServeSettings, announce: Callable[[str], None]) -> int:
    """Run a broker until a signal ends it; returns the exit code.

    SIGTERM and SIGINT end it cleanly: what was taken in is answered, a snapshot is left behind. A write or
    sync that failed ends it at once, without an answer."""
    stop = _StopSignal()
    network = ZmqNetwork(settings.listen, settings.batch_bytes_max)
    try:
        return run(_open(settings), network, settings, announce, lambda: bool(stop.number))
    finally:
        network.close()


def _open(settings: ServeSettings) -> Journal:
    if sys.platform not in ("linux", "darwin"):
        raise errors.SettingInvalid("the broker runs on Linux (macOS: best effort); clients run anywhere")
    from oncemq.journal.files import open_files

    return open_files(settings.folder, segment_bytes=settings.segment_bytes)


def run(
    journal: Journal,
    network: ZmqNetwork,
    settings: ServeSettings,
    announce: Callable[[str], None],
    stopping: Callable[[], bool],
) -> int:
    """The loop of a broker that is set up."""
    policy = Policy(snapshot_bytes=settings.snapshot_bytes, snapshot_events=settings.snapshot_events)
    broker = Broker(journal, network, SystemClock(), settings.limits, policy)
    for warning in getattr(journal, "warnings", ()):
        log.warning("%s", warning)
    log.info(
        "recovered %d topics and %d sessions from %s, replaying %d groups",
        len(broker.engine.state.topics),
        len(broker.engine.state.sessions),
        journal.describe(),
        broker.counters["groups_replayed"],
    )
    # What was just loaded lives long: keep the garbage collector from walking it again and again.
    gc.collect()
    gc.freeze()
    for address in network.addresses:
        announce(address)
    try:
        while not stopping():
            broker.run_once(broker.wait_ms())
        log.info("stopping: answering what is in hand, then a snapshot")
        broker.stop()
    except (errors.JournalFailed, ApplyFailed) as failure:
        log.critical("stopped without an answer: %s", failure)
        return errors.JournalFailed.exit_code
    return 0
