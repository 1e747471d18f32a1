"""How a read is divided into tasks: arithmetic."""

from __future__ import annotations

from oncemq.spark.source.ranges import Extent, Range, admit, divide, limit_rows

WHOLE = Range("orders", 1, 100, 1_100)


def counts(parts: list[Range]) -> list[int]:
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]], "nothing twice, nothing left out"
    assert (parts[0].start, parts[-1].stop) == (WHOLE.start, WHOLE.stop)
    return [part.count for part in parts]


def test_a_range_of_unknown_size_is_divided_by_rows() -> None:
    assert counts(divide(WHOLE, Extent(), 4)) == [250] * 4
    assert counts(divide(WHOLE, Extent(), 1)) == [1_000]
    assert len(divide(Range("orders", 1, 0, 3), Extent(), 10)) == 3


def test_large_messages_count_for_more() -> None:
    extent = Extent(10_000_000, 0, [(100 + 100 * number, 1_000) for number in range(1, 10)])
    assert counts(divide(WHOLE, extent, 2))[0] > 900, "the last hundred messages are almost everything"


def test_tasks_end_with_stored_batches() -> None:
    extent = Extent(10_000, 0, [(100 + 130 * number, 1_300) for number in range(1, 7)])
    assert counts(divide(WHOLE, extent, 3)) == [390, 260, 350]


def test_a_batch_that_is_larger_than_a_task_is_divided() -> None:
    assert counts(divide(WHOLE, Extent(1_000_000, 0, [(1_100, 1_000_000)]), 5)) == [200] * 5


def test_no_task_has_more_rows_than_allowed() -> None:
    assert counts(limit_rows([WHOLE], 300)) == [250] * 4
    assert counts(limit_rows([WHOLE], 1_000)) == [1_000]


def test_each_topic_gets_its_share_of_a_micro_batch() -> None:
    assert admit({"a": 900, "b": 100}, 100) == {"a": 90, "b": 10}
    assert admit({"a": 3, "b": 3}, 100) == {"a": 3, "b": 3}
    assert sum(admit({"a": 7, "b": 7, "c": 7}, 1).values()) == 1
