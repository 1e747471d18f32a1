"""The audit with planted faults: each is found, with its offsets, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from oncemq.spark.audit import Report, SubscriptionResult, audit
from tests.spark.audit.planted_records import PlantedRecords

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Plant = Callable[[PlantedRecords, PlantedRecords], None]
#: By topic's id: all of them are judged together, since Spark takes its time.
_PLANTED: dict[int, Plant] = {}


def planted(topic_id: int) -> Callable[[Plant], Plant]:
    def note(plant: Plant) -> Plant:
        _PLANTED[topic_id] = plant
        return plant

    return note


@planted(1)
def _clean(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    producer.put(101, 1, 0, 6)
    producer.put(102, 1, 6, 4)
    consumer.opened(1, 11, 0)
    consumer.got(1, 11, (0, 10))
    consumer.acked(1, 11, 10)


@planted(2)
def _lost(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    producer.put(201, 2, 0, 10)
    consumer.opened(2, 21, 0)
    consumer.got(2, 21, (0, 4), (6, 4))
    consumer.acked(2, 21, 10)


@planted(3)
def _duplicated(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    """Confirmed to one owner, and given to the next."""
    producer.put(301, 3, 0, 10)
    consumer.opened(3, 31, 0)
    consumer.got(3, 31, (0, 10))
    consumer.acked(3, 31, 8)
    consumer.opened(3, 32, 6)
    consumer.got(3, 32, (6, 4))
    consumer.acked(3, 32, 10)


@planted(4)
def _out_of_order(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    producer.put(401, 4, 0, 10)
    consumer.opened(4, 41, 0)
    consumer.got(4, 41, (0, 3), (5, 5), (3, 2))
    consumer.acked(4, 41, 10)


@planted(5)
def _corrupted(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    producer.put(501, 5, 0, 10)
    consumer.opened(5, 51, 0)
    consumer.got(5, 51, (0, 10), changed=[7])
    consumer.acked(5, 51, 10)


@planted(6)
def _misplaced(producer: PlantedRecords, _: PlantedRecords) -> None:
    """Two puts at offsets 3 and 4; and one put, sent once and stored at 20 and at 30."""
    producer.put(601, 6, 0, 5)
    producer.put(602, 6, 3, 5)
    producer.put(603, 6, 20, 2)
    producer.stored(603, 6, 30, 2)


@planted(7)
def _redelivered(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    """A consumer died before its ack; the next one rolled a transaction back. Nobody's fault."""
    producer.put(701, 7, 0, 10)
    consumer.opened(7, 71, 0)
    consumer.got(7, 71, (0, 10))
    consumer.acked(7, 71, 4)
    consumer.opened(7, 72, 4)
    consumer.got(7, 72, (4, 6))
    consumer.back(7, 72, 4)
    consumer.got(7, 72, (4, 6))
    consumer.acked(7, 72, 10)


@planted(8)
def _sought(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    """Back to the beginning: all comes again, and offset 1 is missing the second time."""
    producer.put(801, 8, 0, 5)
    consumer.opened(8, 81, 0)
    consumer.got(8, 81, (0, 5))
    consumer.acked(8, 81, 5)
    consumer.sought(802, 8, 0)
    consumer.opened(8, 83, 0)
    consumer.got(8, 83, (0, 1), (2, 3))
    consumer.acked(8, 83, 5)


@planted(9)
def _explained(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    """Expired, filtered out and acked unread: nothing of it is lost."""
    producer.put(901, 9, 0, 3)
    producer.put(902, 9, 3, 3, ttl_ms=10)
    producer.put(903, 9, 6, 4)
    consumer.opened(9, 91, 0)
    consumer.skipped(9, 91, (3, 3))
    consumer.got(9, 91, (0, 3), (8, 2), passed=[(6, 2)])
    consumer.acked(9, 91, 10)


@planted(10)
def _shared(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    """Leased again after its lease was over (2, 3): right. Leased again after it was done (5): a double."""
    producer.put(1001, 10, 0, 6)
    consumer.opened(10, 100, 0, shared=True)
    consumer.got(10, 100, (0, 4), token=101)
    consumer.settled(10, 100, (101, 0, 2))
    consumer.got(10, 100, (2, 4), token=102)
    consumer.settled(10, 100, (102, 2, 4))
    consumer.got(10, 100, (5, 1), token=103)
    consumer.settled(10, 100, (103, 5, 1))
    consumer.opened(10, 100, 6, shared=True)


@planted(11)
def _unknown(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    """A put without an answer was stored, at offset 2; nobody put what is at 3. One that was refused is gone."""
    producer.put(1101, 11, 0, 2)
    producer.sent(1102, 11, 2, 1)
    consumer.opened(11, 111, 0)
    consumer.got(11, 111, (0, 4))
    consumer.acked(11, 111, 4)


@planted(12)
def _dropped(producer: PlantedRecords, consumer: PlantedRecords) -> None:
    """The quota took two; one more is missing."""
    producer.put(1201, 12, 0, 10)
    consumer.opened(12, 121, 0)
    consumer.got(12, 121, (3, 7))
    consumer.acked(12, 121, 10, dropped=2)


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("records")
    producer, consumer = PlantedRecords(folder, "producer"), PlantedRecords(folder, "consumer")
    for plant in _PLANTED.values():
        plant(producer, consumer)
    consumer.tear()
    damaged = PlantedRecords(folder, "damaged")
    damaged.put(1, 13, 0, 1)
    damaged.lose_line(1)
    return audit(spark, str(folder), complete=True)


def _of(report: Report, topic_id: int) -> SubscriptionResult:
    [found] = [each for each in report.subscriptions if each.topic_id == topic_id]
    return found


def _found(report: Report, topic_id: int) -> dict[str, list[int]]:
    kinds: dict[str, list[int]] = {}
    for finding in report.findings:
        if finding.topic_id == topic_id:
            kinds.setdefault(finding.kind, []).append(finding.offset)
    return kinds


@pytest.mark.parametrize(
    ("topic_id", "found"),
    [
        (1, {}),
        (2, {"lost": [4, 5]}),
        (3, {"duplicated": [6, 7]}),
        (4, {"out_of_order": [3, 4]}),
        (5, {"corrupted": [7]}),
        (6, {"same_offset": [3, 4], "stored_twice": [20, 21, 30, 31]}),
        (7, {}),
        (8, {"lost": [1]}),
        (9, {}),
        (10, {"duplicated": [5]}),
        (11, {"unknown": [3]}),
        (12, {"lost": [0, 1, 2]}),
    ],
)
def test_what_was_planted_is_found_with_its_offsets_and_nothing_else(
    report: Report, topic_id: int, found: dict[str, list[int]]
) -> None:
    assert _found(report, topic_id) == found


def test_counts_are_exact(report: Report) -> None:
    assert (_of(report, 2).lost, _of(report, 2).consumed) == (2, 8)
    assert _of(report, 3).duplicated == 2
    assert _of(report, 12).lost == 1
    assert _of(report, 12).dropped == 2
    assert report.in_doubt == 1
    assert not report.is_proved


def test_only_a_last_line_may_be_torn(report: Report) -> None:
    assert (report.files, report.torn, report.unreadable, report.incomplete) == (3, 2, 1, 0)


def test_redeliveries_are_counted_and_are_no_fault(report: Report) -> None:
    assert _of(report, 7).redelivered == 12
    assert _of(report, 10).redelivered == 2
    assert not _of(report, 7).faults


def test_what_is_missing_for_a_reason_is_not_lost(report: Report) -> None:
    result = _of(report, 9)
    assert (result.expired, result.passed, result.consumed, result.lost) == (3, 2, 5, 0)


def test_a_verdict_is_a_sentence(report: Report) -> None:
    assert _of(report, 1).summary == "t1 / s: 10 put, 10 consumed once, in order"
    assert _of(report, 2).summary == "t2 / s: 10 put, 8 consumed, 2 LOST"
