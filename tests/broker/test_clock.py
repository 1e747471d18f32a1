"""The broker's clock over restarts: a leap of the wall clock expires nothing before it is confirmed."""

from __future__ import annotations

import pytest

from oncemq.broker.clock import SystemClock
from oncemq.journal.memory import MemoryJournal
from oncemq.protocol import commands
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import HealthReply
from tests.broker.rig import Rig, expect, offsets

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TEN_YEARS_MS = 3_652 * DAY_MS
NOW_MS = 1_790_000_000_000


def _rig(limits: Limits | None = None) -> Rig:
    rig = Rig(MemoryJournal(extent_bytes=1 << 20), limits)
    rig.clock.time_ms = NOW_MS
    return rig


def _retained(rig: Rig) -> commands.Read:
    """Put a message that is retained for an hour. Return a read of it."""
    rig.do(commands.CreateTopic("kept", retain_ms=HOUR_MS))
    rig.put(b"one", topic="kept")
    return commands.Read("kept", 0, 1 << 20)


def _start(rig: Rig, after_ms: int, *, trust_clock: bool = False) -> None:
    """Kill the broker, and start it when the wall clock shows a later time."""
    rig.clock.time_ms += after_ms
    rig.trust_clock = trust_clock
    rig.restart()
    rig.rounds(3)


def _behind_ms(rig: Rig) -> int:
    return expect(HealthReply, rig.ask(commands.Health())).counters.get("clock_behind_ms", 0)


def test_a_leap_of_the_clock_expires_nothing_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    rig = _rig()
    read = _retained(rig)
    _start(rig, TEN_YEARS_MS)
    assert offsets(rig.ask(read)) == [0]
    assert _behind_ms(rig) >= TEN_YEARS_MS - DAY_MS
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "2036-09-" in warning
    assert "2026-09-" in warning
    assert "--trust-clock" in warning


def test_time_goes_on_from_the_last_recorded_time() -> None:
    rig = _rig()
    read = _retained(rig)
    _start(rig, TEN_YEARS_MS)
    rig.rounds(3, forward_ms=HOUR_MS // 2)
    assert offsets(rig.ask(read)) == [0]
    rig.rounds(3, forward_ms=HOUR_MS // 2)
    assert rig.broker.engine.state.topics["kept"].index.first == 1


def test_a_leap_that_is_confirmed_counts_as_time_from_then_on() -> None:
    rig = _rig()
    _retained(rig)
    _start(rig, TEN_YEARS_MS)
    _start(rig, TEN_YEARS_MS, trust_clock=True)
    assert rig.broker.engine.state.topics["kept"].index.first == 1
    assert rig.clock.time_ms >= NOW_MS + TEN_YEARS_MS
    # The next start needs no confirmation.
    _start(rig, 1_000)
    assert _behind_ms(rig) == 0


def test_a_confirmed_leap_is_recorded_although_nothing_happens() -> None:
    rig = _rig()
    rig.do(commands.CreateTopic("idle"))
    _start(rig, TEN_YEARS_MS, trust_clock=True)
    _start(rig, 1_000)
    assert _behind_ms(rig) == 0


def test_after_the_clock_is_corrected_time_is_right_again() -> None:
    rig = _rig()
    owner = rig.subscribe()
    rig.put(b"zero")
    _start(rig, TEN_YEARS_MS)
    rig.put(b"one")
    rig.clock.time_ms = NOW_MS
    _start(rig, HOUR_MS)
    assert rig.clock.time_ms == NOW_MS + HOUR_MS
    command, payload = rig.put_command(b"two", due_ms=rig.clock.time_ms + 5_000)
    rig.ask(command, payload)
    rig.rounds(2, forward_ms=6_000)
    assert offsets(rig.ask(owner.get())) == [0, 1, 2]


@pytest.mark.parametrize("leap_ms_max", [7 * DAY_MS, HOUR_MS])
def test_a_broker_that_was_down_for_less_than_the_bound_counts_the_time(leap_ms_max: int) -> None:
    rig = _rig(Limits(clock_leap_ms_max=leap_ms_max))
    _retained(rig)
    start_ms = rig.clock.time_ms
    _start(rig, leap_ms_max)
    assert _behind_ms(rig) == 0
    assert rig.clock.time_ms == start_ms + leap_ms_max
    _start(rig, leap_ms_max + 1)
    assert _behind_ms(rig) > 0


def test_idle_time_of_a_running_broker_is_no_leap() -> None:
    rig = _rig()
    rig.subscribe()
    rig.put(b"one")
    for _ in range(60):
        rig.rounds(forward_ms=DAY_MS // 2)
    idle_ms = rig.clock.time_ms
    _start(rig, HOUR_MS)
    assert _behind_ms(rig) == 0
    assert rig.clock.time_ms == idle_ms + HOUR_MS


def test_idle_time_is_recorded_at_most_four_times_per_bound() -> None:
    rig = _rig()
    rig.do(commands.CreateTopic("idle"))
    rig.rounds(3, forward_ms=100)
    journal = rig.journal
    assert isinstance(journal, MemoryJournal)
    groups = journal._sequence
    for _ in range(7 * 24):
        rig.rounds(forward_ms=HOUR_MS)
    assert 1 <= journal._sequence - groups <= 4


def test_a_clean_stop_records_the_time() -> None:
    rig = _rig()
    rig.subscribe()
    rig.put(b"one")
    rig.rounds(3, forward_ms=DAY_MS)
    stopped_ms = rig.clock.time_ms
    rig.broker.stop()
    rig.restart()
    assert rig.broker.engine.state.time_ms == stopped_ms


def test_a_clock_that_was_set_back_continues_from_the_recorded_time(caplog: pytest.LogCaptureFixture) -> None:
    rig = _rig()
    rig.subscribe()
    rig.put(b"one")
    _start(rig, -DAY_MS)
    assert rig.clock.time_ms == NOW_MS
    assert _behind_ms(rig) == 0
    assert "set back" in caplog.text


def test_the_first_start_accepts_any_clock() -> None:
    rig = _rig()
    assert rig.clock.time_ms == NOW_MS
    assert _behind_ms(rig) == 0


def test_the_system_clock_continues_from_an_earlier_or_later_time() -> None:
    clock = SystemClock()
    for time_ms in (NOW_MS + TEN_YEARS_MS, NOW_MS - TEN_YEARS_MS):
        clock.continue_from(time_ms)
        assert 0 <= clock.now_ms() - time_ms < 60_000
