"""The campaign itself: its cases can run, and it says what it found."""

from __future__ import annotations

import pickle
from pathlib import Path

from tests.hostile.campaign import Figures, Latency, run
from tests.hostile.cases import cases
from tests.hostile.others import OTHERS
from tests.hostile.servers import Servers


def test_a_case_is_measured_before_during_and_after_the_attack() -> None:
    found: list[Figures] = []
    run(0.2, "http: huge claims", found.append)
    assert [(figures.name, figures.failure) for figures in found] == [("http: huge claims", "")]
    assert all(latency.p99_ms > 0 for latency in (found[0].before, found[0].attacked, found[0].after))
    assert found[0].peak_mib > 0


def test_each_attack_can_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = cases(Servers(tmp_path))
    assert len({case.name for case in found}) == len(found)
    assert {case.other for case in found} == OTHERS.keys()
    for case in found:
        pickle.dumps((case.attack, case.arguments))


def test_growth_latency_and_other_failures_violate_the_criterion() -> None:
    quiet = Latency(1.0, 2.0)
    figures = Figures("case", 50.0, 60.0, quiet, Latency(1.0, 9.0), Latency(1.0, 3.0))
    assert figures.is_good
    assert figures.p99_ratio == 3.0
    assert not figures._replace(peak_mib=300.0).is_good
    assert not figures._replace(failure="another peer is not served").is_good
    assert figures._replace(attacked=Latency(1.0, 250.0)).is_good
    slow = figures._replace(attacked=Latency(1.0, 251.0))
    assert not slow.is_good
    # The machine is slow even without an attack.
    assert slow._replace(after=Latency(1.0, 20.0)).is_good
    assert slow._replace(limits_latency=False).is_good


def test_only_a_flood_of_datagrams_may_delay_others(tmp_path: Path) -> None:
    assert [case.name for case in cases(Servers(tmp_path)) if not case.limits_latency] == ["udp: flood"]
