"""Prevents two runs on one checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from oncemq.protocol.errors import PipelineFailed

#: In the checkpoint's folder.
_LOCK_FILE = "oncemq-run.lock"


@contextmanager
def locked(checkpoint: str) -> Iterator[None]:
    """Lock the checkpoint against other runs. A remote folder can't be locked; there, Spark lets the second run fail.

    Raises PipelineFailed."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    if "://" in checkpoint:
        yield
        return
    os.makedirs(checkpoint, exist_ok=True)
    with open(os.path.join(checkpoint, _LOCK_FILE), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another run uses the checkpoint {checkpoint}; stop it, or give this pipeline another checkpoint"
            raise PipelineFailed(text) from None
        yield
