"""Messages on their way to one subscriber: what is without an ack, and when it is sent again.

Pure: the time comes in, packets go out. The time-out follows the round trips that were seen (RFC 6298), doubles with
each try of a packet, and is spread by a quarter, so that many subscribers don't fall into step. While a subscriber
says nothing, only the first packet is sent again: it may be gone.
"""

from __future__ import annotations

import random

import msgspec

TIMEOUT_MS_FIRST = 200.0
TIMEOUT_MS_MIN = 50.0
TIMEOUT_MS_MAX = 5000.0
#: A subscriber that has said nothing for so long may be gone.
QUIET_MS = 1000.0
#: A packet that so many acks have passed over is lost.
_PASSED_OVER = 3
_SPREAD = 0.25


class Flying(msgspec.Struct):
    packet: bytes
    sent_ms: float
    due_ms: float
    tries: int = 1
    #: The subscriber has it, and lacks another one before it.
    has_arrived: bool = False
    passed_over: int = 0


class SendWindow:
    def __init__(self, packets_max: int, bytes_max: int, now_ms: float, chance: random.Random) -> None:
        self._packets_max = packets_max
        self._bytes_max = bytes_max
        self._chance = chance
        self._flying: dict[int, Flying] = {}
        self._bytes = 0
        self._heard_ms = now_ms
        self._timeout_ms = TIMEOUT_MS_FIRST
        self._round_trip_ms = -1.0
        self._deviation_ms = 0.0

    def __len__(self) -> int:
        return len(self._flying)

    @property
    def has_room(self) -> bool:
        return not self._flying or (len(self._flying) < self._packets_max and self._bytes < self._bytes_max)

    def sent(self, now_ms: float, offset: int, packet: bytes) -> None:
        """For the first time. Offsets rise."""
        if not self._flying:
            # Silence counts from the moment at which there is something to say.
            self._heard_ms = max(self._heard_ms, now_ms)
        self._flying[offset] = Flying(packet, now_ms, now_ms + self._patience_ms(1))
        self._bytes += len(packet)

    def heard(self, now_ms: float, upto: int, bitmap: int) -> None:
        """An ack: everything below `upto` is done, and what the bitmap says has arrived."""
        self._heard_ms = now_ms
        for offset in [offset for offset in self._flying if offset < upto]:
            flying = self._flying.pop(offset)
            self._bytes -= len(flying.packet)
            self._learn(now_ms, flying)
        self._mark(now_ms, upto, bitmap)

    def _mark(self, now_ms: float, upto: int, bitmap: int) -> None:
        """What has arrived, and what was passed over by it."""
        last = upto + bitmap.bit_length() - 1
        for offset, flying in self._flying.items():
            if offset > last:
                return
            if bitmap >> (offset - upto) & 1:
                self._learn(now_ms, flying)
                flying.has_arrived = True
            elif not flying.has_arrived and offset < last:
                flying.passed_over += 1
                if flying.passed_over == _PASSED_OVER:
                    flying.due_ms = now_ms

    def _learn(self, now_ms: float, flying: Flying) -> None:
        if flying.tries > 1 or flying.has_arrived:
            # Which of the tries was answered nobody knows.
            return
        seen_ms = now_ms - flying.sent_ms
        if self._round_trip_ms < 0:
            self._round_trip_ms, self._deviation_ms = seen_ms, seen_ms / 2
        else:
            self._deviation_ms += (abs(seen_ms - self._round_trip_ms) - self._deviation_ms) / 4
            self._round_trip_ms += (seen_ms - self._round_trip_ms) / 8
        timeout_ms = self._round_trip_ms + 4 * self._deviation_ms
        self._timeout_ms = min(max(timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX)

    def _patience_ms(self, tries: int) -> float:
        backed_off_ms = min(self._timeout_ms * (1 << min(tries - 1, 16)), TIMEOUT_MS_MAX)
        return backed_off_ms * self._chance.uniform(1 - _SPREAD, 1 + _SPREAD)

    def due(self, now_ms: float) -> list[bytes]:
        """Packets to send again now."""
        packets = []
        for flying in self._candidates(now_ms):
            if flying.due_ms <= now_ms:
                flying.tries += 1
                flying.due_ms = now_ms + self._patience_ms(flying.tries)
                flying.passed_over = 0
                packets.append(flying.packet)
        return packets

    def next_due_ms(self, now_ms: float) -> float:
        return min((flying.due_ms for flying in self._candidates(now_ms)), default=float("inf"))

    def _candidates(self, now_ms: float) -> list[Flying]:
        missing = [flying for flying in self._flying.values() if not flying.has_arrived]
        return missing[:1] if now_ms - self._heard_ms > QUIET_MS else missing
