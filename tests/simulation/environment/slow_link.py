"""A connection with a limited bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.protocol.frames import Frame
from tests.simulation.environment.world import World


class SlowLink:
    """One direction of a connection with a limited bandwidth. Packets are transferred one after the other."""

    def __init__(self, world: World, bytes_per_ms: int) -> None:
        self._world = world
        self._bytes_per_ms = bytes_per_ms
        #: When the link is free, and how many bytes it has transferred by then.
        self._free_ms = 0.0
        self._queued_bytes = 0

    def carry(self, frames: Sequence[Frame]) -> int:
        """Return how long the transfer of a packet takes, behind all others."""
        size = sum(map(len, frames))
        self._queued_bytes += size
        self._free_ms = max(self._free_ms, self._world.now_ms) + size / self._bytes_per_ms
        return round(self._free_ms - self._world.now_ms)

    @property
    def transferred_bytes(self) -> int:
        left_ms = max(0.0, self._free_ms - self._world.now_ms)
        return self._queued_bytes - round(left_ms * self._bytes_per_ms)
