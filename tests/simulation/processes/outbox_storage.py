"""An outbox file in memory, whose process may be killed before, during or after any write.

The real `OutboxFile` runs on it; only the disk is simulated. Committed transactions survive, as on a disk.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from random import Random

from oncemq.client.outbox.file import OutboxFile
from oncemq.client.outbox.storage import Execute, Storage
from oncemq.protocol import errors
from tests.simulation.checks.history import Attempt
from tests.simulation.environment.world import World

#: Probabilities per write.
KILLED = 0.08
FULL = 0.02


class Killed(Exception):
    """The process has ended. This is not an OnceMQError, so that nothing catches it and continues."""


class OutboxDisk:
    """The file of an outbox, which survives its processes, and the attempts that were stored in it."""

    def __init__(self, world: World, session: str) -> None:
        self.world = world
        self.random: Random = world.random(f"mailbox {session}")
        self.session = session
        self.file = self._new_file()
        #: Attempts by number.
        self.kept: dict[int, Attempt] = {}
        self.seen: set[int] = set()
        self.has_reserve = False
        self._copy: bytes | None = None
        #: The file was replaced with an older copy.
        self.was_restored = False

    @staticmethod
    def _new_file() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

    def open(self, owner: str) -> OutboxFile:
        return OutboxFile(MemoryStorage(self, owner))

    def holds(self, number: int, payload: bytes) -> bool:
        """Return whether the file has this payload under this number."""
        row = self.file.execute("SELECT payload FROM entries WHERE number = ?", (number,)).fetchone()
        return row is not None and row[0] == payload

    def refused(self) -> set[int]:
        """Return the refused numbers: those that the user has seen and those in the file."""
        if not self._is_begun():
            return set()
        return {number for (number,) in self.file.execute("SELECT number FROM refusals")} | self.seen

    def _is_begun(self) -> bool:
        """Return whether the file has its tables: the first process may have been killed before that."""
        return self.file.execute("SELECT 1 FROM sqlite_master").fetchone() is not None

    def undecided(self) -> int:
        if not self._is_begun():
            return 0
        [count] = self.file.execute("SELECT count(*) FROM entries").fetchone()
        return int(count)

    # Backups.

    def back_up(self) -> None:
        self._copy = self.file.serialize()

    def restore(self) -> bool:
        """Replace the file with the last copy, if there is one. No process may have it open."""
        if self._copy is None:
            return False
        self.file = self._new_file()
        self.file.deserialize(self._copy)
        self.was_restored = True
        return True


class MemoryStorage(Storage):
    def __init__(self, disk: OutboxDisk, owner: str) -> None:
        self._disk = disk
        self.path = disk.session
        self.connection = disk.file
        self._owner = owner
        self._process_id = os.getpid()
        self._failure = None
        self._take_over(disk.session)

    def _check_inode(self) -> None:
        if self.connection is not self._disk.file:
            self._fail(errors.OutboxError(f"'{self.path}' was replaced while it was in use"))

    def check_space(self, size: int) -> None:
        """A full disk is reported by the write."""
        self._disk.has_reserve = True

    def release_reserve(self) -> bool:
        had, self._disk.has_reserve = self._disk.has_reserve, False
        return had

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[Execute]:
        disk = self._disk
        chance = 1.0 if kind != "IMMEDIATE" or disk.world.healed else disk.random.random()
        if chance < FULL:
            raise errors.OutboxFull("no room: nothing was written")
        chance -= FULL
        if chance < KILLED / 3:
            self._kill("before a write")
        with super()._transaction(kind) as execute:
            yield execute
            if KILLED / 3 <= chance < 2 * KILLED / 3:
                self._kill("within a write")
        if 2 * KILLED / 3 <= chance < KILLED:
            self._kill("after a write")

    def _kill(self, when: str) -> None:
        self._disk.world.tally[f"outbox: killed {when}"] += 1
        raise Killed

    def close(self) -> None: ...
