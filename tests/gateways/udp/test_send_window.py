"""What is sent again to one subscriber, and when: with virtual time."""

from __future__ import annotations

import heapq
import random
from itertools import pairwise

import pytest

from oncemq.gateways.udp.extended.round_trip import TIMEOUT_MS_FIRST, TIMEOUT_MS_MAX
from oncemq.gateways.udp.extended.send_window import QUIET_MS, SendWindow


def window(packets_max: int = 8, bytes_max: int = 10_000, now_ms: float = 0.0, seed: int = 1) -> SendWindow:
    return SendWindow(packets_max, bytes_max, now_ms, random.Random(seed))


def test_the_window_is_full_at_its_packets_and_at_its_bytes() -> None:
    few = window(packets_max=2)
    for offset in (0, 1):
        assert few.has_capacity
        few.note_sent(0, offset, b"x")
    assert not few.has_capacity
    few.note_ack(1, 1, 0)
    assert few.has_capacity
    large = window(bytes_max=10)
    large.note_sent(0, 0, b"x" * 50)
    assert not large.has_capacity
    large.note_ack(1, 1, 0)
    assert large.has_capacity


def test_a_packet_without_an_ack_is_sent_again_with_growing_pauses_that_end_at_a_bound() -> None:
    lonely = window()
    lonely.note_sent(0, 0, b"first")
    times = [0.0]
    for _ in range(12):
        now_ms = lonely.next_due_ms(times[-1])
        assert lonely.due(now_ms - 1) == []
        assert lonely.due(now_ms) == [b"first"]
        times.append(now_ms)
    pauses = [after - before for before, after in pairwise(times)]
    assert TIMEOUT_MS_FIRST * 0.75 <= pauses[0] <= TIMEOUT_MS_FIRST * 1.25
    assert all(TIMEOUT_MS_MAX * 0.75 <= pause <= TIMEOUT_MS_MAX * 1.25 for pause in pauses[6:])
    assert sum(pauses) > 30_000, "a dozen packets in half a minute, no more"


def test_two_windows_do_not_fall_into_step() -> None:
    due_ms = set()
    for seed in range(10):
        one = window(seed=seed)
        one.note_sent(0, 0, b"x")
        due_ms.add(one.next_due_ms(0))
    assert len(due_ms) == 10


def test_while_the_subscriber_is_quiet_only_the_first_packet_is_sent_again() -> None:
    quiet = window()
    for offset in range(5):
        quiet.note_sent(0, offset, b"%d" % offset)
    assert quiet.due(QUIET_MS) == [b"0", b"1", b"2", b"3", b"4"]
    assert quiet.due(20_000) == [b"0"]
    quiet.note_ack(20_001, 1, 0)
    assert quiet.due(60_000) == [b"1"]


def test_what_has_arrived_is_not_sent_again_and_what_was_overtaken_is_after_a_round_trip() -> None:
    holed = window()
    for offset in range(6):
        holed.note_sent(0, offset, b"%d" % offset)
    holed.note_ack(1, 1, 0b00010)
    holed.note_ack(2, 1, 0b00110)
    assert holed.due(2) == []
    holed.note_ack(3, 1, 0b01110)
    assert holed.due(3) == []
    assert holed.due(10) == [b"1"]
    assert holed.due(900) == [b"1", b"5"]
    holed.note_ack(901, 6, 0)
    assert len(holed) == 0
    assert holed.next_due_ms(901) == float("inf")


def test_the_time_out_follows_the_round_trips() -> None:
    far = window()
    for offset in range(40):
        far.note_sent(offset * 1000, offset, b"x")
        far.note_ack(offset * 1000 + 700, offset + 1, 0)
    far.note_sent(50_000, 50, b"x")
    assert 700 * 0.75 <= far.next_due_ms(50_000) - 50_000 <= 1100


@pytest.mark.parametrize("seed", range(40))
def test_everything_arrives_in_spite_of_any_weather(seed: int) -> None:
    """A third of the packets and acks is lost, a fifth is duplicated, and all are reordered."""
    weather = Weather(seed)
    weather.run(count=150)
    assert weather.received == list(range(150))
    assert weather.packets_sent < 150 * 4


@pytest.mark.parametrize("round_trip_ms", [2, 40])
def test_what_is_lost_is_sent_again_about_as_often_as_it_is_lost(round_trip_ms: float) -> None:
    weather = Weather(1, loss=0.15, doubling=0.0, delay_ms=(round_trip_ms / 2, round_trip_ms / 2), packets_max=64)
    weather.run(count=2000)
    assert weather.packets_sent < 2000 * 2
    assert weather.now_ms < 2000 * round_trip_ms


@pytest.mark.parametrize("round_trip_ms", [2, 40])
def test_a_subscriber_that_lets_messages_come_again_makes_progress(round_trip_ms: float) -> None:
    weather = Weather(1, loss=0.15, doubling=0.0, delay_ms=(round_trip_ms / 2, round_trip_ms / 2), packets_max=64)
    weather.keeps_early = False
    weather.run(count=1000)
    assert weather.packets_sent < 1000 * 4
    assert weather.now_ms < 1000 * round_trip_ms


def test_a_packet_is_sent_again_at_most_once_per_round_trip() -> None:
    lossy = window(packets_max=64)
    for offset in range(20):
        lossy.note_sent(0, offset, b"%d" % offset)
    for count in range(1, 20):
        # The first packet is lost, and each later one is acked, after a round trip of 100 ms.
        lossy.note_ack(100, 0, ((1 << count) - 1) << 1)
    resent = [now_ms for now_ms in range(100, 400) for _ in lossy.due(now_ms)]
    assert all(after - before >= 100 for before, after in pairwise(resent))
    assert 1 <= len(resent) <= 3


class Weather:
    """A network and a subscriber. Without `keeps_early`, the subscriber drops what arrives before its turn."""

    def __init__(
        self,
        seed: int,
        *,
        loss: float = 0.3,
        doubling: float = 0.2,
        delay_ms: tuple[float, float] = (5, 60),
        packets_max: int = 16,
    ) -> None:
        self.chance = random.Random(seed)
        self.loss, self.doubling, self.delay_ms = loss, doubling, delay_ms
        self.keeps_early = True
        self.now_ms = 0.0
        self.window = window(packets_max=packets_max, seed=seed)
        self.events: list[tuple[float, int, str, tuple[int, ...]]] = []
        self.count = 0
        self.received: list[int] = []
        self.early: set[int] = set()
        self.packets_sent = 0

    def cast(self, kind: str, *fields: int) -> None:
        for _ in range(1 + (self.chance.random() < self.doubling)):
            if self.chance.random() >= self.loss:
                self.count += 1
                due_ms = self.now_ms + self.chance.uniform(*self.delay_ms)
                heapq.heappush(self.events, (due_ms, self.count, kind, fields))

    def send(self, offset: int) -> None:
        self.packets_sent += 1
        self.cast("message", offset)

    def run(self, count: int) -> None:
        next_offset = 0
        while len(self.received) < count or len(self.window):
            assert self.now_ms < 600_000, "stuck"
            while next_offset < count and self.window.has_capacity:
                self.window.note_sent(self.now_ms, next_offset, b"%d" % next_offset)
                self.send(next_offset)
                next_offset += 1
            due_ms = self.window.next_due_ms(self.now_ms)
            if self.events and self.events[0][0] <= due_ms:
                self.now_ms, _, kind, fields = heapq.heappop(self.events)
                self.arrive(kind, fields)
            else:
                self.now_ms = max(self.now_ms, due_ms)
            for packet in self.window.due(self.now_ms):
                self.send(int(packet))

    def arrive(self, kind: str, fields: tuple[int, ...]) -> None:
        if kind == "ack":
            self.window.note_ack(self.now_ms, *fields)
            return
        if fields[0] == len(self.received) or (self.keeps_early and fields[0] > len(self.received)):
            self.early.add(fields[0])
        while len(self.received) in self.early:
            self.early.discard(len(self.received))
            self.received.append(len(self.received))
        upto = len(self.received)
        self.cast("ack", upto, sum(1 << (offset - upto) for offset in self.early if offset - upto < 64))
