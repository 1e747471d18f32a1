"""A broker that shares its journal with others: it waits as a standby, takes over, and waits again when it is fenced.

While it waits it answers every request with STANDBY, so that clients try their next address. When its journal fails, it
answers none of the requests that it has taken: the sockets are closed with everything that is queued on them, and new
ones are opened.

It knows that there is a lease, not how the lease works: see journal/postgres/standby.py.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from oncemq.broker.network import Network
from oncemq.broker.network.listeners import Listeners
from oncemq.config.settings import ServeSettings
from oncemq.journal.contract import Journal
from oncemq.protocol import errors
from oncemq.protocol.frames import encode_not_now

log = logging.getLogger("oncemq.broker")

#: Attempts to take over per duration of a lease.
_ATTEMPTS_PER_LEASE = 10
#: How often a failure that persists is logged.
_LOG_AGAIN_S = 60


class Lease(Protocol):
    """The lease on a journal, as a standby sees it."""

    @property
    def holder(self) -> str:
        """A text that says which broker serves the journal; "" while that is not known."""

    @property
    def active_address(self) -> str:
        """The address of the broker that serves the journal; "" while that is not known."""

    def try_take_over(self) -> Journal | None:
        """Return the journal if no other broker serves it. Raise JournalFailed if that can't be found out now."""

    def close(self) -> None: ...


class Standby:
    """Waits until this broker may serve the journal."""

    def __init__(self, lease: Lease, lease_ms: int, say: Callable[[str], None]) -> None:
        self._lease = lease
        self._attempt_every_s = lease_ms / 1000 / _ATTEMPTS_PER_LEASE
        self._say = say
        self._has_said = False
        #: The failure that was logged last, and when it is logged again.
        self._failure = ""
        self._log_again_s = 0.0

    def wait(self, network: Network, stopping: Callable[[], bool]) -> Journal | None:
        """Return the journal once this broker may serve it, or None if the broker is stopped before."""
        self._has_said, self._failure = False, ""
        while not stopping():
            journal = self._try_take_over()
            if journal is not None:
                return journal
            self.pause(network)
        return None

    def _try_take_over(self) -> Journal | None:
        try:
            journal = self._lease.try_take_over()
        except errors.JournalFailed as failure:
            if failure.text != self._failure or time.monotonic() >= self._log_again_s:
                log.warning("waiting for the journal: %s", failure)
                self._log_again_s = time.monotonic() + _LOG_AGAIN_S
            self._failure = failure.text
            return None
        self._failure = ""
        if journal is None and not self._has_said:
            self._has_said = True
            active = f"{self._lease.active_address} is active" if self._lease.active_address else self._holder()
            self._say(f"OnceMQ waits as a standby: {active}.")
            log.info("waiting as a standby: %s", self._holder())
        return journal

    def _holder(self) -> str:
        if self._failure:
            return "its journal can't be reached"
        return self._lease.holder or "another broker is active"

    def pause(self, network: Network) -> None:
        """Answer requests with STANDBY until the next attempt is due."""
        until_s = time.monotonic() + self._attempt_every_s
        error = errors.Standby(f"this broker waits as a standby: {self._holder()}")
        while (wait_s := until_s - time.monotonic()) > 0:
            for peer, frames in network.take(max(1, round(wait_s * 1000))):
                network.send(peer, encode_not_now(frames, error))


def serve_with_lease(
    settings: ServeSettings,
    listen: Callable[[Sequence[str]], Listeners],
    lease_at: Callable[[str], Lease],
    serve_journal: Callable[[Journal, Listeners], int],
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> int:
    """Serve whenever this broker gets the lease, until it is stopped or something fails permanently. Return the exit
    code. `listen` opens the listeners: at the addresses that they had before, if there are any.

    `serve_journal` is called each time the lease is taken, with a journal and sockets that are used only once. It
    raises JournalFailed when the lease is lost."""
    network = listen(())
    addresses = network.addresses
    lease = lease_at(addresses[0])
    standby = Standby(lease, settings.lease_ms, say)
    try:
        while (journal := standby.wait(network, stopping)) is not None:
            try:
                return serve_journal(journal, network)
            except errors.JournalFailed as failure:
                log.error("stopped before replying: %s", failure)
                if stopping():
                    return failure.exit_code
            network.close()
            with suppress(errors.JournalError):
                journal.close()
            # The state that the broker had loaded is garbage now.
            gc.unfreeze()
            network = listen(addresses)
            # An immediate attempt would fail for the same reason.
            standby.pause(network)
        return 0
    finally:
        network.close()
        lease.close()
