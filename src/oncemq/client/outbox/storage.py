"""The outbox's SQLite file: how it is created, opened, written and owned. It does not interpret the entries.

    outbox     one row: session, owner, broker, and the numbers that were reached
    entries    number, operation, joined payloads: operations that are not decided
    refusals   the same with code and text: refusals that the user has not seen

WAL with synchronous=FULL: a transaction is on stable storage when COMMIT returns. SQLite syncs the folder when it
creates the -wal file. This module syncs it for the database file, so that the file exists after a power failure. The
file must be on a local disk: WAL needs shared memory between the processes that open it.

Each process that opens the file writes a random token into it, and is fenced once there is another token. The token is
checked in each transaction, so a process that was replaced can neither read nor write.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator

from oncemq.client.outbox.reserve import Reserve
from oncemq.protocol import errors

#: Runs a statement in a transaction.
Execute = Callable[..., sqlite3.Cursor]

#: "OnMQ" in the file's header, where SQLite and the `file` command look for it.
APPLICATION_ID = 0x4F6E4D51
FORMAT_VERSION = 1

#: How long to wait for the transaction of another process. Such transactions are short.
_BUSY_S = 10.0
_WAL_BYTES_KEPT_MAX = 64 * 1024 * 1024
#: The write-ahead log is written into the file when it has this many pages.
_CHECKPOINT_PAGES = 256
_PAGE_BYTES = 4096

_SCHEMA = (
    """CREATE TABLE outbox (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        session TEXT NOT NULL,
        owner TEXT NOT NULL,
        broker_id TEXT NOT NULL,
        next_number INTEGER NOT NULL,
        answered_number INTEGER NOT NULL,
        sent_below INTEGER NOT NULL,
        sending INTEGER NOT NULL
    )""",
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, operation BLOB NOT NULL, payload BLOB NOT NULL)",
    """CREATE TABLE refusals (
        number INTEGER PRIMARY KEY, code TEXT NOT NULL, text TEXT NOT NULL,
        operation BLOB NOT NULL, payload BLOB NOT NULL
    )""",
)

#: After these errors nothing was written, and the file is still usable.
_TRANSIENT = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG})

_storages: weakref.WeakSet[Storage] = weakref.WeakSet()
#: In a forked child: the connections of its parent. The child must not close them, not even by garbage collection.
_inherited: list[sqlite3.Connection] = []


def _after_fork_in_child() -> None:
    _inherited.extend(storage.connection for storage in _storages)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Storage:
    """An opened file. Threads may share it under a lock. Forked children can't use it."""

    def __init__(self, path: str, session: str, owner: str) -> None:
        """`session` is used if the file is created; `owner` is the token of this process. Raises OutboxError or one of
        its subclasses."""
        self.path = path
        self._owner = owner
        self._process_id = os.getpid()
        self._failure: errors.OnceMQError | None = None
        self._reserve = Reserve(path)
        _check_path(path)
        try:
            self._open(session)
        except errors.OutboxFull:
            if not self._reserve.release():
                raise
            self._failure = None
            self._open(session)
        _storages.add(self)

    # Opening.

    def _open(self, session: str) -> None:
        with self._translated():
            self.connection = _connect(self.path)
        try:
            with self._translated():
                self._prepare()
                self._take_over(session)
            sync_folder(self.path)
            self._inode = os.stat(self.path).st_ino
        except BaseException:
            self.connection.close()
            raise

    def _prepare(self) -> None:
        execute = self.connection.execute
        [application_id] = execute("PRAGMA application_id").fetchone()
        [version] = execute("PRAGMA user_version").fetchone()
        if application_id != APPLICATION_ID:
            # A file of another application is not touched. An empty one is ours: the process that created it was
            # killed.
            [tables] = execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application_id or version or tables:
                raise errors.OutboxInvalid(f"'{self.path}' is a database of something else, not an outbox")
        elif version > FORMAT_VERSION:
            raise errors.OutboxVersion(
                f"'{self.path}' has format version {version}; this OnceMQ reads versions up to {FORMAT_VERSION}"
            )
        # This comes before the first page is written, because it can't be changed later.
        execute("PRAGMA auto_vacuum = INCREMENTAL")
        [mode] = execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise errors.OutboxError(f"'{self.path}' can't be used in WAL mode, only in '{mode}'")
        execute("PRAGMA synchronous = FULL")
        # These matter on macOS, where a plain sync stops at the drive's cache.
        execute("PRAGMA fullfsync = 1")
        execute("PRAGMA checkpoint_fullfsync = 1")
        execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT_MAX}")
        execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        # Otherwise some builds of SQLite overwrite all deleted content.
        execute("PRAGMA secure_delete = FAST")

    def _take_over(self, session: str) -> None:
        with self._transaction("IMMEDIATE") as execute:
            if execute("SELECT 1 FROM sqlite_master WHERE name = 'outbox'").fetchone() is None:
                for statement in _SCHEMA:
                    execute(statement)
                execute(f"PRAGMA application_id = {APPLICATION_ID}")
                execute(f"PRAGMA user_version = {FORMAT_VERSION}")
                execute("INSERT INTO outbox VALUES (1, ?, '', '', 1, 0, 1, 0)", (session,))
            # Entries of the previous owner may have been sent if it was connected, and were not sent otherwise.
            execute(
                "UPDATE outbox SET owner = ?, sent_below = CASE sending WHEN 1 THEN next_number ELSE sent_below END,"
                " sending = 0",
                (self._owner,),
            )

    # Reading and writing.

    @contextlib.contextmanager
    def write_transaction(self) -> Iterator[Execute]:
        """A transaction of the owner: durable when the block ends, or without any effect."""
        self.check_usable()
        self._check_inode()
        with self._translated(), self._transaction("IMMEDIATE") as execute:
            self._check_owner(execute)
            yield execute

    @contextlib.contextmanager
    def read_transaction(self) -> Iterator[Execute]:
        """A consistent view of the file, for its owner."""
        self.check_usable()
        with self._translated(), self._transaction("DEFERRED") as execute:
            self._check_owner(execute)
            yield execute

    # Disk space.

    def check_space(self, size: int) -> None:
        """Raises OutboxFull if there is no space for `size` more bytes. They are needed twice, in the log and in the
        file, and something must be left for the writes that are necessary to send the entries."""
        self.check_usable()
        if not self._reserve.hold():
            raise _full(self.path)
        need = 2 * size + _CHECKPOINT_PAGES * _PAGE_BYTES
        free = self._reserve.free_bytes()
        if free < need:
            with self.read_transaction() as execute:
                [pages] = execute("PRAGMA freelist_count").fetchone()
            if free + min(size, pages * _PAGE_BYTES) < need:
                raise _full(self.path)

    def release_reserve(self) -> bool:
        """Free the reserved space. False: there is none."""
        return self._reserve.release()

    def shrink(self) -> None:
        """Give unused space back to the disk. This is slow unless there are no entries. Raises Fenced."""
        with self.read_transaction():
            pass  # It checks the owner.
        with contextlib.suppress(sqlite3.Error):
            # A script, because a statement without columns is not run to its end otherwise.
            self.connection.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[Execute]:
        connection = self.connection
        connection.execute(f"BEGIN {kind}")
        try:
            yield connection.execute
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise

    def _check_owner(self, execute: Execute) -> None:
        [owner] = execute("SELECT owner FROM outbox").fetchone()
        if owner != self._owner:
            self._fail(errors.Fenced(f"another process has opened the outbox '{self.path}'"))

    def _check_inode(self) -> None:
        """Anything written to a file that was deleted or replaced would be lost."""
        try:
            inode = os.stat(self.path).st_ino
        except OSError:
            inode = -1
        if inode != self._inode:
            self._fail(errors.OutboxError(f"'{self.path}' was deleted or replaced while it was in use"))

    def check_usable(self) -> None:
        """Raises ForkedError in a forked child, and the final error after one."""
        if os.getpid() != self._process_id:
            raise errors.ForkedError(f"the outbox '{self.path}' belongs to the parent process; connect in the child")
        if self._failure is not None:
            raise type(self._failure)(self._failure.text)

    def _fail(self, error: errors.OnceMQError) -> None:
        """This is final: only opening the file again shows what a failed write has left."""
        self._failure = error
        raise error

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            translated = _translate(self.path, error)
            if _primary_code(error) not in _TRANSIENT:
                self._failure = translated
            raise translated from error

    # Closing.

    @property
    def is_usable(self) -> bool:
        return self._failure is None and os.getpid() == self._process_id

    def close(self) -> None:
        if os.getpid() != self._process_id or isinstance(self._failure, errors.ClientClosed):
            return
        self._failure = errors.ClientClosed(f"the outbox '{self.path}' was closed")
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()


def _connect(path: str) -> sqlite3.Connection:
    # An outbox contains messages, so only its owner may read it. SQLite gives its other files the same mode. If the
    # file can't be created, the error of SQLite says why.
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _check_path(path: str) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise errors.OutboxError(f"there is no folder '{folder}' for an outbox")
    if os.path.isdir(path):
        raise errors.OutboxInvalid(f"'{path}' is a folder; an outbox is a file")
    if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
        raise errors.OutboxError(f"'{path}' can't be read and written by this user")


def sync_folder(path: str) -> None:
    """Make the name of a file durable."""
    if os.name == "nt":
        # A folder can't be synced on Windows; NTFS keeps a journal of names.
        return
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, without the extended part; 0 if the error has none."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _full(path: str) -> errors.OutboxFull:
    return errors.OutboxFull(f"no space for '{path}': nothing was written")


def _translate(path: str, error: sqlite3.Error) -> errors.OnceMQError:
    code = _primary_code(error)
    if code == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return _full(path)
    if code == sqlite3.SQLITE_TOOBIG:
        return errors.TooLarge(f"an operation is too large for the outbox '{path}'")
    if code == sqlite3.SQLITE_NOTADB:
        return errors.OutboxInvalid(f"'{path}' is not an outbox")
    if code == sqlite3.SQLITE_CORRUPT:
        return errors.OutboxInvalid(f"'{path}' is damaged: {error}")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return errors.OutboxError(f"'{path}' can't be written: {error}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return errors.OutboxError(f"another process has held '{path}' for more than {_BUSY_S:g} s")
    return errors.OutboxError(f"'{path}': {error}; the last write may or may not be in the file")
