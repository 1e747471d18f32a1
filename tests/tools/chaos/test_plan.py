"""The schedule comes from the seed alone."""

from __future__ import annotations

import pytest

from oncemq.tools.chaos.counters import Counters
from oncemq.tools.chaos.plan import BROKER, CALM, NETWORK, Weather, draw


def test_a_seed_gives_one_schedule() -> None:
    assert draw(7, 30) == draw(7, 30)
    assert draw(7, 30).acts != draw(8, 30).acts


@pytest.mark.parametrize("seconds", [1.0, 3.0, 30.0])
def test_every_kind_of_fault_has_its_turn(seconds: float) -> None:
    for seed in range(20):
        acts = draw(seed, seconds).acts
        hit = {(act.what, act.whom.partition("-")[0]) for act in acts if act.what != "start"}
        expected = {("kill", BROKER), ("kill", "pub"), ("kill", "sub"), ("leave", "sub"), ("weather", NETWORK)}
        assert hit == expected, seed


def test_plain_subscribers_leave_and_are_not_killed() -> None:
    """Their promise holds through lost packets and broker crashes; through their own it needs an inbox."""
    killed = {act.whom for seed in range(20) for act in draw(seed, 30).acts if act.what == "kill"}
    assert killed == {BROKER, "pub-1", "pub-2", "pub-3", "sub-1", "sub-2"}


def test_counters_hold_numbers_and_the_weather() -> None:
    counters = Counters(["a", "b"], ["x", "y"])
    counters.add("a", "x", 2)
    counters.add("b", "x")
    assert (counters.sum("x"), counters.sum("y"), counters.weather()) == (3, 0, CALM)
    storm = Weather(0.1, 0.2, 0.3, 40.0)
    counters.set_weather(storm)
    assert counters.weather() == storm
    assert counters.get("a", "x") == 2
