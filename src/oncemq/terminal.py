"""Text for people and programs at a terminal: tables, counts, sizes, durations, JSON lines, notes, warnings and errors.

Text that comes from others (messages, names) must not control the terminal: `printable` escapes it.

The command line and the tools share it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

#: Control characters except tab and newline; lone surrogates; characters that change the direction of the text around
#: them, or break the line where no newline is.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Escape what could control a terminal or change the direction of a line.

    >>> printable("red: \\x1b[31m, and a\\ttab")
    'red: \\\\x1b[31m, and a\\ttab'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_bytes(data: bytes) -> bytes:
    """Escape the same characters, and bytes that are not UTF-8.

    >>> printable_bytes(b"caf\\xc3\\xa9 \\xff\\r")
    b'caf\\xc3\\xa9 \\\\xff\\\\r'
    """
    return printable(data.decode("utf-8", "backslashreplace")).encode()


def printable_json(line: str) -> str:
    """Escape the same characters in JSON, where the result stands for the same values.

    >>> printable_json('["\\x9b31m"]')
    '["\\\\u009b31m"]'
    """
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def json_line(entry: Any) -> str:
    """Return an object (a mapping or a Struct) as one line of JSON that does not control a terminal."""
    import msgspec

    fields = msgspec.structs.asdict(entry) if isinstance(entry, msgspec.Struct) else dict(entry)
    return printable_json(msgspec.json.encode(fields).decode())


def table(
    heads: Sequence[str], rows: Sequence[Sequence[Any]], optional: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """Return aligned columns: numbers to the right, everything else to the left. Columns of `optional` (head → cells)
    follow, without those that are empty."""
    for head, cells in (optional or {}).items():
        if any(cells):
            heads = [*heads, head]
            rows = [[*row, cell or "-"] for row, cell in zip(rows, cells, strict=True)]
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    numeric = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(heads))]

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
    return printable(str(value))


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


def duration_text(duration_ms: float) -> str:
    """
    >>> duration_text(5_400_000)
    '1.5 h'
    """
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if duration_ms >= size_ms:
            return f"{duration_ms / size_ms:.1f} {unit}".replace(".0 ", " ")
    return f"{duration_ms:.0f} ms"


def is_terminal(stream: Any = None) -> bool:
    """Whether a stream (standard error, unless another is given) is a terminal."""
    return bool((stream or sys.stderr).isatty())


def has_colours(stream: Any = None) -> bool:
    """Whether text for a stream (standard error, unless another is given) may have colours. `NO_COLOR` forbids them."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, **style: Any) -> str:
    """Return a text with colours, unless `NO_COLOR` forbids them. (`click.echo` removes them outside of a terminal.)"""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)


def count_of(number: int, noun: str) -> str:
    """
    >>> count_of(1, "message"), count_of(2000, "message")
    ('1 message', '2,000 messages')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def confirm(question: str) -> None:
    """Ask for a confirmation. Raises click.Abort unless the answer is yes, KeyboardInterrupt on Ctrl-C."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            click.echo(err=True)
            raise KeyboardInterrupt from None
        raise


def note(text: str) -> None:
    """Print a line for the person at the terminal, on standard error: it is not part of the output."""
    click.echo(printable(text), err=True)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    click.echo(styled("warning: ", fg="yellow", bold=True) + printable(text), err=True)


def error(text: str, advice: str = "") -> None:
    """Print an error on standard error, and below it what to do about it."""
    click.echo(styled("error: ", fg="red", bold=True) + printable(text), err=True)
    if advice:
        click.echo(f"       {printable(advice)}", err=True)


@contextmanager
def signals_handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, Ctrl-C, SIGTERM and the end of the terminal (SIGHUP, unless it is ignored) call `handler`."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    former = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, previous in zip(numbers, former, strict=True):
            signal.signal(number, previous)


def utf8(text: str, what: str) -> str:
    """Return `text` if it can be sent. Raises NameInvalid otherwise.

    Python represents bytes of an argument that are not UTF-8 as lone surrogates, which can't be encoded.
    """
    from oncemq.protocol.errors import NameInvalid

    try:
        text.encode()
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "surrogateescape")
        raise NameInvalid(f"{what} must be UTF-8, and {str(raw)[1:]} is not") from None
    return text


def bytes_of(argument: str) -> bytes:
    """Return the bytes of a command-line argument exactly as they were given."""
    return argument.encode("utf-8", "surrogateescape")
