"""Waits for a socket, and for the descriptor that wakes the thread that waits."""

from __future__ import annotations

import select
from collections.abc import Collection
from typing import Any


class Poll:
    def __init__(self, poll: Any, wake_descriptor: int, descriptor: int | None = None) -> None:
        """`poll` has the methods of `select.poll`. None: there is only `select.select` (Windows)."""
        self._wake_descriptor = wake_descriptor
        self._descriptors = [] if descriptor is None else [descriptor]
        # A new connection is watched for writing: it is established when it can be written to.
        self._is_writing = True
        self._poll = poll
        if self._poll is not None:
            self._poll.register(wake_descriptor, select.POLLIN)
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN | select.POLLOUT)

    def watch_writing(self, is_writing: bool) -> bool:
        """Return whether this is a change."""
        if is_writing == self._is_writing:
            return False
        self._is_writing = is_writing
        if self._poll is not None:
            for descriptor in self._descriptors:
                self._poll.modify(descriptor, select.POLLIN | select.POLLOUT if is_writing else select.POLLIN)
        return True

    def wait(self, timeout_ms: float) -> Collection[int]:
        """Wait. Returns the descriptors that are ready."""
        if self._poll is not None:
            return [descriptor for descriptor, _ in self._poll.poll(timeout_ms)]
        writing = self._descriptors if self._is_writing else []
        reading = [*self._descriptors, self._wake_descriptor]
        readable, writable, _ = select.select(reading, writing, [], timeout_ms / 1000)
        return {*readable, *writable}
