"""Which extents there are, how full each is, and how one goes: its rows are deleted beside the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from oncemq.journal.contract import Extent
from oncemq.journal.postgres.background import BackgroundConnection, RetryPause
from oncemq.journal.postgres.connection import Connection
from oncemq.journal.postgres.sql import query
from oncemq.journal.worker import Task, Worker
from oncemq.protocol import errors


class PostgresExtents:
    def __init__(self, where: str, extent_bytes: int, worker: Worker, background: BackgroundConnection) -> None:
        self._location = where
        self._extent_bytes = extent_bytes
        self._worker = worker
        self._background = background
        self._pause = RetryPause(where, "releasing extents")
        #: With what they release, as it was.
        self._releases: list[tuple[Task, dict[int, int]]] = []
        #: extent → bytes of its groups
        self._used_bytes: dict[int, int] = {}

    def find(self, connection: Connection) -> None:
        self._used_bytes = dict(connection.execute(query("extents"), (self._extent_bytes,)).fetchall())

    def begin(self, number: int) -> None:
        """Harmless where it was begun."""
        self._used_bytes.setdefault(number, 0)

    def fill(self, number: int, size: int) -> None:
        self._used_bytes[number] += size

    def listed(self, active: int, behind_position: int) -> list[Extent]:
        """`behind_position`: from there on, replay from the snapshots needs everything."""
        return [
            Extent(number, used, number != active and (number + 1) * self._extent_bytes <= behind_position)
            for number, used in sorted(self._used_bytes.items())
        ]

    def release(self, live: Mapping[int, int], active: int, behind_position: int) -> None:
        missing = live.keys() - self._used_bytes.keys() - {0}
        if missing:
            said = f"extent {min(missing)} is missing, and messages in it are needed"
            raise errors.JournalCorrupt(f"{self._location}: {said}")
        behind = [extent.number for extent in self.listed(active, behind_position) if extent.is_covered_by_snapshots]
        numbers = [number for number in behind if number not in live]
        if numbers and self._pause.is_over:
            released = {number: self._used_bytes.pop(number) for number in numbers}
            self._releases.append((self._worker.start(self._remove(numbers), "release extents"), released))

    def _remove(self, numbers: Sequence[int]) -> Iterator[None]:
        connection = self._background.connection()
        for number in numbers:
            bounds = (number * self._extent_bytes, (number + 1) * self._extent_bytes)
            with connection.transaction():
                connection.execute(query("release_records"), bounds)
                connection.execute(query("release_groups"), bounds)
                connection.execute(query("check_term"), (self._background.lease.term,))
            yield

    def maintain(self) -> None:
        """Raises JournalFenced."""
        while self._releases and self._releases[0][0].done:
            task, released = self._releases.pop(0)
            if task.error is not None:
                self._used_bytes.update(released)
                self._pause.begin(task.error)
