"""Virtual time and the queue of what is to happen; the transcript; what was counted. Knows no broker."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from tests.simulation.environment.faults import Faults, faults_of

START_MS = 1_000_000
TRANSCRIPT_LINES = 40


class Violation(Exception):
    """A promise was broken; the text says which, in the words of history.py."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.faults: Faults = faults_of(seed)
        self.now_ms = START_MS
        #: True in the second phase: everything works, and everything must come to its end.
        self.healed = False
        #: When everybody had come to rest but those who get and put, and those who only get.
        self.calm_ms: int | None = None
        #: When everybody but the consumers had come to rest.
        self.quiet_ms: int | None = None
        #: The broker is there and can write; and since when without a break.
        self.is_available = False
        self.available_since_ms = START_MS
        self.tally: Counter[str] = Counter()
        self.transcript: deque[str] = deque(maxlen=TRANSCRIPT_LINES)
        self.digest = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._entries = 0

    def random(self, name: str) -> Random:
        """A stream of its own for each part, so that a change in one leaves the others alone."""
        return Random(f"{self.seed}/{name}")

    def set_available(self, is_available: bool) -> None:
        self.is_available = is_available
        self.available_since_ms = self.now_ms

    def note(self, line: str) -> None:
        text = f"{self.now_ms - START_MS:6d} {line}"
        self.digest = zlib.crc32(text.encode(), self.digest)
        self.transcript.append(text)

    def at(self, time_ms: int, action: Callable[[], None]) -> None:
        self._entries += 1
        heappush(self._queue, (time_ms, self._entries, action))

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._entries += 1
        heappush(self._queue, (self.now_ms + delay_ms, self._entries, action))

    def run(self, until_ms: int, is_over: Callable[[], bool] | None = None) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            if queue[0][0] > self.now_ms:
                if is_over is not None and is_over():
                    return
                self.now_ms = queue[0][0]
            heappop(queue)[2]()
        self.now_ms = max(self.now_ms, until_ms)
