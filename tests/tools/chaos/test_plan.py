"""The schedule is derived from the seed alone."""

from __future__ import annotations

import pytest

from oncemq.tools.chaos.counters import Counters
from oncemq.tools.chaos.plan import BROKER, GATEWAY, NETWORK, NO_FAULTS, NetworkFaults, make_plan


def test_a_seed_gives_one_schedule() -> None:
    assert make_plan(7, 30) == make_plan(7, 30)
    assert make_plan(7, 30).faults != make_plan(8, 30).faults


@pytest.mark.parametrize("seconds", [1.0, 3.0, 30.0])
def test_every_kind_of_fault_occurs(seconds: float) -> None:
    for seed in range(20):
        faults = make_plan(seed, seconds).faults
        hit = {(fault.action, fault.target.partition("-")[0]) for fault in faults if fault.action != "start"}
        expected = {("kill", BROKER), ("kill", "pub"), ("kill", "sub"), ("leave", "sub"), ("network", NETWORK)}
        assert hit == expected, seed


def test_plain_subscribers_leave_and_are_not_killed() -> None:
    """Their guarantee covers lost packets and crashes of the broker; for their own crashes it needs an inbox."""
    killed = {fault.target for seed in range(20) for fault in make_plan(seed, 30).faults if fault.action == "kill"}
    assert killed == {BROKER, "pub-1", "pub-2", "pub-3", "sub-1", "sub-2"}


def test_counters_hold_numbers_and_network_faults() -> None:
    counters = Counters(["a", "b"], ["x", "y"])
    counters.add("a", "x", 2)
    counters.add("b", "x")
    assert (counters.sum("x"), counters.sum("y"), counters.network_faults()) == (3, 0, NO_FAULTS)
    faults = NetworkFaults(0.1, 0.2, 0.3, 40.0)
    counters.set_network_faults(faults)
    assert counters.network_faults() == faults
    assert counters.get("a", "x") == 2


def test_push_clients_and_the_gateway_are_killed_only_if_they_are_asked_for() -> None:
    for seed in range(20):
        killed = {fault.target for fault in make_plan(seed, 30, push=True).faults if fault.action == "kill"}
        assert {GATEWAY, "pub-4", "sub-5"} <= killed
    plain, with_push = make_plan(7, 30), make_plan(7, 30, push=True)
    assert not plain.has_push
    assert with_push.has_push
    assert [client.name for client in with_push.clients if client not in plain.clients] == ["pub-4", "sub-5"]
