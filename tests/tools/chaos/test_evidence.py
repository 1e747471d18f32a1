"""Event logs and databases of a run become evidence, and evidence becomes a report."""

from __future__ import annotations

from pathlib import Path

from oncemq.tools.chaos.evidence import gather
from oncemq.tools.chaos.report import Result, Survived, lines_of
from oncemq.tools.faults.checker import Delivery, judge
from oncemq.tools.faults.event_log import EventLog
from tests.tools.faults.test_checker import A, good, lose_at_subscriber


def test_a_bad_verdict_says_which_message_where_and_how_to_repeat_it() -> None:
    evidence = good()
    lose_at_subscriber(evidence)
    said = "\n".join(lines_of(Result(7, 30.0, False, "", judge(evidence), Survived(), "/kept")))
    assert said.startswith("BAD: 1 violation")
    assert "lost: pub-1.1.2 in 't' at sub-1: it is stored at offset 2, and was never delivered" in said
    assert "The evidence is in /kept" in said
    assert said.endswith("Repeat it with: oncemq chaos --seed 7 --seconds 30")


def test_event_logs_become_evidence(tmp_path: Path) -> None:
    EventLog(tmp_path / "auditor.events").write(
        ("stored", "a b", 0, A[0]), ("stored", "a b", 1, A[1]), ("end", "a b", 2)
    )
    EventLog(tmp_path / "pub-1.events").write(
        ("attempted", "a b", A[0]),
        ("acknowledged", "a b", A[0], 0),
        ("attempted", "a b", A[1]),
        ("attempted", "a b", A[2]),
    )
    EventLog(tmp_path / "sub-3.events").write(
        ("subscribed", "a b", 0),
        ("delivered", "a b", 0, A[0]),
        ("unsubscribed", "a b"),
        ("subscribed", "a b", 1),
        ("delivered", "a b", 1, A[1]),
    )
    evidence = gather(tmp_path)
    assert evidence.deliveries == [
        Delivery("sub-3", "a b", 0, [(0, A[0])], is_ended=True),
        Delivery("sub-3", "a b", 1, [(1, A[1])]),
    ]
    verdict = judge(evidence)
    assert verdict.is_good
    assert (verdict.attempted, verdict.acknowledged, verdict.recovered) == (3, 1, 1)


def test_an_error_in_an_event_log_makes_the_verdict_bad(tmp_path: Path) -> None:
    EventLog(tmp_path / "sub-4.events").write(("error", "Fenced: another client took over"))
    [problem] = judge(gather(tmp_path)).problems
    assert problem.text == "sub-4: error Fenced: another client took over"
