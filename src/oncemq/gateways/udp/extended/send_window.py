"""The packets in flight to one subscriber, and when they are sent again.

It does no I/O: the time is an argument, packets are returned. The timeout follows the measured round trips (RFC 6298),
doubles with each attempt of a packet, and varies randomly by a quarter, so that many subscribers don't synchronise.
While a subscriber is silent, only its first packet is sent again: it may be gone.
"""

from __future__ import annotations

import random

import msgspec

TIMEOUT_MS_FIRST = 200.0
TIMEOUT_MS_MIN = 50.0
TIMEOUT_MS_MAX = 5000.0
#: After this time without a packet a subscriber may be gone.
QUIET_MS = 1000.0
#: A packet is lost after this many acks of later packets.
_PASSED_OVER_MAX = 3
_SPREAD = 0.25


class InFlight(msgspec.Struct):
    packet: bytes
    sent_ms: float
    due_ms: float
    tries: int = 1
    #: The subscriber has it, but lacks an earlier one.
    has_arrived: bool = False
    passed_over: int = 0


class SendWindow:
    def __init__(self, packets_max: int, bytes_max: int, now_ms: float, chance: random.Random) -> None:
        self._packets_max = packets_max
        self._bytes_max = bytes_max
        self._chance = chance
        self._in_flight: dict[int, InFlight] = {}
        self._bytes = 0
        self._heard_ms = now_ms
        self._timeout_ms = TIMEOUT_MS_FIRST
        self._round_trip_ms = -1.0
        self._deviation_ms = 0.0

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def has_capacity(self) -> bool:
        return not self._in_flight or (len(self._in_flight) < self._packets_max and self._bytes < self._bytes_max)

    def note_sent(self, now_ms: float, offset: int, packet: bytes) -> None:
        """A packet was sent for the first time. Offsets must rise."""
        if not self._in_flight:
            # Silence counts only while packets are in flight.
            self._heard_ms = max(self._heard_ms, now_ms)
        self._in_flight[offset] = InFlight(packet, now_ms, now_ms + self._resend_after_ms(1))
        self._bytes += len(packet)

    def note_ack(self, now_ms: float, upto: int, bitmap: int) -> None:
        """An ack has come: all offsets below `upto` are acked, and those in the bitmap have arrived."""
        self._heard_ms = now_ms
        for offset in [offset for offset in self._in_flight if offset < upto]:
            flight = self._in_flight.pop(offset)
            self._bytes -= len(flight.packet)
            self._note_round_trip(now_ms, flight)
        self._mark(now_ms, upto, bitmap)

    def _mark(self, now_ms: float, upto: int, bitmap: int) -> None:
        """Mark packets that have arrived, and count those that later packets have overtaken."""
        last = upto + bitmap.bit_length() - 1
        for offset, flight in self._in_flight.items():
            if offset > last:
                return
            if bitmap >> (offset - upto) & 1:
                self._note_round_trip(now_ms, flight)
                flight.has_arrived = True
            elif not flight.has_arrived and offset < last:
                flight.passed_over += 1
                if flight.passed_over == _PASSED_OVER_MAX:
                    flight.due_ms = now_ms

    def _note_round_trip(self, now_ms: float, flight: InFlight) -> None:
        if flight.tries > 1 or flight.has_arrived:
            # It is not known which of the attempts was acked.
            return
        seen_ms = now_ms - flight.sent_ms
        if self._round_trip_ms < 0:
            self._round_trip_ms, self._deviation_ms = seen_ms, seen_ms / 2
        else:
            self._deviation_ms += (abs(seen_ms - self._round_trip_ms) - self._deviation_ms) / 4
            self._round_trip_ms += (seen_ms - self._round_trip_ms) / 8
        timeout_ms = self._round_trip_ms + 4 * self._deviation_ms
        self._timeout_ms = min(max(timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX)

    def _resend_after_ms(self, tries: int) -> float:
        backed_off_ms = min(self._timeout_ms * (1 << min(tries - 1, 16)), TIMEOUT_MS_MAX)
        return backed_off_ms * self._chance.uniform(1 - _SPREAD, 1 + _SPREAD)

    def due(self, now_ms: float) -> list[bytes]:
        """Return the packets to send again now."""
        packets = []
        for flight in self._candidates(now_ms):
            if flight.due_ms <= now_ms:
                flight.tries += 1
                flight.due_ms = now_ms + self._resend_after_ms(flight.tries)
                flight.passed_over = 0
                packets.append(flight.packet)
        return packets

    def next_due_ms(self, now_ms: float) -> float:
        """Return when the next packet is due; infinity if there is none."""
        return min((flight.due_ms for flight in self._candidates(now_ms)), default=float("inf"))

    def _candidates(self, now_ms: float) -> list[InFlight]:
        missing = [flight for flight in self._in_flight.values() if not flight.has_arrived]
        return missing[:1] if now_ms - self._heard_ms > QUIET_MS else missing
