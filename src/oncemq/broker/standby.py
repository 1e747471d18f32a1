"""A broker whose journal another one may serve: it waits as a standby, takes over, and waits again when it is replaced.

While it waits it answers every request with STANDBY, so that clients go on to their next address. When its journal
fails, it answers nothing of what it had in hand: the sockets go with everything that was queued on them, and all is
made anew.

Knows that there is a lease to be had, not what it is: see journal/postgres/standby.py.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from oncemq.broker.network import Network, ZmqNetwork
from oncemq.config.settings import ServeSettings
from oncemq.journal.contract import Journal
from oncemq.protocol import errors
from oncemq.protocol.frames import encode_not_now

log = logging.getLogger("oncemq.broker")

#: So often within a lease a standby looks whether it may take over.
_LOOKS_PER_LEASE = 10
#: A trouble that stays is logged so often.
_SAY_AGAIN_S = 60


class Lease(Protocol):
    """How a standby gets its turn."""

    @property
    def holder(self) -> str:
        """That somebody serves the journal, and who, for people; "" as long as that is not known."""

    @property
    def active_address(self) -> str:
        """Where clients find whoever serves it; "" as long as that is not known."""

    def try_take_over(self) -> Journal | None:
        """The journal, if nobody else serves it. Raises JournalFailed if that can't be found out now."""

    def close(self) -> None: ...


class Standby:
    """Waits for its turn."""

    def __init__(self, lease: Lease, lease_ms: int, say: Callable[[str], None]) -> None:
        self._lease = lease
        self._look_s = lease_ms / 1000 / _LOOKS_PER_LEASE
        self._say = say
        self._has_said = False
        #: What was logged last, and when it is to be logged again.
        self._trouble = ""
        self._say_again_s = 0.0

    def wait(self, network: Network, stopping: Callable[[], bool]) -> Journal | None:
        """The journal, when it is this broker's turn; None: it was told to stop first."""
        self._has_said, self._trouble = False, ""
        while not stopping():
            journal = self._look()
            if journal is not None:
                return journal
            self.pause(network)
        return None

    def pause(self, network: Network) -> None:
        self._turn_away(network, time.monotonic() + self._look_s)

    def _look(self) -> Journal | None:
        try:
            journal = self._lease.try_take_over()
        except errors.JournalFailed as failure:
            if failure.text != self._trouble or time.monotonic() >= self._say_again_s:
                log.warning("waits for the journal: %s", failure)
                self._say_again_s = time.monotonic() + _SAY_AGAIN_S
            self._trouble = failure.text
            return None
        self._trouble = ""
        if journal is None and not self._has_said:
            self._has_said = True
            active = f"{self._lease.active_address} is active" if self._lease.active_address else self._holder()
            self._say(f"OnceMQ waits as a standby: {active}.")
            log.info("waits as a standby: %s", self._holder())
        return journal

    def _holder(self) -> str:
        if self._trouble:
            return "its journal can't be reached"
        return self._lease.holder or "another broker is active"

    def _turn_away(self, network: Network, until_s: float) -> None:
        error = errors.Standby(f"this broker waits as a standby: {self._holder()}")
        while (wait_s := until_s - time.monotonic()) > 0:
            for peer, frames in network.take(max(1, round(wait_s * 1000))):
                network.send(peer, encode_not_now(frames, error))


def serve_in_turns(
    settings: ServeSettings,
    lease_at: Callable[[str], Lease],
    serve_journal: Callable[[Journal, ZmqNetwork], int],
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> int:
    """Until it is told to stop, or something fails that waiting does not mend; returns the exit code.

    `serve_journal` is called for each turn, with a journal and sockets of its own; it raises JournalFailed when the
    turn is over."""
    network = ZmqNetwork(settings.listen, settings.batch_bytes_max)
    addresses = network.addresses
    lease = lease_at(addresses[0])
    standby = Standby(lease, settings.lease_ms, say)
    try:
        while (journal := standby.wait(network, stopping)) is not None:
            try:
                return serve_journal(journal, network)
            except errors.JournalFailed as failure:
                log.error("stopped without an answer: %s", failure)
                if stopping():
                    return failure.exit_code
            network.close()
            _let_go(journal)
            network = ZmqNetwork(addresses, settings.batch_bytes_max)
            # What has just failed would only fail again.
            standby.pause(network)
        return 0
    finally:
        network.close()
        lease.close()


def _let_go(journal: Journal) -> None:
    with suppress(errors.JournalError):
        journal.close()
    # What the broker had loaded is garbage now.
    gc.unfreeze()
