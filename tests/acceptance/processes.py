"""Shared by tests with real processes: flags for small files, and waiting with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

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
