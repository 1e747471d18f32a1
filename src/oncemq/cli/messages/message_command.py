"""One command for one message: its input, its environment, its output and its exit code.

Each command leads a process group of its own: signals for the worker do not reach it, and it can be killed together
with all processes that it has started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, BinaryIO

from oncemq.cli.messages.formats import time_text
from oncemq.cli.support.options import HEADER_VARIABLE, MESSAGE_VARIABLES

if TYPE_CHECKING:
    from oncemq.protocol.message import Message

#: Time between SIGTERM and SIGKILL.
KILL_AFTER_S = 5.0
#: Operating systems limit the size of one environment variable; this is below the limits in use.
_VARIABLE_BYTES_MAX = 100_000
#: Processes that a command leaves behind may keep its output open.
_OUTPUT_AFTER_S = 1.0

_line_lock = threading.Lock()


class MessageCommand:
    """A running command. Its output is passed through, or each line is prefixed with the offset of its message."""

    def __init__(self, command: Sequence[str], message: Message, tries: int, *, prefixed: bool) -> None:
        """Start it. Raises OSError if it can't be started."""
        output = subprocess.PIPE if prefixed else None
        with tempfile.TemporaryFile() as value:
            value.write(message.value)
            value.seek(0)
            self._process = subprocess.Popen(
                command,
                stdin=value,
                stdout=output,
                stderr=output,
                env=environment_for(message, tries),
                start_new_session=True,
            )
        self._copiers = [
            _start_copier(stream, to, b"[%d] " % message.offset)
            for stream, to in ((self._process.stdout, sys.stdout.buffer), (self._process.stderr, sys.stderr.buffer))
            if stream is not None
        ]

    def wait(self, timeout_s: float | None) -> int | None:
        """Return its exit code, negative after a signal, or None if it took too long and was killed."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        for copier in self._copiers:
            copier.join(_OUTPUT_AFTER_S)
        return code

    def kill(self) -> None:
        """Send SIGTERM, then SIGKILL if it does not end in time."""
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the command and all processes that it has started."""
        # Until the process was waited for, its id can't belong to another process.
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def environment_for(message: Message, tries: int) -> dict[str, str]:
    """Return our environment with the fields of the message. Values that no variable can hold are left out."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in MESSAGE_VARIABLES and not name.startswith(HEADER_VARIABLE)
    }
    values = (
        message.topic.encode(),
        b"%d" % message.offset,
        message.key,
        b"%d" % tries,
        time_text(message.timestamp_ms).encode(),
        message.idempotency_key.encode(),
    )
    fields = [*zip(MESSAGE_VARIABLES, values, strict=True)]
    fields += [(HEADER_VARIABLE + _variable(name), value) for name, value in message.headers.items()]
    return inherited | {name: os.fsdecode(value) for name, value in fields if value is not None and _fits(value)}


def _variable(header: str) -> str:
    """
    >>> _variable("content-type")
    'CONTENT_TYPE'
    """
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in header.upper())


def _fits(value: bytes) -> bool:
    return b"\0" not in value and len(value) <= _VARIABLE_BYTES_MAX


def _start_copier(stream: IO[bytes], to: BinaryIO, prefix: bytes) -> threading.Thread:
    copier = threading.Thread(target=_copy_lines, args=(stream, to, prefix), daemon=True)
    copier.start()
    return copier


def _copy_lines(stream: IO[bytes], to: BinaryIO, prefix: bytes) -> None:
    with stream:
        for line in stream:
            # If the reader of our output has exited, the command still runs to its end.
            with _line_lock, suppress(BrokenPipeError):
                to.write(prefix + line.removesuffix(b"\n") + b"\n")
                to.flush()
