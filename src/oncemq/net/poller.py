"""Waits for many descriptors: epoll on Linux, poll elsewhere."""

from __future__ import annotations

import select

READABLE = select.POLLIN
WRITABLE = select.POLLOUT


class Poller:
    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        # Both have the same methods. Only the unit of the timeout differs.
        self._poll = self._epoll or select.poll()

    def watch(self, descriptor: int, events: int) -> None:
        self._poll.register(descriptor, events)

    def change(self, descriptor: int, events: int) -> None:
        self._poll.modify(descriptor, events)

    def ignore(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)

    def wait(self, timeout_ms: float) -> list[tuple[int, int]]:
        """Return the descriptors that are ready, and what each of them is ready for."""
        return self._poll.poll(timeout_ms / 1000 if self._epoll is not None else timeout_ms)

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
