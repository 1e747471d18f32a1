"""The sink as Spark's tasks and driver call it, against a real broker, with every fault of theirs; without a JVM."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.spark import connections
from oncemq.spark.options import sink_options
from oncemq.spark.sink import writers
from oncemq.spark.sink.staged_write import StagedRows
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.sink.writers import BatchWriter, StreamWriter
from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker
from tests.spark.checkpoints import Checkpoint

BINARY, STRING = BinaryType(), StringType()


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found.add(name, kind)
    return found


VALUES = schema(value=BINARY)


@pytest.fixture(autouse=True)
def _a_query_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker remembers queries with no time limit, and the tests share one broker."""
    monkeypatch.setattr(Driver, "own_query", str(uuid.uuid4()))


class Driver:
    """One query as Spark runs it: tasks get pickled copies of the writer, commit is another object's."""

    #: As it stands in the checkpoint of the test's query.
    own_query = ""

    def __init__(
        self,
        broker: BrokerProcess,
        monkeypatch: pytest.MonkeyPatch,
        query: str = "",
        columns: StructType = VALUES,
        **options: str,
    ) -> None:
        self._options = sink_options({"url": broker.url, "timeout": "10", **options}, is_stream=True)
        self._schema = columns
        self._monkeypatch = monkeypatch
        self._query = query or self.own_query
        self.last_stage = ""

    def task(self, batch: int, partition: int, rows: Sequence[bytes] | Any) -> StagedRows:
        """One attempt."""
        identity = TaskIdentity(query_id=self._query, batch_id=batch, partition=partition, attempt=uuid.uuid4().hex)
        self._monkeypatch.setattr(writers, "task_identity", lambda: identity)
        self.last_stage = f"{self._query}/{batch}/{partition}/{identity.attempt}/0"
        writer = pickle.loads(pickle.dumps(StreamWriter(self._options, self._schema)))
        batches = [pa.record_batch({"value": pa.array(rows, pa.binary())})] if isinstance(rows, list) else rows
        message = pickle.loads(pickle.dumps(writer.write(iter(batches))))
        assert isinstance(message, StagedRows)
        return message

    def tasks(self, batch: int, partitions: Sequence[list[bytes]]) -> list[WriterCommitMessage | None]:
        return [self.task(batch, number, rows) for number, rows in enumerate(partitions)]

    def commit(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        StreamWriter(self._options, self._schema).commit(messages, batch)

    def abort(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        StreamWriter(self._options, self._schema).abort(messages, batch)


def made(client: Client, *topics: str) -> None:
    for topic in topics:
        client.create_topic(topic, retain_ms=3_600_000)


def values_in(client: Client, topic: str) -> list[bytes]:
    return [message.value for message in client.read(topic)]


def test_a_batch_is_seen_when_it_is_committed_and_not_before(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    driver = Driver(broker, monkeypatch, topic="out")
    messages = driver.tasks(0, [[b"a", b"b"], [], [b"c"]])
    assert values_in(client, "out") == []
    # In order of partitions, whoever came first.
    driver.commit(messages[::-1], 0)
    assert values_in(client, "out") == [b"a", b"b", b"c"]


def test_a_retried_task_leaves_nothing_of_its_first_attempt(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    driver = Driver(broker, monkeypatch, topic="out")

    def breaks() -> Iterator[Any]:
        yield pa.record_batch({"value": pa.array([b"lost"] * 10, pa.binary())})
        raise OSError("the task's machine died")

    with pytest.raises(OSError):
        driver.task(0, 0, breaks())
    # Nobody else knows what it had staged, so it has cleaned up behind itself.
    with pytest.raises(errors.StageUnknown):
        client.commit("somebody", 0, "out", [(driver.last_stage, 10)])
    # Speculation: a second attempt ran to its end, and lost.
    driver.task(0, 0, [b"a", b"b"])
    driver.commit([driver.task(0, 0, [b"a", b"b"])], 0)
    assert values_in(client, "out") == [b"a", b"b"]


def test_a_batch_that_is_replayed_after_its_commit_is_not_stored_again_however_it_is_cut(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    driver = Driver(broker, monkeypatch, topic="out")
    driver.commit(driver.tasks(0, [[b"a", b"b"], [b"c"]]), 0)
    # The driver died before Spark noted it; the rows come in another order, in other partitions.
    drawn = []

    def rows() -> Iterator[Any]:
        for value in (b"c", b"b"):
            drawn.append(value)
            yield pa.record_batch({"value": pa.array([value], pa.binary())})

    again = Driver(broker, monkeypatch, topic="out")
    messages: list[WriterCommitMessage | None] = [again.task(0, 0, rows()), again.task(0, 1, [b"a"])]
    # Operators with state rely on it: the rows are drawn to their end.
    assert drawn == [b"c", b"b"]
    again.commit(messages, 0)
    assert values_in(client, "out") == [b"a", b"b", b"c"]
    again.commit(again.tasks(1, [[b"d"]]), 1)
    assert values_in(client, "out") == [b"a", b"b", b"c", b"d"]


def test_an_abort_after_the_commit_drops_nothing_that_was_published(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    driver = Driver(broker, monkeypatch, topic="out")
    messages = driver.tasks(0, [[b"a"], [b"b"]])
    driver.commit(messages, 0)
    # The answer got lost, commit raised: Spark aborts with the same messages, and replays the batch.
    driver.abort(messages, 0)
    driver.commit(driver.tasks(0, [[b"b"], [b"a"]]), 0)
    assert values_in(client, "out") == [b"a", b"b"]


def test_an_aborted_batch_leaves_nothing_and_can_be_tried_again(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    driver = Driver(broker, monkeypatch, topic="out")
    messages = [*driver.tasks(0, [[b"a"]]), None]
    driver.abort(messages, 0)
    driver.abort([None, None], 0)
    with pytest.raises(errors.StageUnknown):
        driver.commit(messages[:1], 0)
    driver.commit(driver.tasks(0, [[b"a"], [b"b"]]), 0)
    assert values_in(client, "out") == [b"a", b"b"]


def test_of_two_drivers_on_one_checkpoint_one_publishes_the_batch(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    first, second = (Driver(broker, monkeypatch, topic="out") for _ in range(2))
    staged = [first.tasks(0, [[b"a", b"b"]]), second.tasks(0, [[b"b"], [b"a"]])]
    second.commit(staged[1], 0)
    first.commit(staged[0], 0)
    assert values_in(client, "out") == [b"b", b"a"]


def test_a_batch_number_that_comes_back_with_other_messages_is_refused(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made(client, "out")
    checkpoint = Checkpoint(tmp_path)
    driver = Driver(broker, monkeypatch, topic="out", checkpointLocation=checkpoint.location)
    checkpoint.plan(0, 2)
    for _ in range(2):
        driver.commit(driver.tasks(0, [[b"a"], [b"b"]]), 0)
    checkpoint.plan(0, 3)
    messages = driver.tasks(0, [[b"a"], [b"b", b"c"]])
    with pytest.raises(errors.BatchChanged, match=r"batch 0, with other content\. .* Restore the newest copy"):
        driver.commit(messages, 0)
    driver.abort(messages, 0)
    assert values_in(client, "out") == [b"a", b"b"]


def test_two_queries_and_two_targets_do_not_get_in_each_other_s_way(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out", "other")
    for query, topic in (("", "out"), ("", "other"), (str(uuid.uuid4()), "out")):
        driver = Driver(broker, monkeypatch, query, topic=topic)
        driver.commit(driver.tasks(0, [[topic.encode()]]), 0)
    assert values_in(client, "out") == [b"out", b"out"]
    assert values_in(client, "other") == [b"other"]


def test_the_broker_may_die_between_staging_and_commit(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    driver = Driver(broker, monkeypatch, topic="out")
    messages = driver.tasks(0, [[b"%d" % number for number in range(5000)]])
    broker.kill()
    broker.restart()
    driver.commit(messages, 0)
    broker.kill()
    broker.restart()
    driver.commit(driver.tasks(0, [[b"again"]]), 0)
    assert values_in(client, "out") == [b"%d" % number for number in range(5000)]


def test_a_task_that_does_not_say_what_it_staged_stops_the_commit(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    driver = Driver(broker, monkeypatch, topic="out")
    with pytest.raises(RuntimeError, match="only 1 of 2 tasks"):
        driver.commit([*driver.tasks(0, [[b"a"]]), None], 0)
    assert values_in(client, "out") == []


def test_batches_are_no_larger_than_the_broker_takes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = 20_000
    columns = schema(value=BINARY, key=BINARY, headers=MapType(STRING, STRING), timestamp=TimestampType())
    batch = pa.record_batch(
        {
            "value": pa.array([b"%d" % number for number in range(rows)], pa.binary()),
            "key": pa.array([b"" if number % 2 else None for number in range(rows)], pa.binary()),
            "headers": pa.array([[("h", "")]] * rows, pa.map_(pa.string(), pa.string())),
            "timestamp": pa.array(range(rows), pa.timestamp("us", "UTC")),
        }
    )
    with ForkedBroker(tmp_path / "data", "--segment-bytes=1MiB", "--batch-bytes-max=64KiB") as broker:
        with broker.connect() as client:
            made(client, "out")
            driver = Driver(broker, monkeypatch, columns=columns, topic="out", timestamps="keep")
            driver.commit([driver.task(0, 0, iter([batch]))], 0)
            assert values_in(client, "out") == [b"%d" % number for number in range(rows)]
        connections.close_all()


def test_rows_say_their_topic_and_all_topics_get_theirs_at_once(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = schema(topic=STRING, value=STRING, key=STRING, headers=MapType(STRING, STRING), timestamp=TimestampType())
    driver = Driver(broker, monkeypatch, columns=columns, create="true", timestamps="keep")
    rows = pa.record_batch(
        {
            "topic": ["a", "b", "a"],
            "value": ["one", "two", "three"],
            "key": [None, "k", None],
            "headers": pa.array([None, [("h", "1")], None], pa.map_(pa.string(), pa.string())),
            "timestamp": pa.array([1_000_000, 2_000_000, 3_000_000], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    subscriptions = [client.subscribe(topic, "s") for topic in ("a", "b")]
    driver.commit([driver.task(0, 0, iter([rows]))], 0)
    found = [message for subscription in subscriptions for message in subscription.get_many()]
    assert [(m.topic, m.value, m.key, m.headers, m.timestamp_ms) for m in found] == [
        ("a", b"one", None, {}, 1000),
        ("a", b"three", None, {}, 3000),
        ("b", b"two", b"k", {"h": b"1"}, 2000),
    ]


def test_a_topic_that_is_there_already_stays_as_it_is(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    driver = Driver(broker, monkeypatch, topic="out", create="true")
    driver.commit(driver.tasks(0, [[b"a"]]), 0)
    assert values_in(client, "out") == [b"a"]
    assert client.topics()[0].retain_ms == 3_600_000


def test_a_topic_that_is_not_there_is_an_error(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.TopicUnknown, match="create=true"):
        Driver(broker, monkeypatch, topic="nowhere").task(0, 0, [b"a"])


# Batch writes.


def write_batch(
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    partitions: Sequence[list[bytes]],
    query: tuple[str, int] = ("", 0),
    run_id: str = "",
    **options: str,
) -> None:
    """Write as a batch; inside `foreachBatch`, the tasks belong to a query and a micro-batch."""
    chosen = sink_options({"url": broker.url, "topic": "out", **options}, is_stream=False)
    messages: list[WriterCommitMessage | None] = []
    for number, rows in enumerate(partitions):
        identity = TaskIdentity(
            query_id=query[0], batch_id=query[1], partition=number, attempt=uuid.uuid4().hex, run_id=run_id
        )
        monkeypatch.setattr(writers, "task_identity", lambda identity=identity: identity)
        writer = BatchWriter(chosen, VALUES, False)
        messages.append(writer.write(iter([pa.record_batch({"value": pa.array(rows, pa.binary())})])))
    BatchWriter(chosen, VALUES, False).commit(messages)


def test_batch_writes_add_up_and_leave_no_writer_behind(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    for _ in range(2):
        write_batch(broker, monkeypatch, [[b"a"], [b"b"]])
    assert values_in(client, "out") == [b"a", b"b"] * 2


def test_a_write_with_an_id_can_be_run_again_without_harm(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    for _ in range(2):
        write_batch(broker, monkeypatch, [[b"a"], [b"b"]], writeId="nightly")
    for number in ("1", "1", "2"):
        write_batch(broker, monkeypatch, [[b"n%s" % number.encode()]], writeId="nightly", writeNumber=number)
    assert values_in(client, "out") == [b"a", b"b", b"n1", b"n2"]


def test_three_writes_with_one_id_and_number_do_not_lose_rows_silently(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made(client, "out")
    rows = [b"%d" % number for number in range(100)]
    write_batch(broker, monkeypatch, [rows], writeId="load", writeNumber="1")
    for other in (rows[:99], [*rows[1:], b"0x"], [b"%d" % number for number in range(100, 200)]):
        with pytest.raises(errors.BatchChanged, match=r"batch 1, with other content\. Use another 'writeId'"):
            write_batch(broker, monkeypatch, [other], writeId="load", writeNumber="1")
    assert "already written" not in caplog.text
    # The same rows in another order and in other partitions.
    write_batch(broker, monkeypatch, [rows[:30:-1], rows[:31]], writeId="load", writeNumber="1")
    assert "writeId 'load', writeNumber 1: already written; nothing was changed" in caplog.text
    assert values_in(client, "out") == rows


def test_an_id_that_is_used_again_for_more_rows_is_an_error(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    rows = [b"%d" % number for number in range(20)]
    write_batch(broker, monkeypatch, [rows[:10]], writeId="twice")
    with pytest.raises(errors.BatchChanged):
        write_batch(broker, monkeypatch, [rows], writeId="twice")
    assert values_in(client, "out") == rows[:10]


def test_an_earlier_number_is_compared_with_what_it_wrote(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "out")
    for number in ("1", "2", "4", "1"):
        write_batch(broker, monkeypatch, [[b"n" + number.encode()]], writeId="daily", writeNumber=number)
    for number, row in (("1", b"n2"), ("3", b"n3")):
        with pytest.raises(errors.BatchChanged):
            write_batch(broker, monkeypatch, [[row]], writeId="daily", writeNumber=number)
    assert values_in(client, "out") == [b"n1", b"n2", b"n4"]


def test_in_foreach_batch_a_replay_may_compute_other_values(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made(client, "out")
    for run_id in ("first", "first", "second"):
        write_batch(broker, monkeypatch, [[b"at 12:00"]], ("query", 3), run_id, writeId="each", writeNumber="3")
    assert "already written; nothing was changed" in caplog.text
    assert "with other rows" not in caplog.text
    for run_id, row in (("second", b"at 12:01"), ("", b"at 12:02")):
        write_batch(broker, monkeypatch, [[row]], ("query", 3), run_id, writeId="each", writeNumber="3")
    assert caplog.text.count("already written by an earlier run of the query, with other rows") == 2
    assert values_in(client, "out") == [b"at 12:00"]
    # In one run, other rows are another write.
    with pytest.raises(errors.BatchChanged):
        write_batch(broker, monkeypatch, [[b"at 12:03"]], ("query", 3), "first", writeId="each", writeNumber="3")
    # A new checkpoint is another query.
    with pytest.raises(errors.BatchChanged):
        write_batch(broker, monkeypatch, [[b"at 12:02"]], ("other", 3), writeId="each", writeNumber="3")


def test_in_foreach_batch_a_given_checkpoint_identifies_the_messages(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made(client, "out")
    checkpoint = Checkpoint(tmp_path)
    options = {"writeId": "known", "writeNumber": "0", "checkpointLocation": checkpoint.location}
    checkpoint.plan(0, 100)
    for _ in range(2):
        write_batch(broker, monkeypatch, [[b"a"]], ("query", 0), **options)
    checkpoint.plan(0, 200)
    with pytest.raises(errors.BatchChanged):
        write_batch(broker, monkeypatch, [[b"a"]], ("query", 0), **options)
    assert values_in(client, "out") == [b"a"]


def test_ids_and_topics_are_not_mixed_up(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(client, "c", "b/c")
    for write_id, topic in (("a/b", "c"), ("a", "b/c")):
        write_batch(broker, monkeypatch, [[b"a"]], writeId=write_id, topic=topic)
        assert values_in(client, topic) == [b"a"]


def test_a_topic_that_was_made_again_gets_what_the_former_had_got(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        made(client, "out")
        write_batch(broker, monkeypatch, [[b"a"]], writeId="nightly load")
        assert values_in(client, "out") == [b"a"]
        client.delete_topic("out")


def test_a_topic_that_the_sink_makes_keeps_its_messages_for_readers_to_come(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(broker, monkeypatch, topic="out", create="true")
    driver.commit(driver.tasks(0, [[b"a"]]), 0)
    assert values_in(client, "out") == [b"a"]
    assert client.topics()[0].retain_ms == 7 * 24 * 3600 * 1000
    other = Driver(broker, monkeypatch, str(uuid.uuid4()), topic="other", create="true", retain="2h")
    other.commit(other.tasks(0, [[b"a"]]), 0)
    assert {topic.name: topic.retain_ms for topic in client.topics()}["other"] == 2 * 3600 * 1000


# What is refused before anything is written.


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (schema(value=BINARY, price=DoubleType()), {"topic": "t"}, "no column 'price'.*to_json"),
        (schema(key=BINARY), {"topic": "t"}, "need a column 'value'"),
        (VALUES, {}, "no topic is given"),
        (schema(value=IntegerType()), {"topic": "t"}, "'value' must be of type binary or string, not int"),
        (schema(value=BINARY, headers=MapType(STRING, IntegerType())), {"topic": "t"}, "map from string to binary"),
        (VALUES, {"topic": "t", "timestamps": "keep"}, "needs a column 'timestamp'"),
    ],
)
def test_rows_that_can_t_be_messages_are_refused_at_once(
    columns: StructType, options: dict[str, str], text: str
) -> None:
    with pytest.raises(errors.SettingInvalid, match=text):
        StreamWriter(sink_options(options, is_stream=True), columns)


def test_a_topic_can_t_be_overwritten() -> None:
    with pytest.raises(errors.SettingInvalid, match="append"):
        BatchWriter(sink_options({"topic": "t"}, is_stream=False), VALUES, True)
