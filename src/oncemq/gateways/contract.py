"""What every gateway is: an ordinary client of the broker that speaks another protocol to everybody else.

One process runs one gateway or several, on one event loop. A gateway remembers nothing of its own: what must survive
it is in the broker's sessions, keys and registry, so that it may be killed at any moment.
"""

from __future__ import annotations

from typing import Protocol


class Gateway(Protocol):
    #: For people: where it listens, once it has started.
    addresses: list[str]

    async def start(self) -> None:
        """Listen. Raises ListenFailed."""

    async def stop(self) -> None:
        """Answer what is in hand, for a moment, then close everything."""
