"""The checker finds what was planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncemq.protocol.errors import Malformed
from oncemq.tools.chaos.checker import Delivery, Evidence, judge
from oncemq.tools.chaos.event_log import Diary, id_of, value_of
from oncemq.tools.chaos.evidence import gather
from oncemq.tools.chaos.report import Result, Survived, lines_of

A = [f"pub-1.1.{number}" for number in range(5)]


def good() -> Evidence:
    """Five messages, stored and delivered as they should be."""
    return Evidence(
        attempted={"t": {*A, "pub-2.1.0"}},
        acknowledged={"t": {message: offset for offset, message in enumerate(A)}},
        stored={"t": [*A]},
        deliveries=[
            Delivery("sub-1", "t", 0, list(enumerate(A))),
            Delivery("sub-2", "t", 3, [(3, A[3]), (4, A[4])]),
            Delivery("sub-3", "t", 1, [(1, A[1])], is_ended=True),
        ],
    )


def test_a_good_run_is_good() -> None:
    verdict = judge(good())
    assert verdict.is_good
    counted = (verdict.attempted, verdict.acknowledged, verdict.stored, verdict.delivered, verdict.subscriptions)
    assert counted == (6, 5, 5, 8, 3)


def test_what_was_stored_without_an_answer_is_recovered() -> None:
    evidence = good()
    del evidence.acknowledged["t"][A[2]]
    verdict = judge(evidence)
    assert verdict.is_good
    assert verdict.recovered == 1


def lose_at_broker(evidence: Evidence) -> None:
    evidence.stored["t"] = A[:4]
    evidence.deliveries = []


def double_at_broker(evidence: Evidence) -> None:
    evidence.stored["t"].append(A[4])
    evidence.deliveries = []


def reorder_at_broker(evidence: Evidence) -> None:
    evidence.stored["t"] = [A[1], A[0], *A[2:]]
    evidence.acknowledged["t"] = dict.fromkeys(A, -1)
    evidence.deliveries = []


def misplace_at_broker(evidence: Evidence) -> None:
    evidence.acknowledged["t"][A[4]] = 3


def forge_at_broker(evidence: Evidence) -> None:
    evidence.stored["t"].append("pub-9.1.0")
    evidence.deliveries = []


def lose_at_subscriber(evidence: Evidence) -> None:
    del evidence.deliveries[0].got[2]


def lose_the_last_at_subscriber(evidence: Evidence) -> None:
    del evidence.deliveries[1].got[1]


def double_at_subscriber(evidence: Evidence) -> None:
    evidence.deliveries[0].got.append((4, A[4]))


def reorder_at_subscriber(evidence: Evidence) -> None:
    evidence.deliveries[0].got[:2] = [(1, A[1]), (0, A[0])]


def swap_at_subscriber(evidence: Evidence) -> None:
    evidence.deliveries[0].got[4] = (4, A[3])


def forge_at_subscriber(evidence: Evidence) -> None:
    evidence.deliveries[0].got.append((5, "pub-9.1.0"))


def give_what_was_before(evidence: Evidence) -> None:
    evidence.deliveries[1].got.insert(0, (2, A[2]))


def lose_before_the_end(evidence: Evidence) -> None:
    evidence.deliveries[2].got = [(2, A[2])]


@pytest.mark.parametrize(
    ("plant", "kind", "message", "where"),
    [
        (lose_at_broker, "lost", A[4], "the broker"),
        (double_at_broker, "duplicated", A[4], "the broker"),
        (reorder_at_broker, "out of order", A[0], "the broker"),
        (misplace_at_broker, "out of order", A[4], "the broker"),
        (forge_at_broker, "unexpected", "pub-9.1.0", "the broker"),
        (lose_at_subscriber, "lost", A[2], "sub-1"),
        (lose_the_last_at_subscriber, "lost", A[4], "sub-2"),
        (double_at_subscriber, "duplicated", A[4], "sub-1"),
        (reorder_at_subscriber, "out of order", A[0], "sub-1"),
        (swap_at_subscriber, "out of order", A[3], "sub-1"),
        (forge_at_subscriber, "unexpected", "pub-9.1.0", "sub-1"),
        (give_what_was_before, "unexpected", A[2], "sub-2"),
        (lose_before_the_end, "lost", A[1], "sub-3"),
    ],
)
def test_what_is_planted_is_found(plant: Callable[[Evidence], None], kind: str, message: str, where: str) -> None:
    evidence = good()
    plant(evidence)
    [problem] = judge(evidence).problems
    assert (problem.kind, problem.message, problem.topic, problem.where) == (kind, message, "t", where)


def test_a_worker_that_failed_makes_the_verdict_bad() -> None:
    evidence = good()
    evidence.errors.append("pub-1 ended with exit code 70")
    assert not judge(evidence).is_good


def test_a_bad_verdict_says_which_message_where_and_how_to_repeat_it() -> None:
    evidence = good()
    lose_at_subscriber(evidence)
    said = "\n".join(lines_of(Result(7, 30.0, False, "", judge(evidence), Survived(), "/kept")))
    assert said.startswith("BAD: 1 promise broken")
    assert "lost: pub-1.1.2 in 't' at sub-1: it lies at offset 2, and was never given" in said
    assert "The evidence is in /kept" in said
    assert said.endswith("Repeat it with: oncemq chaos --seed 7 --seconds 30")


def test_diaries_become_evidence(tmp_path: Path) -> None:
    Diary(tmp_path / "auditor.diary").write(("stored", "a b", 0, A[0]), ("stored", "a b", 1, A[1]), ("end", "a b", 2))
    Diary(tmp_path / "pub-1.diary").write(
        ("will", "a b", A[0]), ("done", "a b", A[0], 0), ("will", "a b", A[1]), ("will", "a b", A[2])
    )
    Diary(tmp_path / "sub-3.diary").write(
        ("subscribed", "a b", 0),
        ("got", "a b", 0, A[0]),
        ("ended", "a b"),
        ("subscribed", "a b", 1),
        ("got", "a b", 1, A[1]),
    )
    evidence = gather(tmp_path)
    assert evidence.deliveries == [
        Delivery("sub-3", "a b", 0, [(0, A[0])], is_ended=True),
        Delivery("sub-3", "a b", 1, [(1, A[1])]),
    ]
    verdict = judge(evidence)
    assert verdict.is_good
    assert (verdict.attempted, verdict.acknowledged, verdict.recovered) == (3, 1, 1)


def test_an_error_in_a_diary_is_one_in_the_verdict(tmp_path: Path) -> None:
    Diary(tmp_path / "sub-4.diary").write(("error", "Fenced: another client took over"))
    [problem] = judge(gather(tmp_path)).problems
    assert problem.text == "sub-4: error Fenced: another client took over"


def test_a_damaged_value_is_refused() -> None:
    assert id_of(value_of(A[0])) == A[0]
    with pytest.raises(Malformed):
        id_of(value_of(A[0])[:-1])
