"""The lease: until when this process may assume that it is the only writer of the journal.

For brokers that wait for the lease, the database's clock says when it is over. The holder counts from the moment before
it sent its request, with a clock that continues while the process is suspended and the machine sleeps, and subtracts a
tenth. So the lease ends here first, no matter how long the answer took.
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

_SAFE_SHARE = 0.9
_RENEW_SHARE = 1 / 3


def now_s() -> float:
    """Return the time of the lease's clock. On macOS it stops while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class Lease:
    __slots__ = ("held_until_s", "lease_ms", "renew_from_s", "term")

    def __init__(self, term: int, lease_ms: int, sent_s: float) -> None:
        self.term = term
        self.lease_ms = lease_ms
        self.renewed(sent_s)

    def renewed(self, sent_s: float) -> None:
        """Note that a request which was sent at `sent_s` has renewed the lease."""
        self.held_until_s = sent_s + self.lease_ms / 1000 * _SAFE_SHARE
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
        """Renew the lease in the database. Return False if another broker has begun a new term."""
        sent_s = now_s()
        if connection.execute(query("renew"), (lease_ms or self.lease_ms, self.term)).fetchone() is None:
            return False
        connection.check_replicated()
        self.renewed(sent_s)
        return True


class BrokerLeaseRenewer:
    """Renews the lease in a thread during recovery, which may take longer than a lease."""

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
        # A failure is found by the next request that needs the lease.
        with suppress(psycopg.Error, errors.OnceMQError), connect(self._url, self._lease.lease_ms) as connection:
            while self._lease.renew(connection) and not self._stopped.wait(every_s):
                pass

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
