"""Counts the listeners of frames: SUB sockets subscribe to prefixes, and a frame that no prefix matches is not sent.

Knows prefixes and frames; knows nothing of topics or sockets.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class FrameListeners:
    """The listeners of messages that begin with one frame."""

    __slots__ = ("count", "frame")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        #: How many subscribed prefixes match the frame.
        self.count = 0


class ListenerTable:
    def __init__(self, prefixes_max: int) -> None:
        self._prefixes_max = prefixes_max
        self._prefixes: set[bytes] = set()
        self._by_frame: dict[bytes, FrameListeners] = {}
        #: Sorted: frames with the same prefix are adjacent.
        self._frames: list[bytes] = []

    def add(self, prefix: bytes) -> bool:
        """Add a subscription. False: there are too many, and it is ignored."""
        if prefix not in self._prefixes:
            if len(self._prefixes) >= self._prefixes_max:
                return False
            self._prefixes.add(prefix)
            self._count(prefix, 1)
        return True

    def discard(self, prefix: bytes) -> None:
        """Remove a subscription."""
        if prefix in self._prefixes:
            self._prefixes.remove(prefix)
            self._count(prefix, -1)

    def _count(self, prefix: bytes, change: int) -> None:
        """Change the count of the frames that a prefix matches."""
        frames = self._frames
        index = bisect_left(frames, prefix)
        while index < len(frames) and frames[index].startswith(prefix):
            self._by_frame[frames[index]].count += change
            index += 1

    def open(self, frame: bytes) -> FrameListeners:
        """Count the listeners of a frame from now on."""
        listeners = self._by_frame[frame] = FrameListeners(frame)
        listeners.count = sum(frame[:length] in self._prefixes for length in range(len(frame) + 1))
        insort(self._frames, frame)
        return listeners

    def close(self, listeners: FrameListeners) -> None:
        """Stop counting."""
        del self._by_frame[listeners.frame]
        del self._frames[bisect_left(self._frames, listeners.frame)]
