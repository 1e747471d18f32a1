"""What every gateway is: an ordinary client of the broker that speaks another protocol to its own clients.

One process runs one or more gateways on one event loop. A gateway has no durable state of its own: what must survive it
is in the broker's sessions, keys and registry, so that it may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Gateway(Protocol):
    #: Where it listens, for people. Set by `start`.
    addresses: list[str]
    #: Called if the gateway can't continue. Whoever runs the gateway may set it.
    on_failure: Callable[[], None]

    async def start(self) -> None:
        """Listen. Raises ListenFailed."""

    async def stop(self) -> None:
        """Answer the requests that are in progress, for a short time, then close everything."""
