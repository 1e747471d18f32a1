"""The file of a recorder: lines are appended as they happen, and the first line tells whether the file is complete.

Each line is written to the file immediately, so it survives the process, but not a power failure. If a line can't be
written, the client continues without recording, and the first line is overwritten to say that the file is not
complete. The space for that is reserved from the beginning.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from pathlib import Path
from urllib.parse import quote

import msgspec

from oncemq.client.recording.records import Begin, End, Line
from oncemq.protocol import errors
from oncemq.protocol.version import __version__

log = logging.getLogger("oncemq.recording")

_SESSION_LETTERS_MAX = 80
_encode = msgspec.json.Encoder().encode
_COMPLETE = b'"complete":true'
#: As long as the text that overwrites it.
_COMPLETE_PADDED = b'"complete":true '
_INCOMPLETE = b'"complete":false'


def time_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class RecordFile:
    """One client's file, which is created new."""

    def __init__(self, folder: Path, session: str) -> None:
        """Raises SettingInvalid if the file can't be created."""
        name = f"{quote(session, safe='')[:_SESSION_LETTERS_MAX]}-{os.getpid()}-{secrets.token_hex(4)}.ndjson"
        self.path = folder / name
        try:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise errors.SettingInvalid(f"can't record to the folder '{folder}': {error.strerror}") from None
        software = f"oncemq {__version__}"
        begin = Begin(session=session, pid=os.getpid(), host=socket.gethostname(), software=software)
        begin.seq, begin.at_ms, self._seq = 0, time_ms(), 1
        line = _encode(begin).replace(_COMPLETE, _COMPLETE_PADDED, 1)
        self._complete_at = line.index(_COMPLETE_PADDED)
        self._append(line + b"\n")

    def write(self, line: Line) -> None:
        """Append a line. Never raises."""
        if self._descriptor < 0:
            return
        line.seq, line.at_ms = self._seq, time_ms()
        self._seq += 1
        self._append(_encode(line) + b"\n")

    def close(self) -> None:
        """Write the last line and close the file."""
        self.write(End())
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Stop recording, and mark the file as incomplete."""
        log.error("recording to %s ends: %s", self.path, error)
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.pwrite(descriptor, _INCOMPLETE, self._complete_at)
            os.close(descriptor)
        except OSError as second:
            log.error("%s could not be marked as incomplete: %s", self.path, second)
