"""Standard output for messages that are acked after they have been printed.

Bytes in a pipe have been written, but not read. If the reader exits (`| head`), they are lost. Therefore `deliver`
waits until the pipe is empty, and returns how many records the reader has taken. A signal must not come between that
and the ack, so the caller defers signals; one that is deferred ends the wait.
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

from oncemq.cli.support.signals import is_signal_deferred

_DRAIN_POLL_S_MAX = 0.02
_WRITE_POLL_MS = 20


class Output:
    """Standard output for records whose delivery to the reader is tracked."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream or sys.stdout.buffer
        self._pipe = _pipe_of(self._stream)
        self._written_bytes = 0

    def deliver(self, records: Sequence[bytes]) -> int:
        """Write records, and return how many the reader has taken. If not all of them: the reader has exited, or a
        signal is deferred."""
        data = b"".join(records)
        if self._pipe is None:
            self._stream.write(data)
            self._stream.flush()
            return len(records)
        ends = list(accumulate(map(len, records), initial=self._written_bytes))[1:]
        self._write_to_pipe(self._pipe, data)
        _wait_until_read(self._pipe)
        return bisect_right(ends, self._written_bytes - _unread_bytes(self._pipe))

    def _write_to_pipe(self, pipe: int, data: bytes) -> None:
        rest = memoryview(data)
        writable = select.poll()
        writable.register(pipe, select.POLLOUT)
        try:
            while rest and not is_signal_deferred():
                if writable.poll(_WRITE_POLL_MS):
                    size = os.write(pipe, rest[: select.PIPE_BUF])
                    self._written_bytes += size
                    rest = rest[size:]
        except BrokenPipeError:
            # The caller finds out how much the reader took before it exited.
            return


def _pipe_of(stream: Any) -> int | None:
    """Return the stream's file descriptor if it is a pipe whose number of unread bytes can be queried."""
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
    """Wait until the pipe is empty, its reader has exited, or a signal is deferred."""
    hangup = select.poll()
    hangup.register(pipe, 0)
    pause_s = 0.0
    while _unread_bytes(pipe) and not hangup.poll(0) and not is_signal_deferred():
        time.sleep(pause_s)
        pause_s = min(_DRAIN_POLL_S_MAX, pause_s * 2 or 0.0001)
