"""The network interface: requests arrive with the peer that sent them, responses are sent to a peer.

In production it is a set of listeners (listeners.py), in an embedded broker a queue (broker/embedded.py), and in the
simulator a network that loses, duplicates and reorders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from oncemq.protocol.frames import Frame

Arrival = tuple[bytes, Sequence[Frame]]

#: Maximum requests and bytes that one round takes; the rest shares the next sync.
ARRIVALS_MAX = 1_000
ARRIVAL_BYTES_MAX = 8 * 1024 * 1024


class Network(Protocol):
    def take(self, wait_ms: int) -> list[Arrival]:
        """Return what has arrived. If there is nothing, wait for at most `wait_ms`."""

    def when_gone(self, call: Callable[[bytes], None]) -> None:
        """From now on, call this with each peer whose connection has ended, as far as that is known."""

    def caller_of(self, peer: bytes) -> str:
        """Return the caller that a peer has logged in as; empty if there are no users. It holds for all that the peer
        has sent, also after its connection has ended."""

    def drop_invalid(self) -> None:
        """Users have changed: disconnect the peers whose credentials are not valid any more."""

    def is_reading(self, peer: bytes) -> bool:
        """Whether a peer reads what is sent to it. If not, the response is dropped, and counted as such."""

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        """Send to a peer. If the peer is gone, the frames are dropped: the client sends its request again."""
