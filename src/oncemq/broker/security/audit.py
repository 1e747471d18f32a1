"""The audit log: one JSON object per line for logins, refusals and changes. It contains no secret and no message."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from oncemq.engine.event_bytes import refusal_text

log = logging.getLogger("oncemq.security")

_encode = msgspec.json.Encoder().encode
_MODE = 0o600
#: The same refusal of the same caller is recorded once in this time, with the number of those before it.
_REPEAT_MS = 60_000
_REMEMBERED_MAX = 10_000
#: Lines of one round. What exceeds this is counted.
_LINES_MAX = 1_000

LOGIN = "login"
#: A gateway got the key to check MACs of a token with: nobody has shown the token yet.
KEY_GIVEN = "key given"
LOGIN_FAILED = "login failed"
REFUSED = "refused"
CHANGED = "changed"
RELOADED = "reloaded"
NOT_RELOADED = "not reloaded"


class AuditLog:
    """Lines are written once per round, after its sync. A log that can't be written does not stop the broker."""

    def __init__(self, path: Path | None) -> None:
        """Without a path, nothing is written."""
        self._path = path
        self._descriptor = -1
        self._lines: list[bytes] = []
        self._omitted = 0
        self._has_failed = False
        #: (caller, code, what) → (when it was recorded, how often it occurred since)
        self._refusals: dict[tuple[str, str, str], tuple[int, int]] = {}

    def add(self, time_ms: int, event: str, **fields: Any) -> None:
        if self._path is None:
            return
        if len(self._lines) >= _LINES_MAX:
            self._omitted += 1
            return
        entry = {"time_ms": time_ms, "event": event, **{name: value for name, value in fields.items() if value != ""}}
        self._lines.append(_encode(entry) + b"\n")

    def add_refusal(self, time_ms: int, caller: str, code: str, text: str) -> None:
        """Record a refusal, unless the same one was recorded a moment ago."""
        if self._path is None:
            return
        text = refusal_text(text)
        key = (caller, code, text)
        recorded_ms, count = self._refusals.get(key, (-_REPEAT_MS, 0))
        if time_ms - recorded_ms < _REPEAT_MS:
            self._refusals[key] = (recorded_ms, count + 1)
            return
        if len(self._refusals) >= _REMEMBERED_MAX:
            self._refusals.clear()
        self._refusals[key] = (time_ms, 0)
        user, _, credential = caller.partition("/")
        self.add(time_ms, REFUSED, user=user, credential=credential, code=code, text=text, repeated=count or "")

    def flush(self) -> None:
        if not self._lines or self._path is None:
            return
        lines, self._lines = self._lines, []
        if self._omitted:
            lines.append(_encode({"event": "omitted", "lines": self._omitted}) + b"\n")
            self._omitted = 0
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
            data = b"".join(lines)
            while data:
                data = data[os.write(self._descriptor, data) :]
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.error("the audit log %s can't be written: %s", self._path, error.strerror)
            self._has_failed = True

    def reopen(self) -> None:
        """Open the file again: it may have been renamed by a tool that rotates logs."""
        self.close()

    def close(self) -> None:
        self.flush()
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
