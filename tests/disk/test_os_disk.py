"""The disk of the operating system: short writes, the lock, forks, and a journal with a worker thread."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oncemq.disk.os_disk import OsDisk
from oncemq.journal.files.journal import FileJournal, open_files
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from tests.journal.rig import LARGE, events_of, snapshot, write

SEGMENT_BYTES = 64 * 1024


def test_parts_large_and_small_arrive_in_order(tmp_path: Path) -> None:
    file = OsDisk(tmp_path).open("parts", create=True)
    parts = [bytes([number % 251]) * size for number in range(700) for size in (3, 0, 20_000)]
    file.write(5, parts)
    file.sync("test")
    assert file.read(0, 1 << 30) == b"\0" * 5 + b"".join(parts)
    assert file.size() == 5 + sum(map(len, parts))


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_writev = os.pwrite, os.pwritev

    def half(descriptor: int, parts: list[memoryview], offset: int) -> int:
        return real_writev(descriptor, [parts[0][: max(1, len(parts[0]) // 2)]], offset)

    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: real_write(descriptor, data[:7], offset))
    monkeypatch.setattr(os, "pwritev", half)
    file = OsDisk(tmp_path).open("short", create=True)
    small, large = b"0123456789" * 10, [b"a" * 300_000, b"tiny", b"b" * 300_000]
    file.write(0, [small])
    file.write(100, large)
    assert file.read(0, 1 << 20) == small + b"".join(large)


def test_files_are_created_once_and_found(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path / "a" / "b")
    disk.make_folder("folder")
    disk.open("folder/two", create=True).close()
    disk.open("folder/one", create=True).close()
    with pytest.raises(FileExistsError):
        disk.open("folder/one", create=True)
    with pytest.raises(FileNotFoundError):
        disk.open("folder/three")
    disk.rename("folder/two", "folder/three")
    disk.sync_folder("folder", "test")
    assert disk.list("folder") == ["one", "three"]
    disk.remove("folder/one")
    assert not disk.exists("folder/one")
    assert disk.free_bytes() > 0


def test_files_and_folders_are_private(tmp_path: Path) -> None:
    former = os.umask(0o002)
    try:
        disk = OsDisk(tmp_path / "parent" / "data")
        disk.make_folder("cut")
        disk.open("cut/bytes", create=True).close()
        disk.lock("journal.lock").close()
    finally:
        os.umask(former)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "parent").rglob("*")}
    assert modes == {"data": 0o700, "cut": 0o700, "bytes": 0o600, "journal.lock": 0o600}


def test_a_second_broker_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    journal = open_files(tmp_path, segment_bytes=SEGMENT_BYTES)
    list(journal.load().groups)
    with pytest.raises(errors.JournalLocked) as caught:
        open_files(tmp_path, segment_bytes=SEGMENT_BYTES)
    assert str(tmp_path) in str(caught.value)
    assert f"pid {os.getpid()}" in str(caught.value)
    assert "Connect to the broker" in str(caught.value)
    journal.close()
    open_files(tmp_path, segment_bytes=SEGMENT_BYTES).close()


def test_the_lock_is_released_when_the_process_ends(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from oncemq.journal.files.journal import open_files\n"
        f"journal = open_files(sys.argv[1], segment_bytes={SEGMENT_BYTES})\n"
        "list(journal.load().groups)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    journal = open_files(tmp_path)
    assert journal.extent_bytes == SEGMENT_BYTES
    journal.close()


def test_a_forked_child_neither_keeps_the_lock_nor_uses_the_journal(tmp_path: Path) -> None:
    # A fork in a process with threads causes a warning; an inline worker has no thread.
    journal = FileJournal(OsDisk(tmp_path), InlineWorker(), segment_bytes=SEGMENT_BYTES)
    list(journal.load().groups)
    ready, stop = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"no error"
        try:
            write(journal)
        except errors.ForkedError:
            answer = b"forked"
        except BaseException as error:
            answer = repr(error).encode()
        os.write(ready[1], answer)
        os.close(stop[1])
        os.read(stop[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 100) == b"forked"
        write(journal, events=b"the parent goes on")
        with pytest.raises(errors.JournalLocked):
            OsDisk(tmp_path).lock("journal.lock")
        journal.close()
        # The child is still running; the folder is free.
        again = FileJournal(OsDisk(tmp_path), InlineWorker(), segment_bytes=SEGMENT_BYTES)
        assert events_of(list(again.load().groups)) == [b"the parent goes on"]
        again.close()
    finally:
        os.close(stop[1])
        os.waitpid(child, 0)


def test_a_journal_with_a_worker_thread_is_recovered(tmp_path: Path) -> None:
    journal = open_files(tmp_path, segment_bytes=SEGMENT_BYTES)
    list(journal.load().groups)
    for number in range(30):
        write(journal, [LARGE], b"event %d" % number)
        journal.maintain()
    writer = journal.begin_snapshot()
    assert writer is not None
    writer.add(b"state")
    writer.finish()
    write(journal, events=b"behind")
    journal.close()
    again = open_files(tmp_path)
    loaded = again.load()
    assert loaded.snapshot == [b"state"]
    assert events_of(list(loaded.groups)) == [b"behind"]
    snapshot(again)
    again.close()


def test_a_folder_that_cannot_be_created_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.JournalError, match="can't be created"):
        OsDisk(tmp_path / "file" / "data")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_file_waits_for_a_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Many connections at once can use up the descriptors for a moment."""
    real, failures = os.open, iter(range(5))

    def scarce(*arguments: Any, **named: Any) -> int:
        if next(failures, None) is not None:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **named)

    disk = OsDisk(tmp_path)
    monkeypatch.setattr(os, "open", scarce)
    disk.open("segment", create=True).close()
    disk.sync_folder("", "test")
    assert disk.list("") == ["segment"]


def test_without_a_descriptor_the_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("oncemq.disk.os_disk._DESCRIPTOR_WAIT_S", 0.02)
    disk = OsDisk(tmp_path)
    monkeypatch.setattr(os, "open", none)
    with pytest.raises(OSError, match="Too many open files"):
        disk.open("segment", create=True)
