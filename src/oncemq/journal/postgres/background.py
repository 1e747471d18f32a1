"""Background work: its connection, which is opened again after it was lost, and the handling of its failures.

A snapshot that could not be written, or rows that could not be deleted, do no harm: a restart takes longer, or the
database stays larger. Both are tried again. The only failure that matters is that another broker has taken over.
"""

from __future__ import annotations

import logging

import psycopg

from oncemq.journal.postgres.connection import Connection, connect, failed
from oncemq.journal.postgres.lease import Lease, now_s
from oncemq.protocol import errors

log = logging.getLogger("oncemq.journal")

_PAUSE_S = 10.0


class BackgroundConnection:
    """Used only by the worker, except for `close`, which is called when the worker has finished."""

    def __init__(self, url: str, lease: Lease) -> None:
        self.lease = lease
        self._url = url
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        if self._connection is not None and self._connection.is_in_doubt:
            self._connection.close()
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, self.lease.lease_ms, "oncemq background")
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class RetryPause:
    """The pause after a failure, before the same work is tried again."""

    def __init__(self, location: str, what: str) -> None:
        self._location = location
        self._what = what
        self._until_s = 0.0

    @property
    def is_over(self) -> bool:
        return now_s() >= self._until_s

    def begin(self, error: Exception) -> None:
        """Log the failure and begin the pause. Raise JournalFenced if another broker has taken over, and any error that
        is a bug of ours."""
        if isinstance(error, psycopg.Error):
            error = failed(self._location, self._what, error)
        if isinstance(error, errors.JournalFenced) or not isinstance(error, errors.OnceMQError):
            raise error
        self._until_s = now_s() + _PAUSE_S
        log.warning("%s; it is tried again in %d s", error, _PAUSE_S)
