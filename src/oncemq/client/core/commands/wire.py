"""What the network has transferred. It shows that a request, or its reply, is under way.

A driver gets complete messages only. Where the system counts the bytes of a connection, the transport reports them
when a reply is overdue. A request counts as under way while its bytes are being acknowledged, or while a reply is
arriving. Otherwise a minimum rate is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oncemq.protocol.frames import Frame

#: A connection that transfers fewer bytes than this within a timeout counts as stalled.
PROGRESS_BYTES = 4096
#: The rate that is assumed for bytes whose transfer is not visible: those that wait in a proxy, and all of them if the
#: system does not count the bytes of a connection.
ASSUMED_BYTES_PER_S = 512 * 1024
#: The same inside a machine, where nothing but a busy broker delays bytes.
_LOCAL_BYTES_PER_S = 16 * 1024 * 1024
_SHORT_FRAME_BYTES_MAX = 255


def counted_bytes(frames: Sequence[Frame]) -> int:
    """How many bytes a complete reply counts for: its frames with the headers that ZeroMQ gives them."""
    count = 0
    for size in map(len, frames):
        count += size + (2 if size <= _SHORT_FRAME_BYTES_MAX else 9)
    return count


class WireBytes(NamedTuple):
    """Bytes of a connection since it was opened, as the system counts them."""

    #: Sent, and acknowledged by the peer's system.
    acked: int
    received: int


#: For a connection inside this machine: everything has arrived, and a reply is not seen before it is complete.
LOCAL = WireBytes(1 << 62, 0)


class Movement(NamedTuple):
    """What the connection has transferred between two reports."""

    acked: int
    #: Enough bytes for a connection that is not stalled.
    is_sending: bool
    #: The same, for a reply that is not complete.
    is_receiving: bool
    received_bytes: int


class Wire:
    """The byte streams of the current connection. Positions in them are lower bounds: ZeroMQ adds a few bytes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """There is a new connection."""
        self._queued = 0
        self._complete = 0
        self._has_completed = False
        self._reported = WireBytes(0, 0)
        self._incomplete = 0

    def sent(self, size: int) -> int:
        """A request is queued. Return where it ends in the stream."""
        self._queued += size
        return self._queued

    def received(self, frames: Sequence[Frame]) -> None:
        """A complete reply has arrived."""
        self._has_completed = True
        self._complete += counted_bytes(frames)

    def report(self, now: WireBytes) -> Movement:
        """The system has counted this much."""
        before, self._reported = self._reported, now
        incomplete_before = 0 if self._has_completed else self._incomplete
        self._incomplete = now.received - self._complete
        self._has_completed = False
        return Movement(
            now.acked,
            now.acked - before.acked >= PROGRESS_BYTES,
            self._incomplete - incomplete_before >= PROGRESS_BYTES,
            now.received - before.received,
        )


def assumed_ms(size: int, wire: WireBytes | None) -> float:
    """How long a transfer takes at the assumed rate; a small one takes no time."""
    bytes_per_s = _LOCAL_BYTES_PER_S if wire is LOCAL else ASSUMED_BYTES_PER_S
    return max(0, size - PROGRESS_BYTES) / bytes_per_s * 1000
