"""One contract for all sinks: every row once, whatever fails when. The order of faults is Spark's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from oncemq.protocol import errors
from tests.spark.checkpoints import Checkpoint
from tests.spark.targets.sink_drivers import (
    DeltaBucket,
    DeltaFolder,
    Message,
    ParquetBucket,
    ParquetFolder,
    PostgresRows,
    Sink,
    record_batches,
    write,
    write_all,
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


@pytest.fixture(params=["parquet", "delta", "postgres", "parquet in s3", "delta in s3"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    if "s3" in request.param:
        kind = ParquetBucket if "parquet" in request.param else DeltaBucket
        return kind(request.getfixturevalue("s3"), tmp_path.name)
    if request.param == "parquet":
        return ParquetFolder(tmp_path / "numbers")
    if request.param == "delta":
        return DeltaFolder(tmp_path / "numbers")
    return PostgresRows(request.getfixturevalue("oncemq_postgres"))


def test_batches_come_one_after_the_other_and_leave_nothing_behind(sink: Sink) -> None:
    for batch in range(3):
        sink.run([range(batch * 10, batch * 10 + 4), range(batch * 10 + 4, batch * 10 + 10)], batch=batch)
    assert sink.numbers() == list(range(30))
    assert sink.leftovers() == []


def test_what_is_staged_is_not_seen(sink: Sink) -> None:
    sink.run([range(3)], batch=0)
    write_all(sink.writer(), [range(3, 5)], batch=1)
    assert sink.numbers() == [0, 1, 2]


def test_a_replayed_batch_changes_nothing_though_it_is_cut_otherwise(sink: Sink) -> None:
    sink.run([range(5), range(5, 10)], batch=0)
    sink.run([range(9, 6, -1), range(3), range(3, 7)], batch=0)
    sink.run([range(10, 12)], batch=1)
    assert sink.numbers() == list(range(12))
    assert sink.leftovers() == []


def test_a_commit_that_published_and_then_failed_is_not_undone_by_abort(sink: Sink) -> None:
    sink.run([range(2)], batch=0)
    messages = sink.run([range(2, 5), range(5, 7)], batch=1)
    sink.writer().abort(messages, 1)
    assert sink.numbers() == list(range(7))
    sink.run([range(2, 7)], batch=1)
    assert sink.numbers() == list(range(7))


def test_the_first_batch_is_not_undone_by_abort_either(sink: Sink) -> None:
    messages = sink.run([range(5)], batch=0)
    sink.writer().abort(messages, 0)
    assert sink.numbers() == list(range(5))


def test_the_same_commit_twice_is_one(sink: Sink) -> None:
    messages = sink.run([range(5)], batch=0)
    sink.writer().commit(messages, 0)
    assert sink.numbers() == list(range(5))


def test_abort_removes_what_was_staged(sink: Sink) -> None:
    sink.run([range(2)], batch=0)
    messages = write_all(sink.writer(), [range(2, 4), range(4, 6)], batch=1)
    sink.writer().abort([messages[0], None], 1)
    sink.writer().abort([None, messages[1]], 1)
    assert sink.leftovers() == []
    sink.run([range(2, 6)], batch=1)
    assert sink.numbers() == list(range(6))


def test_abort_without_a_message_is_no_error(sink: Sink) -> None:
    sink.writer().abort([None, None], 0)
    sink.writer().commit([], 0)
    sink.run([range(2)], batch=0)
    assert sink.numbers() == [0, 1]


def test_a_retried_or_speculative_task_counts_once(sink: Sink) -> None:
    writer = sink.writer()
    winner = write(writer, record_batches(range(4)), batch=0, partition=0)
    write(writer, record_batches(range(4)), batch=0, partition=0)
    other = write(writer, record_batches(range(4, 6)), batch=0, partition=1)
    sink.writer().commit([winner, other], 0)
    assert sink.numbers() == list(range(6))


def test_a_task_that_fails_in_the_middle_leaves_nothing(sink: Sink) -> None:
    def breaking() -> Iterator[Any]:
        yield from record_batches(range(100_000), rows_per_batch=50_000)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(sink.writer(), breaking(), batch=0)
    assert sink.leftovers() == []
    sink.run([range(3)], batch=0)
    assert sink.numbers() == [0, 1, 2]


def test_an_older_batch_that_comes_late_is_dropped(sink: Sink) -> None:
    late = write_all(sink.writer(), [range(5)], batch=3)
    sink.run([range(5)], batch=3)
    sink.run([range(5, 8)], batch=4)
    sink.writer().commit(late, 3)
    sink.writer().abort(late, 3)
    assert sink.numbers() == list(range(8))


def test_two_drivers_on_one_checkpoint_publish_a_batch_once(sink: Sink) -> None:
    sink.run([range(3)], batch=0)
    for batch in range(1, 6):
        numbers = range(batch * 3, batch * 3 + 3)
        twins = [
            write_all(sink.writer(), [numbers], batch=batch),
            write_all(sink.writer(), [numbers[:1], numbers[1:]], batch=batch),
        ]
        commit_at_once(sink, twins, batch)
        assert sink.numbers() == list(range(batch * 3 + 3))


def test_two_drivers_publish_the_first_batch_once(sink: Sink) -> None:
    twins = [write_all(sink.writer(), [range(4)], batch=0), write_all(sink.writer(), [range(2), range(2, 4)], batch=0)]
    commit_at_once(sink, twins, 0)
    assert sink.numbers() == list(range(4))


def commit_at_once(sink: Sink, twins: list[list[Message]], batch: int) -> None:
    barrier = threading.Barrier(len(twins))
    writers = [sink.writer() for _ in twins]
    failures: list[BaseException] = []

    def commit(index: int) -> None:
        barrier.wait()
        try:
            writers[index].commit(twins[index], batch)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=commit, args=(index,)) for index in range(len(twins))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_each_query_has_batches_of_its_own(sink: Sink) -> None:
    sink.run([range(3)], batch=7, query="one")
    sink.run([range(3, 5)], batch=0, query="two")
    sink.run([range(5, 6)], batch=7, query="two")
    assert sink.numbers() == list(range(6))


def test_empty_partitions_and_batches_store_nothing(sink: Sink) -> None:
    sink.run([[], []], batch=0)
    sink.run([[], range(3), []], batch=1)
    sink.run([[]], batch=2)
    sink.run([range(3, 4)], batch=3)
    assert sink.numbers() == list(range(4))
    assert sink.leftovers() == []


def test_a_batch_write_has_no_query_and_is_refused(sink: Sink) -> None:
    with pytest.raises(errors.OnceMQError, match="for streams"):
        sink.run([range(3)], batch=0, query="")


# What a batch consists of.


def run_planned(sink: Sink, checkpoint: Checkpoint, batch: int, numbers: range) -> None:
    """Write a batch whose number and messages the checkpoint has planned."""
    checkpoint.plan(batch, numbers.stop)
    writer = sink.writer()
    writer.checkpoint = checkpoint.location
    messages = write_all(writer, [numbers], batch=batch)
    try:
        writer.commit(messages, batch)
    except errors.BatchChanged:
        writer.abort(messages, batch)
        raise


def test_a_batch_number_that_comes_back_with_other_messages_is_refused(sink: Sink, checkpoint: Checkpoint) -> None:
    run_planned(sink, checkpoint, 0, range(10))
    run_planned(sink, checkpoint, 1, range(10, 20))
    # The last entry of the checkpoint is lost, and there are more messages meanwhile.
    with pytest.raises(errors.BatchChanged, match="batch 1 of this query, with other messages"):
        run_planned(sink, checkpoint, 1, range(10, 30))
    assert sink.numbers() == list(range(20))
    assert sink.leftovers() == []


def test_a_batch_below_the_last_one_is_refused(sink: Sink, checkpoint: Checkpoint) -> None:
    for batch in range(3):
        run_planned(sink, checkpoint, batch, range(batch * 10, batch * 10 + 10))
    with pytest.raises(errors.BatchChanged, match="already contains batch 2 of this query, and this is batch 1"):
        run_planned(sink, checkpoint, 1, range(10, 20))
    assert sink.numbers() == list(range(30))


def test_a_replayed_batch_with_the_same_messages_changes_nothing(sink: Sink, checkpoint: Checkpoint) -> None:
    run_planned(sink, checkpoint, 0, range(10))
    for _ in range(2):
        run_planned(sink, checkpoint, 1, range(10, 20))
    run_planned(sink, checkpoint, 2, range(20, 30))
    assert sink.numbers() == list(range(30))
    assert sink.leftovers() == []


def test_a_batch_that_an_earlier_version_wrote_is_recognised(sink: Sink, checkpoint: Checkpoint) -> None:
    sink.run([range(10)], batch=0)
    run_planned(sink, checkpoint, 0, range(10))
    run_planned(sink, checkpoint, 1, range(10, 20))
    assert sink.numbers() == list(range(20))


def test_a_batch_whose_checkpoint_could_not_be_read_is_recognised(sink: Sink, checkpoint: Checkpoint) -> None:
    run_planned(sink, checkpoint, 0, range(10))
    sink.run([range(10, 20)], batch=1)
    for batch in (1, 2):
        run_planned(sink, checkpoint, batch, range(batch * 10, batch * 10 + 10))
    with pytest.raises(errors.BatchChanged):
        run_planned(sink, checkpoint, 2, range(20, 40))
    assert sink.numbers() == list(range(30))


def test_a_delta_table_keeps_the_content_when_its_log_is_cleaned_up(tmp_path: Path, checkpoint: Checkpoint) -> None:
    sink = DeltaFolder(tmp_path / "numbers")
    run_planned(sink, checkpoint, 0, range(10))
    run_planned(sink, checkpoint, 1, range(10, 20))
    table = DeltaTable(str(sink.folder))
    table.create_checkpoint()
    for entry in (sink.folder / "_delta_log").glob("*.json"):
        entry.unlink()
    run_planned(sink, checkpoint, 1, range(10, 20))
    with pytest.raises(errors.BatchChanged):
        run_planned(sink, checkpoint, 1, range(10, 30))
    assert sink.numbers() == list(range(20))
