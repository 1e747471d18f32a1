"""The checker finds what was planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncemq.protocol.errors import Malformed
from oncemq.tools.faults.checker import Delivery, Evidence, judge
from oncemq.tools.faults.event_log import id_of, value_of

A = [f"pub-1.1.{number}" for number in range(5)]


def good() -> Evidence:
    """Five messages, stored and delivered as they should be."""
    return Evidence(
        attempted={"t": [*A, "pub-2.1.0"]},
        acknowledged={"t": {message: offset for offset, message in enumerate(A)}},
        stored={"t": [*A]},
        deliveries=[
            Delivery("sub-1", "t", 0, list(enumerate(A))),
            Delivery("sub-2", "t", 3, [(3, A[3]), (4, A[4])]),
            Delivery("sub-3", "t", 1, [(1, A[1])], is_ended=True),
        ],
        stream_of=lambda message: message.partition(".")[0],
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


def deliver_a_message_before_the_start(evidence: Evidence) -> None:
    evidence.deliveries[1].got.insert(0, (2, A[2]))


def lose_before_the_end(evidence: Evidence) -> None:
    evidence.deliveries[2].got = [(2, A[2])]


def restart_after_an_ack(evidence: Evidence) -> None:
    evidence.deliveries[0].got.append((4, A[4]))
    evidence.deliveries[0].restarts[5] = 5


def redeliver_out_of_order(evidence: Evidence) -> None:
    evidence.deliveries[0].got += [(3, A[3]), (2, A[2])]
    evidence.deliveries[0].restarts[5] = 0


def skip_and_deliver_after_a_restart(evidence: Evidence) -> None:
    evidence.deliveries[0].got = [(0, A[0]), (2, A[2]), (1, A[1]), (2, A[2]), (3, A[3]), (4, A[4])]
    evidence.deliveries[0].restarts[2] = 0


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
        (deliver_a_message_before_the_start, "unexpected", A[2], "sub-2"),
        (lose_before_the_end, "lost", A[1], "sub-3"),
        (restart_after_an_ack, "duplicated", A[4], "sub-1"),
        (redeliver_out_of_order, "duplicated", A[2], "sub-1"),
        (skip_and_deliver_after_a_restart, "out of order", A[1], "sub-1"),
    ],
)
def test_what_is_planted_is_found(plant: Callable[[Evidence], None], kind: str, message: str, where: str) -> None:
    evidence = good()
    plant(evidence)
    [problem] = judge(evidence).problems
    assert (problem.kind, problem.message, problem.topic, problem.where) == (kind, message, "t", where)


def test_a_new_process_may_get_what_was_not_acked_again() -> None:
    evidence = good()
    evidence.deliveries[0].got[3:3] = [(1, A[1]), (2, A[2])]
    evidence.deliveries[0].restarts[3] = 1
    verdict = judge(evidence)
    assert verdict.is_good
    assert evidence.deliveries[0].redelivered == 2


def test_a_process_that_failed_makes_the_verdict_bad() -> None:
    evidence = good()
    evidence.errors.append("pub-1 ended with exit code 70")
    assert not judge(evidence).is_good


def test_a_damaged_value_is_refused() -> None:
    assert id_of(value_of(A[0])) == A[0]
    with pytest.raises(Malformed):
        id_of(value_of(A[0])[:-1])
