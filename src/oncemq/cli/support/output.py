"""Standard output as commands need it: messages as bytes, of which it is known what the reader has taken;
tables for people, JSON lines for programs.

Bytes that lie in a pipe are written, but nobody has them: when the reader ends (`| head`), they are gone. So
`deliver` waits until the pipe is empty, and says how many records left it.
"""

from __future__ import annotations

import os
import select
import stat
import struct
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, BinaryIO

import click

from oncemq.cli.support.signals import held_back

_DRAIN_POLL_S_MAX = 0.02


class Output:
    """Standard output, for records that must not get lost between here and the reader."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream or sys.stdout.buffer
        self._pipe = _pipe_of(self._stream)
        self._written_bytes = 0
        #: Records of the last `deliver` that have left; known also when it was interrupted.
        self.delivered = 0

    def deliver(self, records: Sequence[bytes]) -> int:
        """Write records; how many of them have left. Fewer than all: the reader has gone."""
        self.delivered = 0
        data = b"".join(records)
        if self._pipe is None:
            with held_back():
                self._stream.write(data)
                self._stream.flush()
                self.delivered = len(records)
            return self.delivered
        ends = list(accumulate(map(len, records), initial=self._written_bytes))[1:]
        try:
            self._write_to_pipe(self._pipe, data)
            _wait_until_read(self._pipe)
        finally:
            self.delivered = bisect_right(ends, self._written_bytes - _unread_bytes(self._pipe))
        return self.delivered

    def _write_to_pipe(self, pipe: int, data: bytes) -> None:
        rest = memoryview(data)
        writable = select.poll()
        writable.register(pipe, select.POLLOUT)
        try:
            while rest:
                writable.poll()
                with held_back():
                    size = os.write(pipe, rest[: select.PIPE_BUF])
                    self._written_bytes += size
                rest = rest[size:]
        except BrokenPipeError:
            # What the reader took before it left is found out by the caller.
            return


def _pipe_of(stream: Any) -> int | None:
    """The stream's file descriptor, if it is a pipe whose filling can be seen."""
    try:
        descriptor: int = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
        _unread_bytes(descriptor)
    except (OSError, ImportError, AttributeError):
        return None
    return descriptor


def _unread_bytes(pipe: int) -> int:
    import fcntl
    import termios

    count: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]
    return count


def _wait_until_read(pipe: int) -> None:
    """Wait until the pipe is empty or its reader gone."""
    gone = select.poll()
    gone.register(pipe, 0)
    pause_s = 0.0
    while True:
        if _unread_bytes(pipe) == 0 or gone.poll(0):
            return
        time.sleep(pause_s)
        pause_s = min(_DRAIN_POLL_S_MAX, pause_s * 2 or 0.0001)


def json_line(entry: Any) -> str:
    """An object (a mapping or a Struct) as one line of JSON, with names for its fields."""
    import msgspec

    fields = msgspec.structs.asdict(entry) if isinstance(entry, msgspec.Struct) else dict(entry)
    return msgspec.json.encode(fields).decode()


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Aligned columns: numbers to the right, the rest to the left."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    numeric = [all(isinstance(row[at], int | float) for row in rows) for at in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        )
        return "  ".join(aligned).rstrip()

    return [line(heads), *map(line, texts)]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def bytes_text(size: float) -> str:
    """
    >>> bytes_text(1536)
    '1.5 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration_text(span_ms: float) -> str:
    """
    >>> duration_text(5_400_000)
    '1.5 h'
    """
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if span_ms >= size_ms:
            return f"{span_ms / size_ms:.1f} {unit}".replace(".0 ", " ")
    return f"{span_ms:.0f} ms"


def is_terminal(stream: Any = None) -> bool:
    """Whether a person sees what is written to standard error."""
    return bool((stream or sys.stderr).isatty())


def count_of(number: int, noun: str) -> str:
    """
    >>> count_of(1, "message"), count_of(2000, "message")
    ('1 message', '2,000 messages')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def confirm(question: str) -> None:
    """Ask; anything but a yes ends the command. Ctrl-C is an interrupt, not an answer."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            click.echo(err=True)
            raise KeyboardInterrupt from None
        raise


def note(text: str) -> None:
    """Say something to the person, beside the output."""
    click.echo(text, err=True)


def warn(text: str) -> None:
    click.echo(click.style("warning: ", fg="yellow", bold=True) + text, err=True)
