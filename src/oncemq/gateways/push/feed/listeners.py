"""Who listens to what: SUB sockets subscribe to beginnings of frames, and what nobody would get need not be sent.

Knows beginnings and frames; nothing of topics or sockets.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Audience:
    """Of one first frame."""

    __slots__ = ("count", "frame")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        #: Subscriptions that it begins with.
        self.count = 0


class Listening:
    def __init__(self, prefixes_max: int) -> None:
        self._prefixes_max = prefixes_max
        self._prefixes: set[bytes] = set()
        self._audiences: dict[bytes, Audience] = {}
        #: In order: what begins alike stands together.
        self._frames: list[bytes] = []

    def add(self, prefix: bytes) -> bool:
        """False: there are too many, and this one is not known."""
        if prefix not in self._prefixes:
            if len(self._prefixes) >= self._prefixes_max:
                return False
            self._prefixes.add(prefix)
            self._count(prefix, 1)
        return True

    def discard(self, prefix: bytes) -> None:
        if prefix in self._prefixes:
            self._prefixes.remove(prefix)
            self._count(prefix, -1)

    def _count(self, prefix: bytes, more: int) -> None:
        """Only at those that it can match."""
        frames = self._frames
        index = bisect_left(frames, prefix)
        while index < len(frames) and frames[index].startswith(prefix):
            self._audiences[frames[index]].count += more
            index += 1

    def open(self, frame: bytes) -> Audience:
        """From now on it may be sent."""
        audience = self._audiences[frame] = Audience(frame)
        audience.count = sum(frame[:length] in self._prefixes for length in range(len(frame) + 1))
        insort(self._frames, frame)
        return audience

    def close(self, audience: Audience) -> None:
        del self._audiences[audience.frame]
        del self._frames[bisect_left(self._frames, audience.frame)]
