"""`oncemq serve`: runs a broker as a process of its own."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from oncemq.auth.tokens import new_token
from oncemq.broker.clock import SystemClock
from oncemq.broker.housekeeping import Policy
from oncemq.broker.loop import Broker
from oncemq.broker.network.listeners import Listeners
from oncemq.broker.security.security import Security
from oncemq.broker.standby import Lease, serve_with_lease
from oncemq.config.allocator import keep_freed_memory
from oncemq.config.settings import ServeSettings
from oncemq.engine.engine import ApplyFailed
from oncemq.journal.contract import Journal
from oncemq.net.descriptors import raise_limit
from oncemq.protocol import errors
from oncemq.server.encryption import Encryption
from oncemq.server.security import make_security, status_reported
from oncemq.server.serve_gateways import gateway_supervisor
from oncemq.server.supervisor import Supervisor

log = logging.getLogger("oncemq.broker")


class _StopSignal:
    """Set by SIGTERM or SIGINT. The loop checks it between rounds."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = number

    def is_set(self) -> bool:
        return bool(self.number)


class _HangUpSignal:
    """Set by SIGHUP: users, certificates and keys are read again."""

    def __init__(self) -> None:
        self._is_set = False
        signal.signal(signal.SIGHUP, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._is_set = True

    def take(self) -> bool:
        is_set, self._is_set = self._is_set, False
        return is_set


def serve(settings: ServeSettings, announce: Callable[[Sequence[str]], None], say: Callable[[str], None]) -> int:
    """Run a broker until a signal ends it. Return the exit code.

    SIGTERM and SIGINT end it cleanly: it answers the requests that it has taken and writes a snapshot. A failed write
    or sync ends it immediately, without an answer; with a database, it waits as a standby again. `announce` is called
    with the addresses when the broker serves there, and `say` with other texts for the user."""
    if sys.platform not in ("linux", "darwin"):
        raise errors.SettingInvalid("the broker runs on Linux (macOS: best effort); clients run anywhere")
    raise_limit()
    keep_freed_memory()
    stop, hang_up = _StopSignal(), _HangUpSignal()
    token = new_token()
    encryption = Encryption(settings)
    try:
        security = make_security(settings, token, encryption)
        gateways = gateway_supervisor(settings, say, stop.is_set, token)
        return _serve(settings, announce, say, stop, hang_up, security, encryption, gateways)
    finally:
        encryption.close()


def _serve(
    settings: ServeSettings,
    announce: Callable[[Sequence[str]], None],
    say: Callable[[str], None],
    stop: _StopSignal,
    hang_up: _HangUpSignal,
    security: Security,
    encryption: Encryption,
    gateways: Supervisor,
) -> int:

    def reload() -> None:
        if hang_up.take():
            security.reload()
            gateways.hang_up()

    def serve_journal(journal: Journal, network: Listeners) -> int:
        try:
            return run_broker(
                journal,
                network,
                settings,
                announce,
                stop.is_set,
                gateways,
                security,
                between=reload,
                gateway_url=encryption.gateway_url,
            )
        finally:
            gateways.end()

    if settings.is_on_database:
        listen = partial(encryption.open, security, say)
        return serve_with_lease(settings, listen, partial(_postgres_lease, settings), serve_journal, stop.is_set, say)
    from oncemq.journal.files.journal import open_files

    network = encryption.open(security, say)
    try:
        with network.own_growth():
            journal = open_files(settings.folder, segment_bytes=settings.segment_bytes)
        with status_reported(settings, security):
            return _exit_code(partial(serve_journal, journal, network))
    finally:
        network.close()


def _postgres_lease(settings: ServeSettings, address: str) -> Lease:
    from oncemq.journal.postgres.standby import PostgresStandby

    return PostgresStandby(
        settings.journal, lease_ms=settings.lease_ms, extent_bytes=settings.segment_bytes, address=address
    )


def run(
    journal: Journal,
    network: Listeners,
    settings: ServeSettings,
    announce: Callable[[Sequence[str]], None],
    stopping: Callable[[], bool],
) -> int:
    """Run a broker without gateways, on a journal that has no other writer. Return the exit code."""
    return _exit_code(partial(run_broker, journal, network, settings, announce, stopping))


def _exit_code(serve_journal: Callable[[], int]) -> int:
    try:
        return serve_journal()
    except errors.JournalFailed as failure:
        log.critical("stopped before replying: %s", failure)
        return failure.exit_code


def run_broker(
    journal: Journal,
    network: Listeners,
    settings: ServeSettings,
    announce: Callable[[Sequence[str]], None],
    stopping: Callable[[], bool],
    gateways: Supervisor | None = None,
    security: Security | None = None,
    between: Callable[[], None] = lambda: None,
    gateway_url: str = "",
) -> int:
    """Recover, and serve until the broker is stopped. `between` is called after each round. Gateways connect to
    `gateway_url`, or to the first address. Raise JournalFailed; then the requests of the last round were not
    answered."""
    gateways = gateways or Supervisor()
    broker = _recover(journal, network, settings, security)
    if security is not None and settings.is_on_database:
        # A standby has read its users when it was started.
        security.reload()
    announce(network.addresses)
    gateways.start(gateway_url or network.addresses[0])
    try:
        while not (stopping() and gateways.has_drained()):
            broker.run_once(broker.wait_ms())
            between()
        log.info("stopping: answering open requests, then writing a snapshot")
        broker.stop()
    except ApplyFailed as failure:
        log.critical("stopped before replying: %s", failure)
        return errors.JournalFailed.exit_code
    return 0


def _recover(journal: Journal, network: Listeners, settings: ServeSettings, security: Security | None) -> Broker:
    policy = Policy(snapshot_bytes=settings.snapshot_bytes, snapshot_events=settings.snapshot_events)
    with network.own_growth():
        broker = Broker(
            journal,
            network,
            SystemClock(),
            settings.limits,
            policy,
            trust_clock=settings.trust_clock,
            security=security,
        )
    network.set_held_bytes(lambda: broker.waiting_bytes)
    # The guard of the connections counts at the same time.
    broker.counters.update(network.counters.counts.copy())
    network.counters.counts = broker.counters
    for warning in getattr(journal, "warnings", ()):
        log.warning("%s", warning)
    log.info(
        "recovered %d topics and %d sessions from %s, replaying %d groups",
        len(broker.engine.state.topics),
        len(broker.engine.state.sessions),
        journal.describe(),
        broker.counters["groups_replayed"],
    )
    # The recovered state lives long: the garbage collector need not traverse it again and again.
    gc.collect()
    gc.freeze()
    return broker
