"""Shared by tests with real processes: flags for small files, waiting with a deadline, and a process's memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 30.0
#: Small files, so that there are several segments, snapshots and recycled segments.
SMALL = (
    "--segment-bytes=1MiB",
    "--snapshot-bytes=1MiB",
    "--snapshot-events=400",
    "--batch-bytes-max=256KiB",
    "--log-level=warning",
)


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll until the condition is true. Raises AssertionError after the deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.01)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
