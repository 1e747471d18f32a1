"""The connection point between the client and a broker inside the same process.

The client does not import the broker. `oncemq/__init__.py` registers the function that opens an embedded broker, and
the transport for `file:` and `memory:` URLs calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from oncemq.protocol.frames import Frame


class EmbeddedLink(Protocol):
    """One client's connection to the broker inside this process."""

    def send(self, frames: Sequence[Frame]) -> None:
        """Hand a request to the broker."""

    def receive(self, timeout_ms: float) -> Sequence[Frame] | None:
        """Return the next reply, or None after `timeout_ms`. The calling thread runs the broker meanwhile."""

    def close(self) -> None:
        """Leave the broker. The last link to leave stops it."""


_attach: Callable[[str], EmbeddedLink] | None = None


def register_embedded_broker(attach: Callable[[str], EmbeddedLink]) -> None:
    """Set the function that opens the broker of a `file:` or `memory:` URL."""
    global _attach
    _attach = attach


def attach_embedded(url: str) -> EmbeddedLink:
    """Connect to the broker inside this process, and start it if it does not run yet."""
    assert _attach is not None, "oncemq/__init__.py registers the embedded broker"
    return _attach(url)
