"""The extents in PostgreSQL: which exist and how full they are. Their rows are deleted in the background."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from oncemq.journal.contract import Extent
from oncemq.journal.postgres.background import BackgroundConnection, RetryPause
from oncemq.journal.postgres.connection import Connection
from oncemq.journal.postgres.sql import query
from oncemq.journal.worker import Task, Worker


class PostgresExtents:
    def __init__(self, location: str, extent_bytes: int, worker: Worker, background: BackgroundConnection) -> None:
        self._location = location
        self._extent_bytes = extent_bytes
        self._worker = worker
        self._background = background
        self._pause = RetryPause(location, "releasing extents")
        #: Tasks, with the used bytes of the extents that they delete.
        self._releases: list[tuple[Task, dict[int, int]]] = []
        #: Bytes of the groups, by extent.
        self._used_bytes: dict[int, int] = {}

    def find(self, connection: Connection) -> None:
        self._used_bytes = dict(connection.execute(query("extents"), (self._extent_bytes,)).fetchall())

    def begin(self, number: int) -> None:
        """Add an extent, unless it exists."""
        self._used_bytes.setdefault(number, 0)

    def add_bytes(self, number: int, size: int) -> None:
        self._used_bytes[number] += size

    def list_extents(self, active: int, needed_from: int) -> list[Extent]:
        """Return all extents. Replay from the snapshots needs everything from the position `needed_from` on."""
        return [
            Extent(number, used, number != active and (number + 1) * self._extent_bytes <= needed_from)
            for number, used in sorted(self._used_bytes.items())
        ]

    def release(self, live: Mapping[int, int], active: int, needed_from: int) -> None:
        extents = self.list_extents(active, needed_from)
        numbers = [each.number for each in extents if each.is_covered_by_snapshots and each.number not in live]
        if numbers and self._pause.is_over:
            released = {number: self._used_bytes.pop(number) for number in numbers}
            self._releases.append((self._worker.start(self._delete(numbers), "release extents"), released))

    def _delete(self, numbers: Sequence[int]) -> Iterator[None]:
        connection = self._background.connection()
        for number in numbers:
            bounds = (number * self._extent_bytes, (number + 1) * self._extent_bytes)
            with connection.transaction():
                connection.execute(query("release_records"), bounds)
                connection.execute(query("release_groups"), bounds)
                connection.execute(query("check_term"), (self._background.lease.term,))
            yield

    def maintain(self) -> None:
        """Handle finished deletions. Raise JournalFenced."""
        while self._releases and self._releases[0][0].done:
            task, released = self._releases.pop(0)
            if task.error is not None:
                self._used_bytes.update(released)
                self._pause.begin(task.error)
