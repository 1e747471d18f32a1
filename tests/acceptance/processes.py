"""What tests with real processes share: flags for small files, and waiting with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 30.0
#: Small files, so that segments, snapshots and recycling all come into play.
SMALL = (
    "--segment-bytes=1MiB",
    "--snapshot-bytes=1MiB",
    "--snapshot-events=400",
    "--batch-bytes-max=256KiB",
    "--log-level=warning",
)


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll. Fails after the deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.01)
