"""Virtual time, the queue of actions, the transcript and the counters. Knows nothing about brokers."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from tests.simulation.environment.faults import Faults, faults_of
from tests.simulation.environment.stream_faults import StreamFaults, stream_faults_of

START_MS = 1_000_000
TRANSCRIPT_LINES = 40


class Violation(Exception):
    """A guarantee was broken. The text says which one, in the terms of checks/history.py."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.faults: Faults = faults_of(seed)
        self.stream_faults: StreamFaults = stream_faults_of(seed)
        self.now_ms = START_MS
        #: True in the second phase: no more faults, and every process must finish its work.
        self.healed = False
        #: When all processes had finished, except consumers and those that put what they get.
        self.calm_ms: int | None = None
        #: When all processes had finished, except consumers.
        self.quiet_ms: int | None = None
        #: Whether the broker is running and can write, and since when.
        self.is_available = False
        self.available_since_ms = START_MS
        #: How far the clock of the brokers is behind. It falls behind when it leaps at a start, and continues from the
        #: last recorded time.
        self.clock_behind_ms = 0
        self.tally: Counter[str] = Counter()
        self.transcript: deque[str] = deque(maxlen=TRANSCRIPT_LINES)
        self.digest = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._entries = 0

    def random(self, name: str) -> Random:
        """Return a separate random stream for each part, so that a change in one part does not affect the others."""
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
