"""`oncemq serve`: a broker as a process of its own."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

from oncemq.broker.clock import SystemClock
from oncemq.broker.housekeeping import Policy
from oncemq.broker.loop import Broker
from oncemq.broker.network import ZmqNetwork
from oncemq.broker.standby import Lease, serve_with_lease
from oncemq.config.settings import ServeSettings
from oncemq.engine.engine import ApplyFailed
from oncemq.journal.contract import Journal
from oncemq.protocol import errors
from oncemq.server.serve_gateways import gateways_beside
from oncemq.server.supervisor import Supervisor

log = logging.getLogger("oncemq.broker")


class _StopSignal:
    """Set by SIGTERM or SIGINT; the loop looks at it between rounds."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = number


def serve(settings: ServeSettings, announce: Callable[[str], None], say: Callable[[str], None]) -> int:
    """Run a broker until a signal ends it; returns the exit code.

    SIGTERM and SIGINT end it cleanly: what was taken in is answered, a snapshot is left behind. A write or
    sync that failed ends it at once, without an answer; on a database, it waits for its next turn. `announce` is told
    each address when it serves there, `say` whatever else people want to know."""
    if sys.platform not in ("linux", "darwin"):
        raise errors.SettingInvalid("the broker runs on Linux (macOS: best effort); clients run anywhere")
    stop = _StopSignal()
    beside = gateways_beside(settings, say, lambda: bool(stop.number))

    def serve_journal(journal: Journal, network: ZmqNetwork) -> int:
        try:
            return run_turn(journal, network, settings, announce, lambda: bool(stop.number), beside)
        finally:
            beside.end()

    if settings.is_on_database:
        return serve_with_lease(settings, partial(_lease, settings), serve_journal, lambda: bool(stop.number), say)
    network = ZmqNetwork(settings.listen, settings.batch_bytes_max)
    try:
        return _to_the_end(partial(serve_journal, _open_files(settings), network))
    finally:
        network.close()


def _open_files(settings: ServeSettings) -> Journal:
    from oncemq.journal.files.journal import open_files

    return open_files(settings.folder, segment_bytes=settings.segment_bytes)


def _lease(settings: ServeSettings, address: str) -> Lease:
    from oncemq.journal.postgres.standby import PostgresStandby

    return PostgresStandby(
        settings.journal, lease_ms=settings.lease_ms, extent_bytes=settings.segment_bytes, address=address
    )


def run(
    journal: Journal,
    network: ZmqNetwork,
    settings: ServeSettings,
    announce: Callable[[str], None],
    stopping: Callable[[], bool],
) -> int:
    """A broker that is set up, on a journal that is its own; returns the exit code."""
    return _to_the_end(partial(run_turn, journal, network, settings, announce, stopping))


def _to_the_end(serve_journal: Callable[[], int]) -> int:
    try:
        return serve_journal()
    except errors.JournalFailed as failure:
        log.critical("stopped without an answer: %s", failure)
        return failure.exit_code


def run_turn(
    journal: Journal,
    network: ZmqNetwork,
    settings: ServeSettings,
    announce: Callable[[str], None],
    stopping: Callable[[], bool],
    beside: Supervisor | None = None,
) -> int:
    """From recovery to the end. Raises JournalFailed: then what was in hand was not answered."""
    beside = beside or Supervisor()
    broker = _recover(journal, network, settings)
    for address in network.addresses:
        announce(address)
    beside.start(network.addresses[0])
    try:
        while not (stopping() and beside.has_drained()):
            broker.run_once(broker.wait_ms())
        log.info("stopping: answering what is in hand, then a snapshot")
        broker.stop()
    except ApplyFailed as failure:
        log.critical("stopped without an answer: %s", failure)
        return errors.JournalFailed.exit_code
    return 0


def _recover(journal: Journal, network: ZmqNetwork, settings: ServeSettings) -> Broker:
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
    return broker
