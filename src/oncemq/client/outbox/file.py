"""The outbox on a disk: numbered operations in a file, from before they are sent until they are decided.

Refusals are written immediately. Completed operations are marked with the next write. After a restart, the client asks
the broker again about operations that were not marked. The broker's answer shows that they were executed, even the
answer that it has forgotten the verdict.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from oncemq.client.outbox.contract import OutboxEntry, OutboxRefusal
from oncemq.client.outbox.storage import Execute, Storage
from oncemq.protocol import errors
from oncemq.protocol.commands import Operation, Void, envelopes_of
from oncemq.protocol.frames import Frame

_T = TypeVar("_T")

#: Maximum number of completed operations that are not marked in the file.
_UNMARKED_MAX = 512

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Operation).decode


class OutboxFile:
    """An opened outbox. Processes that opened it earlier are fenced. It is not thread-safe: its client's lock guards
    it.

    >>> outbox = OutboxFile.open("orders.outbox")
    >>> outbox.append([(operation, (payload,))])
    range(1, 2)
    """

    #: These attributes are described in contract.py.
    session: str
    broker_id: str
    next_number: int
    answered_number: int
    sent_below: int
    #: Refusals that the user has not seen.
    refusals_count: int
    _entries_count: int

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        #: Completed numbers that are not marked in the file yet → whether the operation was executed. If not, a void
        #: was answered.
        self._unmarked: dict[int, bool] = {}
        #: Operations that were refused since it was opened.
        self.refused_count = 0
        with storage.read_transaction() as execute:
            row = execute("SELECT session, broker_id, next_number, answered_number, sent_below FROM outbox").fetchone()
            self.session, self.broker_id, self.next_number, self.answered_number, self.sent_below = row
            [self._entries_count] = execute("SELECT count(*) FROM entries").fetchone()
            [self.refusals_count] = execute("SELECT count(*) FROM refusals").fetchone()

    @classmethod
    def open(cls, path: str | os.PathLike[str], draw: Callable[[], str] | None = None) -> OutboxFile:
        """Open an outbox, and create it if there is none. `draw` returns random names.

        Raises OutboxError, OutboxInvalid, OutboxVersion or OutboxFull."""
        draw = draw or (lambda: secrets.token_hex(16))
        # The absolute path, because the process may change its folder and SQLite has special names like ":memory:".
        storage = Storage(os.path.realpath(path), f"outbox-{draw()}", draw())
        try:
            return cls(storage)
        except errors.OnceMQError:
            storage.close()
            raise

    @property
    def path(self) -> str:
        return self._storage.path

    @property
    def pending_count(self) -> int:
        """The number of operations that are not decided."""
        return self._entries_count - len(self._unmarked)

    # Before it is sent.

    def append(self, entries: Sequence[tuple[Operation, tuple[Frame, ...]]]) -> range:
        """Store all operations durably, or none. Return their numbers. Raises OutboxFull."""
        first = self.next_number
        numbers = range(first, first + len(entries))
        rows = [
            (number, _encode(operation), _joined(operation, payloads))
            for number, (operation, payloads) in zip(numbers, entries, strict=True)
        ]
        self._ensure_space(sum(len(operation) + len(payload) for _, operation, payload in rows))
        with self._write_transaction() as execute:
            for row in rows:
                execute("INSERT INTO entries VALUES (?, ?, ?)", row)
            execute("UPDATE outbox SET next_number = ?", (numbers.stop,))
        self.next_number = numbers.stop
        self._entries_count += len(rows)
        return numbers

    def _ensure_space(self, size: int) -> None:
        try:
            self._storage.check_space(size)
        except errors.OutboxFull:
            self.flush()
            if self._entries_count:
                raise
            self._storage.shrink()
            self._storage.check_space(size)

    def connected(self, broker_id: str) -> None:
        """The session was taken over: from now on entries may be sent. Durable when it returns."""
        self._write(lambda execute: execute("UPDATE outbox SET broker_id = ?, sending = 1", (broker_id,)))
        self.broker_id = broker_id

    def entries(
        self, first_number: int = 1, count_max: int = 1000, bytes_max: int = 16 * 1024 * 1024
    ) -> list[OutboxEntry]:
        """Entries from this number on, in order; at least one if there is one."""
        found: list[OutboxEntry] = []
        size = 0
        with self._storage.read_transaction() as execute:
            rows = execute("SELECT * FROM entries WHERE number >= ? ORDER BY number", (first_number,))
            for number, operation, payload in rows:
                if found and (len(found) >= count_max or size + len(payload) > bytes_max):
                    break
                if number not in self._unmarked:
                    found.append(OutboxEntry(number, *self._decoded(number, operation, payload)))
                    size += len(payload)
            rows.close()
        return found

    # After it was answered.

    def complete(self, number: int) -> None:
        """The operation was executed. Written with the next write, or by `flush`."""
        self._mark(number, is_executed=True)

    def complete_void(self, number: int) -> None:
        """A void was answered. Written with the next write, or by `flush`."""
        self._mark(number, is_executed=False)

    def _mark(self, number: int, *, is_executed: bool) -> None:
        self._unmarked[number] = is_executed
        if len(self._unmarked) >= _UNMARKED_MAX:
            with contextlib.suppress(errors.OutboxFull):
                self.flush()

    def refuse(self, number: int, code: str, text: str) -> None:
        """The broker refused the operation. Durable when it returns: only then may the broker forget its verdict."""

        def move(execute: Execute) -> tuple[int, int]:
            execute("UPDATE outbox SET answered_number = max(answered_number, ?)", (number,))
            added = _add_refusal(execute, number, code, text)
            return added, execute("DELETE FROM entries WHERE number = ?", (number,)).rowcount

        added, deleted = self._write(move)
        self.refused_count += 1
        self.answered_number = max(self.answered_number, number)
        self.refusals_count += added
        self._entries_count -= deleted

    def void(self, number: int, code: str, text: str) -> None:
        """The operation was refused before its number was used: from now on the number stands for a `Void`."""

        def void(execute: Execute) -> int:
            added = _add_refusal(execute, number, code, text)
            execute("UPDATE entries SET operation = ?, payload = x'' WHERE number = ?", (_encode(Void()), number))
            return added

        self.refusals_count += self._write(void)
        self.refused_count += 1

    def flush(self) -> None:
        """Mark all completed operations in the file."""
        if self._unmarked:
            self._write(lambda _: None)

    def _write(self, change: Callable[[Execute], _T]) -> _T:
        """Write something that is necessary to send the entries. It may use the reserve."""
        try:
            with self._write_transaction() as execute:
                return change(execute)
        except errors.OutboxFull:
            if not self._storage.release_reserve():
                raise
        with self._write_transaction() as execute:
            return change(execute)

    @contextlib.contextmanager
    def _write_transaction(self) -> Iterator[Execute]:
        """A transaction that also marks the operations that were completed since the last one."""
        unmarked = dict(self._unmarked)
        answered_number = max(unmarked, default=0)
        deleted = 0
        retracted = 0
        with self._storage.write_transaction() as execute:
            for number, is_executed in unmarked.items():
                deleted += execute("DELETE FROM entries WHERE number = ?", (number,)).rowcount
                if is_executed:
                    # The operation was refused in transit, although it had been executed before.
                    retracted += execute("DELETE FROM refusals WHERE number = ?", (number,)).rowcount
            if unmarked:
                execute("UPDATE outbox SET answered_number = max(answered_number, ?)", (answered_number,))
            yield execute
        self._unmarked.clear()
        self.answered_number = max(self.answered_number, answered_number)
        self._entries_count -= deleted
        self.refusals_count -= retracted

    # Refusals.

    def refusals(self) -> Iterator[OutboxRefusal]:
        """Refusals that the user has not seen, in order of number."""
        number = 0
        while True:
            with self._storage.read_transaction() as execute:
                row = execute("SELECT * FROM refusals WHERE number > ? ORDER BY number LIMIT 1", (number,)).fetchone()
            if row is None:
                return
            number, code, text, operation, payload = row
            yield OutboxRefusal(number, code, text, *self._decoded(number, operation, payload))

    def seen(self, number: int) -> None:
        """The user knows of this refusal: delete it. Durable when it returns."""
        statement = "DELETE FROM refusals WHERE number = ?"
        self.refusals_count -= self._write(lambda execute: execute(statement, (number,)).rowcount)

    def close(self) -> None:
        if self._storage.is_usable:
            with contextlib.suppress(errors.OnceMQError):
                self.flush()
                if not self._entries_count:
                    self._storage.shrink()
        self._storage.close()

    def _decoded(self, number: int, encoded: bytes, payload: bytes) -> tuple[Operation, tuple[Frame, ...]]:
        try:
            operation = _decode(encoded)
        except msgspec.MsgspecError as error:
            raise errors.OutboxInvalid(f"'{self.path}': number {number} can't be read: {error}") from None
        sizes = [envelope.size for envelope in envelopes_of(operation)]
        if sum(sizes) != len(payload):
            raise errors.OutboxInvalid(f"'{self.path}': number {number} does not have the size that it should have")
        return operation, _split(payload, sizes)


def _add_refusal(execute: Execute, number: int, code: str, text: str) -> int:
    """Return how many were added: none if the refusal was recorded before."""
    statement = "INSERT OR IGNORE INTO refusals SELECT number, ?, ?, operation, payload FROM entries WHERE number = ?"
    return execute(statement, (code, text, number)).rowcount


def _joined(operation: Operation, payloads: tuple[Frame, ...]) -> Frame:
    sizes = [envelope.size for envelope in envelopes_of(operation)]
    assert [len(payload) for payload in payloads] == sizes, "payloads do not match their envelopes"
    return payloads[0] if len(payloads) == 1 else b"".join(payloads)


def _split(payload: bytes, sizes: Sequence[int]) -> tuple[Frame, ...]:
    if len(sizes) == 1:
        return (payload,)
    view = memoryview(payload)
    frames: list[Frame] = []
    for size in sizes:
        frames.append(view[:size])
        view = view[size:]
    return tuple(frames)
