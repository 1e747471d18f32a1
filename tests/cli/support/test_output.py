"""Which records the reader of a pipe has taken."""

from __future__ import annotations

import io
import os
import signal
import threading
from typing import Any

import pytest

from oncemq.cli.messages.printer import Printer
from oncemq.cli.support import output
from oncemq.cli.support.output import Output
from oncemq.cli.support.signals import orderly_exit
from oncemq.protocol.message import Message


class Pipe:
    """A pipe instead of standard output."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        self.output = Output(os.fdopen(writer, "wb"))


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def test_records_that_were_read_are_delivered(pipe: Pipe) -> None:
    got: list[bytes] = []

    def read_all() -> None:
        while sum(map(len, got)) < 300_000 and (not got or got[-1]):
            got.append(os.read(pipe.reader, 4096))

    reader = threading.Thread(target=read_all, daemon=True)
    reader.start()
    assert pipe.output.deliver([b"x" * 100_000] * 3) == 3
    reader.join()
    os.close(pipe.reader)


def test_records_that_are_still_in_the_pipe_are_not_delivered(pipe: Pipe) -> None:
    def read_one() -> None:
        os.read(pipe.reader, 10)
        os.close(pipe.reader)

    reader = threading.Thread(target=read_one, daemon=True)
    reader.start()
    assert pipe.output.deliver([b"123456789\n"] * 5) == 1
    reader.join()


def test_a_record_that_was_read_in_part_is_not_delivered(pipe: Pipe) -> None:
    def read_half() -> None:
        os.read(pipe.reader, 15)
        os.close(pipe.reader)

    reader = threading.Thread(target=read_half, daemon=True)
    reader.start()
    assert pipe.output.deliver([b"123456789\n"] * 20_000) == 1
    reader.join()


def test_without_a_reader_nothing_is_delivered(pipe: Pipe) -> None:
    os.close(pipe.reader)
    assert pipe.output.deliver([b"lost"]) == 0


def test_counts_continue_from_one_delivery_to_the_next(pipe: Pipe) -> None:
    def read_twice() -> None:
        os.read(pipe.reader, 4)
        os.read(pipe.reader, 4)
        os.close(pipe.reader)

    reader = threading.Thread(target=read_twice, daemon=True)
    reader.start()
    assert pipe.output.deliver([b"ab", b"cd"]) == 2
    assert pipe.output.deliver([b"ef", b"gh", b"ij"]) == 2
    reader.join()


def test_anything_else_than_a_pipe_takes_everything() -> None:
    taken = io.BytesIO()
    assert Output(taken).deliver([b"a", b"b"]) == 2
    assert taken.getvalue() == b"ab"


def test_a_signal_right_after_the_reader_has_taken_a_message_comes_after_its_ack(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked: list[int] = []
    nobody: Any = None
    printer = Printer(nobody, lambda message: message.value, lambda _: True)
    printer._output = pipe.output
    threading.Thread(target=os.read, args=(pipe.reader, 100), daemon=True).start()

    def unread_bytes(descriptor: int) -> int:
        unread = queued_bytes(descriptor)
        if not unread:
            signal.raise_signal(signal.SIGTERM)
        return unread

    queued_bytes = output._unread_bytes
    monkeypatch.setattr(output, "_unread_bytes", unread_bytes)
    monkeypatch.setattr(
        "oncemq.cli.messages.printer.acknowledge", lambda *found: acked.extend(message.offset for message in found[2])
    )
    with pytest.raises(SystemExit), orderly_exit():
        printer.print(nobody, [Message("orders", 7, b"one pizza\n", None, {}, 0, 1)], 1)
    assert acked == [7]
