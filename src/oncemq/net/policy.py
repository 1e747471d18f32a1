"""Decides which connections are ended, and why. It does no I/O.

A peer is over its limit if it has sent more than the largest request and the listener could not deliver it, or if it
has not read its replies for too long. If all peers together are over the limit of the listener, those that have been
stalled longest go first.

libzmq needs 64 bytes of memory for each frame, and the shortest one has 2 bytes. So a few megabytes can take hundreds
of megabytes of memory. The kernel does not know frames, so this shows only as memory of the process that no account
explains. Then those connections go whose next bytes look like a series of short frames, and those that have been
stalled for long. If there are none, Unix sockets go: their peers connect again, and what was unfinished is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from oncemq.net.connection import Connection

_MIB = 2**20
#: What the kernel holds for a connection in addition to what libzmq has read.
KERNEL_BYTES = 8 * _MIB
#: Limits of the memory of the process that no account explains. Above the first one, connections that evidently send
#: short frames are ended: freeing millions of frames delays libzmq, and with it other peers. Above the second one,
#: suspects are ended too.
EVIDENT_BYTES_MAX = 16 * _MIB
UNEXPLAINED_BYTES_MAX = 64 * _MIB
#: What one client has in flight at most, and all of them together. The bytes of Unix sockets are not counted, so this
#: is added for each one that sends complete messages.
_IN_FLIGHT_BYTES = 24 * _MIB
_IN_FLIGHT_BYTES_MAX = 192 * _MIB
#: Memory of the shortest frames, in multiples of their size.
_MEMORY_PER_BYTE = 32
#: The same of long frames is less than this.
_SUSPECT_MEMORY_PER_BYTE = 2
#: Smaller amounts make nobody a suspect.
_SUSPECT_BYTES = 4096
#: A peer that is stalled for this long is a suspect. Unix sockets: see `is_suspect`.
_STALLED_S = 1.0
_UNIX_STALLED_S = 0.075
_UNIX_STALLED_SHORTLY_S = 0.02
#: No peer can send UNEXPLAINED_BYTES_MAX in less than this.
_UNCOUNTED_S = 0.03
#: Short frames in a row that are no coincidence, and how many bytes are looked at.
_SHORT_FRAMES = 32
PEEK_BYTES = 4096
_SHORT_FRAME_BYTES_MAX = 2 + 255


class ListenerLimits(msgspec.Struct, frozen=True, kw_only=True):
    connections_max: int
    #: Of one peer: bytes that it has sent and that could not be delivered, and bytes of replies that it has not read.
    peer_bytes_max: int
    #: The same, for all peers together.
    peers_bytes_max: int = 256 * _MIB
    #: How long a peer may read nothing of what was sent to it.
    write_timeout_s: float = 30.0


class Cut(NamedTuple):
    """A connection that must be ended."""

    connection: Connection
    #: The name of the counter.
    kind: str
    why: str


class Memory(NamedTuple):
    """How much memory the process uses more than it did without peers, the rest that no account explains, all of it,
    and the limit of the rest."""

    growth: int
    unexplained: int
    used: int
    unexplained_max: int

    @property
    def is_short(self) -> bool:
        return self.unexplained > self.unexplained_max

    @property
    def is_very_short(self) -> bool:
        return self.unexplained > 1.5 * self.unexplained_max


def over_limit(connections: Iterable[Connection], limits: ListenerLimits, now_s: float) -> list[Cut]:
    """Return the connections that are over a limit of their own."""
    cuts = []
    for each in connections:
        if each.unprocessed > limits.peer_bytes_max:
            why = f"it has sent {each.unprocessed:,} bytes that are incomplete or not read yet"
            cuts.append(Cut(each, "peers_cut_unfinished", why))
        elif now_s - each.progress_s > limits.write_timeout_s:
            why = f"it has read nothing for {limits.write_timeout_s:g} seconds"
            cuts.append(Cut(each, "peers_cut_unread", why))
    return cuts


def over_total(connections: Sequence[Connection], limits: ListenerLimits, now_s: float) -> list[Cut]:
    """Return the connections that must be ended because all together are over the limit."""
    why = f"all peers together have more than {limits.peers_bytes_max:,} bytes waiting, and it is stalled"
    stalled = sorted(connections, key=lambda each: each.stalled_since_s)
    unfinished = _until_below(stalled, limits.peers_bytes_max, lambda each: each.unprocessed)
    silent = [each for each in connections if each.unread and now_s - each.progress_s > _STALLED_S]
    excess = sum(each.unread for each in connections) - limits.peers_bytes_max
    unread = _covering(sorted(silent, key=lambda each: -each.unread), excess, lambda each: each.unread)
    return [Cut(each, "peers_cut_unfinished", why) for each in unfinished] + [
        Cut(each, "peers_cut_unread", why) for each in unread
    ]


def _until_below(connections: Sequence[Connection], bound: int, size: Callable[[Connection], int]) -> list[Connection]:
    excess = sum(map(size, connections)) - bound
    return _covering([each for each in connections if size(each)], excess, size)


def _covering(connections: Iterable[Connection], amount: int, size: Callable[[Connection], int]) -> list[Connection]:
    """Return the first connections that have `amount` together."""
    chosen = []
    for each in connections:
        if amount <= 0:
            break
        chosen.append(each)
        amount -= size(each)
    return chosen


def under_pressure(
    connections: Sequence[Connection], memory: Memory, peek: Callable[[Connection], bytes], now_s: float
) -> list[Cut]:
    """Return the connections that must be ended because the process has more memory than the accounts explain."""
    is_short = memory.is_short
    silent = [each for each in connections if now_s - each.progress_s > _STALLED_S]
    if silent and is_short:
        return [Cut(each, "peers_cut_unread", "memory is short, and it does not read") for each in silent]
    suspects = [(each, each.unprocessed > 0 and are_short_frames(peek(each))) for each in connections]
    suspects = [
        (each, evident) for each, evident in suspects if evident or (is_short and is_suspect(each, memory, now_s))
    ]
    suspects.sort(key=lambda suspect: (not suspect[1], suspect[0].stalled_since_s))
    chosen = _covering((each for each, _ in suspects), memory.growth, _memory_max)
    return [Cut(each, "peers_cut_unfinished", "memory is short, and its message never ends") for each in chosen]


def unexplained_bytes_max(connections: Iterable[Connection], now_s: float) -> int:
    """Return how much memory may be unexplained."""
    active = sum(
        each.is_unix and each.delivered > 0 and now_s - each.stalled_since_s < _STALLED_S for each in connections
    )
    return UNEXPLAINED_BYTES_MAX + min(active * _IN_FLIGHT_BYTES, _IN_FLIGHT_BYTES_MAX)


def uncounted(connections: Iterable[Connection], now_s: float) -> list[Cut]:
    """Return the connections that may be the reason for any lack of memory: the kernel does not count what it receives
    from a Unix socket. One whose last message was complete a moment ago has not had the time."""
    why = "memory is short for no known reason, and what the peer of a Unix socket has sent is not known"
    return [
        Cut(each, "peers_cut_unfinished", why)
        for each in connections
        if each.is_unix and now_s - each.stalled_since_s > _UNCOUNTED_S
    ]


def can_explain(connections: Sequence[Connection], unexplained: int) -> bool:
    """Whether these connections may be the reason for memory that no account explains."""
    return any(each.is_unix and each.unprocessed for each in connections) or (
        sum(_memory_max(each) for each in connections if not each.is_unix) >= unexplained
    )


def _memory_max(connection: Connection) -> int:
    # The kernel does not count what it receives from a Unix socket.
    return UNEXPLAINED_BYTES_MAX if connection.is_unix else _MEMORY_PER_BYTE * connection.unprocessed


def is_suspect(connection: Connection, memory: Memory, now_s: float) -> bool:
    """Whether a connection may be the reason for a lack of memory: since its last complete message, the process has
    grown by more than what the peer has sent. So a large request over a slow link is no suspect. For a Unix socket,
    there is no other sign than that bytes wait to be read all the time, and no message is complete."""
    stalled_s = now_s - connection.stalled_since_s
    if connection.is_unix:
        limit_s = _UNIX_STALLED_SHORTLY_S if memory.is_very_short else _UNIX_STALLED_S
        return connection.unprocessed > 0 and stalled_s > limit_s
    growth = memory.used - connection.stalled_at_bytes
    is_large = connection.unprocessed > _SUSPECT_BYTES and growth > _SUSPECT_MEMORY_PER_BYTE * connection.unprocessed
    return is_large and stalled_s > _STALLED_S


def are_short_frames(received: bytes) -> bool:
    """Whether bytes from the middle of a connection look like a series of short frames of one message.

    >>> are_short_frames(b"x" + b"\\1\\1x" * 100)
    True
    >>> are_short_frames(b"a message that a person wrote" * 10)
    False
    """
    return any(_is_series(received, start) for start in range(min(_SHORT_FRAME_BYTES_MAX, len(received))))


def _is_series(received: bytes, at: int) -> bool:
    for _ in range(_SHORT_FRAMES):
        # A short frame with more frames after it: flags, length, body.
        if at + 1 >= len(received) or received[at] != 1:
            return False
        at += 2 + received[at + 1]
    return True
