"""The packets in flight to one subscriber, and when they are sent again.

It does no I/O: the time is an argument, packets are returned. The timeout follows the measured round trips (RFC 6298),
doubles while nothing arrives, and is randomly prolonged by up to a quarter, so that many subscribers don't synchronise.

A packet is lost if it was overtaken or its timeout is over. It is sent again at most once per round trip: only packets
that were sent after its last transmission can overtake it, and only once a round trip has passed (RFC 8985).

A subscriber whose acks have a bitmap keeps what has arrived, so only lost packets are sent again. Any other subscriber
may have dropped everything after a lost packet. So all packets from the lost one on are sent again, in order, and no
more of them at a time than the network and the subscriber seem to take: `_burst` is TCP's congestion window (RFC 5681).

While a subscriber is silent, only its first packet is sent again: it may be gone.
"""

from __future__ import annotations

import random

import msgspec

from oncemq.gateways.udp.extended.round_trip import RoundTrip

#: After this time without a packet a subscriber may be gone.
QUIET_MS = 1000.0
#: A packet is overtaken when the third packet after it has arrived, or when this many acks did not include it.
_OVERTAKEN = 3
#: Packets that are sent at a time to a subscriber without a bitmap, however many are lost.
_BURST_MIN = 8
_NEVER = float("inf")
_SPREAD = 0.25


class InFlight(msgspec.Struct):
    packet: bytes
    #: Its last transmission: the time, and the number among all transmissions.
    sent_ms: float
    number: int
    #: When it is sent again.
    due_ms: float
    #: It was overtaken, or follows a lost packet: it does not wait for its timeout.
    is_lost: bool = False
    tries: int = 1
    #: The subscriber has it, but lacks an earlier one.
    has_arrived: bool = False


class SendWindow:
    def __init__(self, packets_max: int, bytes_max: int, now_ms: float, chance: random.Random) -> None:
        self._packets_max = packets_max
        self._bytes_max = bytes_max
        self._chance = chance
        self._in_flight: dict[int, InFlight] = {}
        self._bytes = 0
        self._heard_ms = now_ms
        self._round_trip = RoundTrip()
        #: The number of transmissions, and the latest one that has arrived.
        self._sent = 0
        self._arrived = 0
        #: An ack had a bitmap: the subscriber keeps what arrives early.
        self._has_bitmap = False
        #: Without a bitmap: packets in flight at a time, the size from which this grows slowly, and repeated acks.
        self._burst = self._burst_goal = float(packets_max)
        self._repeated_acks = 0
        #: Without a bitmap: when all packets from the first one on are sent again.
        self._go_back_ms = _NEVER

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def has_capacity(self) -> bool:
        return self._has_free(1)

    @property
    def is_half_free(self) -> bool:
        return self._has_free(2)

    def _has_free(self, part: int) -> bool:
        """Whether less than 1/`part` of the window is taken."""
        packets_max = self._packets_max if self._has_bitmap else min(self._packets_max, int(self._burst))
        return not self._in_flight or (
            part * len(self._in_flight) < packets_max and part * self._bytes < self._bytes_max
        )

    # Sending.

    def note_sent(self, now_ms: float, offset: int, packet: bytes) -> None:
        """A packet was sent for the first time. Offsets must rise."""
        if not self._in_flight:
            # Silence counts only while packets are in flight.
            self._heard_ms = max(self._heard_ms, now_ms)
        self._sent += 1
        self._in_flight[offset] = InFlight(packet, now_ms, self._sent, now_ms + self._timeout_ms())
        self._bytes += len(packet)

    def due(self, now_ms: float) -> list[bytes]:
        """Return the packets to send again now."""
        missing = self._candidates(now_ms)
        if missing and missing[0].due_ms <= now_ms and not missing[0].is_lost:
            self._round_trip.back_off()
            self._go_back_ms = now_ms
        if self._go_back_ms <= now_ms and not self._has_bitmap:
            self._go_back(now_ms)
        lost = [flight for flight in missing if flight.due_ms <= now_ms]
        if not self._has_bitmap:
            lost = lost[: max(0, int(self._burst) - (len(missing) - len(lost)))]
        for flight in lost:
            self._sent += 1
            flight.tries += 1
            flight.is_lost = False
            flight.sent_ms, flight.number = now_ms, self._sent
            flight.due_ms = now_ms + self._timeout_ms()
        return [flight.packet for flight in lost]

    def next_due_ms(self, now_ms: float) -> float:
        """Return when the next packet is due; infinity if there is none."""
        missing = self._candidates(now_ms)
        if self._has_bitmap:
            return min((flight.due_ms for flight in missing), default=_NEVER)
        if sum(flight.due_ms > now_ms for flight in missing) >= int(self._burst):
            missing = missing[:1]
        return min(self._go_back_ms, *(flight.due_ms for flight in missing)) if missing else _NEVER

    def _candidates(self, now_ms: float) -> list[InFlight]:
        missing = [flight for flight in self._in_flight.values() if not flight.has_arrived]
        return missing[:1] if now_ms - self._heard_ms > QUIET_MS else missing

    def _timeout_ms(self) -> float:
        return self._round_trip.timeout_ms * self._chance.uniform(1, 1 + _SPREAD)

    # Acks.

    def note_ack(self, now_ms: float, upto: int, bitmap: int) -> None:
        """An ack has come: all offsets below `upto` are acked, and those in the bitmap have arrived."""
        self._heard_ms = now_ms
        self._has_bitmap = self._has_bitmap or bool(bitmap)
        acked = [self._in_flight.pop(offset) for offset in list(self._in_flight) if offset < upto]
        self._bytes -= sum(len(flight.packet) for flight in acked)
        arrived = [flight for flight in acked if not flight.has_arrived] + self._mark(upto, bitmap)
        self._note_arrivals(now_ms, arrived)
        if self._has_bitmap:
            self._find_overtaken(now_ms)
        elif acked:
            self._note_progress(len(acked))
        else:
            self._note_repeated_ack(now_ms)

    def _mark(self, upto: int, bitmap: int) -> list[InFlight]:
        """Mark the packets in a bitmap. Returns those that were not marked before."""
        marked = []
        for offset, flight in self._in_flight.items() if bitmap else ():
            if bitmap >> (offset - upto) & 1 and not flight.has_arrived:
                flight.has_arrived = True
                marked.append(flight)
        return marked

    def _note_arrivals(self, now_ms: float, arrived: list[InFlight]) -> None:
        # The ack was caused by one of these, most likely by the last one. If one was sent again, it is not known which
        # transmission was acked.
        if arrived and all(flight.tries == 1 and not flight.is_lost for flight in arrived):
            self._round_trip.note(now_ms - arrived[-1].sent_ms)
        for flight in arrived:
            if flight.tries == 1 or now_ms - flight.sent_ms >= self._round_trip.smoothed_ms / 2:
                self._arrived = max(self._arrived, flight.number)
        if arrived:
            self._round_trip.end_backoff()

    def _find_overtaken(self, now_ms: float) -> None:
        for flight in self._in_flight.values():
            if not flight.has_arrived and flight.number + _OVERTAKEN <= self._arrived:
                flight.is_lost = True
                flight.due_ms = min(flight.due_ms, max(now_ms, flight.sent_ms + self._round_trip.reordering_ms))

    # Without a bitmap: all packets from the lost one on are lost.

    def _note_progress(self, count: int) -> None:
        self._repeated_acks, self._go_back_ms = 0, _NEVER
        if self._burst < self._burst_goal:
            self._burst += count
        else:
            self._burst = min(self._burst + count / self._burst, self._packets_max)

    def _note_repeated_ack(self, now_ms: float) -> None:
        """The subscriber has got something else than the packet that it needs."""
        first = next(iter(self._in_flight.values()), None)
        if first is None or now_ms < first.sent_ms + self._round_trip.smoothed_ms / 2:
            # The ack is older than the last transmission of that packet.
            return
        self._repeated_acks += 1
        if self._repeated_acks == _OVERTAKEN:
            self._go_back_ms = max(now_ms, first.sent_ms + self._round_trip.reordering_ms)

    def _go_back(self, now_ms: float) -> None:
        self._repeated_acks, self._go_back_ms = 0, _NEVER
        self._burst = self._burst_goal = max(len(self._in_flight) / 2, _BURST_MIN)
        for flight in self._in_flight.values():
            flight.is_lost = True
            flight.due_ms = min(flight.due_ms, now_ms)
