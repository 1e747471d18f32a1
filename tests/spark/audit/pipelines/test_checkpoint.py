"""What a checkpoint says, and what is wrong with it, from entries made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oncemq.spark.audit.pipelines.checkpoint import CoveredRange, build_checkpoint


def entry(*sources: dict[str, int] | None, starts: dict[str, int] | None = None) -> str:
    """An entry of the offset log: where each source ends, by topic. The id of a topic is the length of its name."""
    lines = []
    for topics in sources:
        offsets: dict[str, Any] = {
            "broker": "b",
            "topics": {name: [len(name), at] for name, at in (topics or {}).items()},
        }
        lines.append("-" if topics is None else json.dumps(offsets | ({"from": starts} if starts else {})))
    return "\n".join(["v1", "{}", *lines])


def offsets(*ends: int) -> dict[int, str]:
    return {number: entry({"orders": end}, starts=None if number else {"orders": 0}) for number, end in enumerate(ends)}


def done(*numbers: int) -> dict[int, str]:
    return dict.fromkeys(numbers, "v1\n{}")


def test_micro_batches_cover_what_lies_between_their_entries() -> None:
    checkpoint = build_checkpoint("q", offsets(10, 20, 20, 25), done(0, 1, 2))
    assert [(batch.number, batch.messages, batch.is_committed) for batch in checkpoint.batches] == [
        (0, 10, True),
        (1, 10, True),
        (2, 0, True),
        (3, 5, False),
    ]
    assert (checkpoint.faults, checkpoint.is_whole, checkpoint.last_committed, checkpoint.last_planned) == (
        (),
        True,
        2,
        3,
    )
    assert checkpoint.ranges(committed_only=True) == [CoveredRange(0, "orders", 6, 0, 20)]
    assert checkpoint.ranges(committed_only=False) == [CoveredRange(0, "orders", 6, 0, 25)]
    (end,) = checkpoint.committed_ends
    assert end is not None
    assert end.topics["orders"].offset == 20


def test_the_oldest_entries_may_have_been_deleted() -> None:
    kept = {number: raw for number, raw in offsets(10, 20, 25, 40).items() if number >= 2}
    checkpoint = build_checkpoint("q", kept, done(2, 3))
    assert (checkpoint.faults, checkpoint.is_whole) == ((), False)
    assert checkpoint.ranges(committed_only=True) == [CoveredRange(0, "orders", 6, 25, 40)]


def test_a_topic_without_new_messages_was_covered_by_entries_that_are_deleted() -> None:
    quiet = {"orders": 25, "bills": 7}
    checkpoint = build_checkpoint("q", {2: entry(quiet), 3: entry(quiet | {"orders": 40})}, done(2, 3))
    assert checkpoint.earlier == (CoveredRange(0, "orders", 6, 0, 25), CoveredRange(0, "bills", 5, 0, 7))
    assert checkpoint.topic_names == {6: "orders", 5: "bills"}
    assert build_checkpoint("q", offsets(10, 20), done(0, 1)).earlier == ()


def test_a_micro_batch_is_complete_if_the_next_one_was_planned() -> None:
    """The clean-up, or a crash in it, may have deleted the entry that says so."""
    checkpoint = build_checkpoint("q", offsets(10, 20), done(1))
    assert checkpoint.ranges(committed_only=True) == [CoveredRange(0, "orders", 6, 0, 20)]
    assert build_checkpoint("q", offsets(10, 20), done()).last_committed == 0


@pytest.mark.parametrize(
    ("entries", "commits", "expected"),
    [
        ({0: 10, 2: 25}, (0, 1, 2), [("checkpoint_gap", 1)]),
        ({0: 10, 1: 20, 2: 25}, (0, 2), [("checkpoint_gap", 1)]),
        ({0: 10, 1: 20}, (0, 1, 2), [("checkpoint_gap", 2)]),
        ({0: 10, 1: 5}, (0, 1), [("checkpoint_overlap", 1)]),
    ],
)
def test_entries_that_are_missing_or_overlap_are_found(
    entries: dict[int, int], commits: tuple[int, ...], expected: list[tuple[str, int]]
) -> None:
    raw = {at: entry({"orders": end}, starts=None if at else {"orders": 0}) for at, end in entries.items()}
    assert [(fault.kind, fault.batch) for fault in build_checkpoint("q", raw, done(*commits)).faults] == expected


def test_an_entry_that_starts_elsewhere_is_found() -> None:
    for start, kind in ((12, "checkpoint_gap"), (8, "checkpoint_overlap")):
        raw = offsets(10) | {1: entry({"orders": 20}, starts={"orders": start})}
        assert [fault.kind for fault in build_checkpoint("q", raw, done(0, 1)).faults] == [kind]


@pytest.mark.parametrize("raw", ["", "v1\n", "v1\n{}\n{", "v1\n{}\n" + '{"topics": {"orders": 3}}'])
def test_an_entry_that_can_not_be_read_is_found(raw: str) -> None:
    checkpoint = build_checkpoint("q", offsets(10) | {1: raw}, done(0, 1))
    assert [(fault.kind, fault.batch) for fault in checkpoint.faults] == [("checkpoint_unreadable", 1)]


def test_a_source_that_is_read_twice_counts_once() -> None:
    """As in a pipeline with dead letters."""
    raw = {0: entry({"orders": 10}, {"orders": 10}, starts={"orders": 0})}
    checkpoint = build_checkpoint("q", raw, done(0), 1)
    assert checkpoint.ranges(committed_only=True) == [CoveredRange(0, "orders", 6, 0, 10)]


def test_several_sources_and_topics_that_join_later() -> None:
    raw = {
        0: entry({"orders": 10}, None, starts={"orders": 0}),
        1: entry({"orders": 10, "bills": 7}, {"x": 3}, starts={"bills": 2, "x": 0}),
    }
    checkpoint = build_checkpoint("q", raw, done(0, 1))
    assert checkpoint.faults == ()
    assert checkpoint.ranges(committed_only=True) == [
        CoveredRange(0, "bills", 5, 2, 7),
        CoveredRange(0, "orders", 6, 0, 10),
        CoveredRange(1, "x", 1, 0, 3),
    ]
