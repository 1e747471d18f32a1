"""One command for one message: what it is told, where its output goes, and how it ends.

Each command leads a process group of its own: a signal for the worker does not hit it, and what it has started can
be killed with it.
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

#: Between the request to end and the end.
KILL_AFTER_S = 5.0
#: What a system takes in one variable, by and large.
_VARIABLE_BYTES_MAX = 100_000
#: Processes that a command has left behind may keep its output open.
_OUTPUT_AFTER_S = 1.0

_one_line_at_a_time = threading.Lock()


class Run:
    """A command while it runs. Its output goes where ours goes, or with each line after its message's offset."""

    def __init__(self, command: Sequence[str], message: Message, tries: int, *, prefixed: bool) -> None:
        """Raises OSError where it can't be started."""
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
        self._pumps = [
            _start_pump(stream, to, b"[%d] " % message.offset)
            for stream, to in ((self._process.stdout, sys.stdout.buffer), (self._process.stderr, sys.stderr.buffer))
            if stream is not None
        ]

    def wait(self, timeout_s: float | None) -> int | None:
        """Its exit code, negative after a signal; None: it took too long, and was killed."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        for pump in self._pumps:
            pump.join(_OUTPUT_AFTER_S)
        return code

    def kill(self) -> None:
        """Ask it to end; who does not, is killed."""
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def signal(self, number: int) -> None:
        """To the command and all that it has started."""
        # While it was not waited for, its number is not another's.
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def environment_for(message: Message, tries: int) -> dict[str, str]:
    """Ours, with what is known of the message. What no variable can hold is left out."""
    ours = {
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
    told = [*zip(MESSAGE_VARIABLES, values, strict=True)]
    told += [(HEADER_VARIABLE + _variable(name), value) for name, value in message.headers.items()]
    return ours | {name: os.fsdecode(value) for name, value in told if value is not None and _fits(value)}


def _variable(header: str) -> str:
    """
    >>> _variable("content-type")
    'CONTENT_TYPE'
    """
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in header.upper())


def _fits(value: bytes) -> bool:
    return b"\0" not in value and len(value) <= _VARIABLE_BYTES_MAX


def _start_pump(stream: IO[bytes], to: BinaryIO, prefix: bytes) -> threading.Thread:
    pump = threading.Thread(target=_pump, args=(stream, to, prefix), daemon=True)
    pump.start()
    return pump


def _pump(stream: IO[bytes], to: BinaryIO, prefix: bytes) -> None:
    with stream:
        for line in stream:
            # Where nobody reads any more, the command can't help it: it goes on.
            with _one_line_at_a_time, suppress(BrokenPipeError):
                to.write(prefix + line.removesuffix(b"\n") + b"\n")
                to.flush()
