"""An outbox on a full disk: it takes nothing in, and what waits in it can be sent all the same."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from oncemq.client.outbox import reserve
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.outbox.reserve import RESERVE_BYTES, Reserve
from oncemq.client.outbox.storage import Execute, Storage
from oncemq.protocol import errors
from oncemq.protocol.commands import Envelope, Operation, Put


def put(value: bytes) -> tuple[Operation, tuple[bytes, ...]]:
    return Put("orders", Envelope(1, len(value), 0)), (value,)


def reserve_of(path: Path) -> Path:
    return path.with_name(path.name + "-reserve")


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """An outbox with two entries."""
    path = tmp_path / "out"
    outbox = OutboxFile.open(path)
    outbox.append([put(b"1"), put(b"2")])
    outbox.close()
    assert reserve_of(path).stat().st_size == RESERVE_BYTES
    return path


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From then on there is as much room on the disk as the reserve holds."""
    real: Callable[[Storage, str], AbstractContextManager[Execute]] = Storage._transaction

    def transaction(self: Storage, kind: str) -> AbstractContextManager[Execute]:
        if kind == "IMMEDIATE" and os.path.exists(self.path + "-reserve"):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return real(self, kind)

    def fill() -> None:
        monkeypatch.setattr(Storage, "_transaction", transaction)
        monkeypatch.setattr(Reserve, "free_bytes", lambda _: 0)

    return fill


@pytest.fixture
def opened(waiting: Path) -> Iterator[OutboxFile]:
    outbox = OutboxFile.open(waiting)
    yield outbox
    outbox.close()


def test_what_waits_can_be_opened_and_sent_with_the_reserve(waiting: Path, fill: Callable[[], None]) -> None:
    fill()
    outbox = OutboxFile.open(waiting)
    assert not reserve_of(waiting).exists()
    outbox.connected("broker")
    outbox.complete(1)
    outbox.flush()
    assert [kept.number for kept in outbox.entries()] == [2]
    outbox.close()


@pytest.mark.parametrize(
    "write",
    [
        lambda outbox: outbox.connected("broker"),
        lambda outbox: (outbox.complete(1), outbox.flush()),
        lambda outbox: outbox.refuse(1, "TOPIC_UNKNOWN", "no"),
        lambda outbox: outbox.void(1, "TOPIC_UNKNOWN", "no"),
        lambda outbox: outbox.seen(1),
    ],
)
def test_each_step_of_sending_may_use_the_reserve(
    opened: OutboxFile, fill: Callable[[], None], write: Callable[[OutboxFile], object]
) -> None:
    fill()
    write(opened)
    assert not os.path.exists(opened.path + "-reserve")


def test_a_put_leaves_the_reserve_alone(opened: OutboxFile, fill: Callable[[], None]) -> None:
    fill()
    with pytest.raises(errors.OutboxFull, match="nothing was written"):
        opened.append([put(b"3")])
    assert os.path.exists(opened.path + "-reserve")
    assert opened.next_number == 3


def test_nothing_is_taken_in_until_the_reserve_is_there_again(
    opened: OutboxFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(_path: str) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    opened._storage.release_reserve()
    with monkeypatch.context() as patch:
        patch.setattr(reserve, "_allocate", make)
        with pytest.raises(errors.OutboxFull):
            opened.append([put(b"3")])
    assert opened.append([put(b"3")]) == range(3, 4)
    assert os.path.getsize(opened.path + "-reserve") == RESERVE_BYTES


def test_a_put_leaves_room_for_what_has_to_be_written_before_it_is_sent(
    opened: OutboxFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reserve, "free_bytes", lambda _: 1_100_000)
    with pytest.raises(errors.OutboxFull):
        opened.append([put(b"x" * 100_000)])
    assert opened.append([put(b"x" * 1_000)]) == range(3, 4)


def test_an_outbox_that_has_sent_everything_gives_its_room_back(waiting: Path) -> None:
    outbox = OutboxFile.open(waiting)
    numbers = outbox.append([put(b"x" * 100_000) for _ in range(10)])
    for number in range(1, numbers.stop):
        outbox.complete(number)
    outbox.close()
    assert waiting.stat().st_size < 100_000
