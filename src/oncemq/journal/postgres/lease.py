"""The lease: until when this process may take itself for the journal's one writer.

The database's clock says when a lease is over, for those who wait for it. The holder counts from the moment before it
asked, by a clock that runs on while the process is stopped and the machine sleeps, and takes off a tenth: so it is over
here first, however long the answer took.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

import psycopg

from oncemq.journal.postgres.connection import Connection, connect
from oncemq.journal.postgres.sql import query
from oncemq.protocol import errors

_SURE_SHARE = 0.9
_RENEW_SHARE = 1 / 3


def now_s() -> float:
    """The lease's clock. On macOS it stands still while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class Lease:
    __slots__ = ("held_until_s", "lease_ms", "renew_from_s", "term")

    def __init__(self, term: int, lease_ms: int, sent_s: float) -> None:
        self.term = term
        self.lease_ms = lease_ms
        self.renewed(sent_s)

    def renewed(self, sent_s: float) -> None:
        """By something that was sent then, and has succeeded."""
        self.held_until_s = sent_s + self.lease_ms / 1000 * _SURE_SHARE
        self.renew_from_s = sent_s + self.lease_ms / 1000 * _RENEW_SHARE

    def lose(self) -> None:
        self.held_until_s = 0.0

    @property
    def is_held(self) -> bool:
        return now_s() < self.held_until_s

    @property
    def is_due(self) -> bool:
        return now_s() >= self.renew_from_s

    def renew(self, connection: Connection, lease_ms: int = 0) -> bool:
        """False: the term is over."""
        sent_s = now_s()
        if connection.execute(query("renew"), (lease_ms or self.lease_ms, self.term)).fetchone() is None:
            return False
        self.renewed(sent_s)
        return True


class LeaseRenewer:
    """Renews the lease while recovery, which may take longer than a lease, has the process busy."""

    def __init__(self, url: str, lease: Lease) -> None:
        self._url = url
        self._lease = lease
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncemq-lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        every_s = self._lease.lease_ms / 1000 * _RENEW_SHARE
        if self._stopped.wait(every_s):
            return
        # If it fails, whoever needs the lease next finds out.
        with suppress(psycopg.Error, errors.OnceMQError), connect(self._url, self._lease.lease_ms) as connection:
            while self._lease.renew(connection) and not self._stopped.wait(every_s):
                pass

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
