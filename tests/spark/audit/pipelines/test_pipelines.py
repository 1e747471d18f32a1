"""The audit of pipelines that ran for real: a correct run is good, and each planted fault is found."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from oncemq.client.sync import Client
from oncemq.spark.audit.pipelines.report import BY_BATCH, BY_OFFSET, BY_TOTAL, NOT_JUDGED
from oncemq.spark.pipeline import Pipeline, Source, Transform, start
from oncemq.spark.pipeline.model import Encoding, Trigger
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget, TopicTarget
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.audit.pipelines import audited
from tests.spark.audit.pipelines.audited import MESSAGES, TOPIC, audit, audit_one, pipeline, put_orders, run_all
from tests.spark.targets.s3_server import BUCKET, STORAGE, S3Server

_HALVES = "SELECT id % 2 AS half, count(*) AS orders FROM messages GROUP BY id % 2"


@pytest.fixture
def ran(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, oncemq_postgres: str
) -> dict[str, Pipeline]:
    """A pipeline for each target, after three micro-batches. Each row has the offset of its message."""
    client.create_topic(TOPIC, retain_ms=3_600_000)
    put_orders(client, 0, MESSAGES)
    found = {
        name: pipeline(tmp_path, name, target) for name, target in audited.targets(tmp_path, oncemq_postgres).items()
    }
    run_all(spark, broker.url, list(found.values()))
    return found


def test_a_correct_run_is_good_and_each_fault_is_found(
    spark: SparkSession, broker: BrokerProcess, client: Client, ran: dict[str, Pipeline]
) -> None:
    # The driver died after the target had the last micro-batch, and before the checkpoint had it; then it ran again.
    for each in ran.values():
        audited.forget_entry(each, "commits", 2)
    put_orders(client, MESSAGES, MESSAGES + 5)
    run_all(spark, broker.url, list(ran.values()))
    report = audit(spark, broker.url, *ran.values())
    assert report.findings == []
    assert {(each.judged_by, each.messages, each.rows) for each in report.pipelines} == {(BY_OFFSET, 30, 30)}
    assert report.verdict == "Nothing was lost or duplicated."

    # Copies of the checkpoints with faults, on the same targets.
    damaged = {name: audited.with_copied_checkpoint(each) for name, each in ran.items()}
    _damage(client, damaged)
    report = audit(spark, broker.url, *damaged.values())
    assert {each.pipeline: each.faults for each in report.pipelines} == {
        "topic": {"checkpoint_gap": 1},
        "parquet": {"extra_batch": 1, "unexpected": 5},
        "delta": {"missing_batch": 1, "lost": 5},
        "postgres": {"changed_batch": 1, "unexpected": 1, "acked_ahead": 1},
    }

    _plant(client, ran)
    report = audit(spark, broker.url, *ran.values())
    assert {each.pipeline: each.faults for each in report.pipelines} == {
        "topic": {"duplicated": 1, "unexpected": 1},
        "parquet": {"lost": 1 + 10, "duplicated": 5, "missing_batch": 1, "wrong_count": 2},
        "delta": {"lost": 5, "duplicated": 3, "missing_batch": 1, "missing_file": 1},
        "postgres": {"lost": 3, "duplicated": 2},
    }
    [postgres] = [each for each in report.pipelines if each.pipeline == "postgres"]
    assert (postgres.rows, postgres.remarks) == (29, ("2 rows do not say from which message they come",))
    found = {(each.pipeline, each.kind, each.offset) for each in report.findings if each.offset >= 0}
    assert {("topic", "duplicated", 3), ("topic", "unexpected", 999), ("postgres", "lost", 7)} < found
    assert {offset for name, kind, offset in found if (name, kind) == ("parquet", "lost")} == {2, *range(10, 20)}
    assert report.verdict == "NOT PROVED."


def _damage(client: Client, damaged: dict[str, Pipeline]) -> None:
    audited.forget_entry(damaged["topic"], "offsets", 1)
    for folder in ("offsets", "commits"):
        audited.forget_entry(damaged["parquet"], folder, 3)
    put_orders(client, 30, 35)
    audited.add_batch(damaged["delta"], 4, 35)
    audited.change_end(damaged["postgres"], 3, 29)
    client.seek(TOPIC, "postgres", 30)


def _plant(client: Client, ran: dict[str, Pipeline]) -> None:
    for offset in (3, 999):
        client.put("audited", json.dumps({"id": 3, "price": 1.5, "message_offset": offset}))
    first, second, third, _ = audited.parquet_files(ran["parquet"])
    audited.remove_row(first, 2)
    second.unlink()
    third.with_name(third.name.replace("-00000.parquet", "-00001.parquet")).write_bytes(third.read_bytes())
    audited.double_first_rows(ran["delta"], 3)
    audited.delta_file_of_batch(ran["delta"], 2).unlink()
    audited.execute(ran["postgres"], "delete from audited where message_offset = 7")
    audited.execute(ran["postgres"], "insert into audited select * from audited where message_offset in (1, 2)")
    audited.execute(ran["postgres"], "update audited set message_offset = null where message_offset in (8, 9)")


def test_what_a_pipeline_does_not_tell_is_not_judged(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, oncemq_postgres: str
) -> None:
    client.create_topic(TOPIC, retain_ms=3_600_000)
    put_orders(client, 0, MESSAGES)
    kinds = audited.targets(tmp_path, oncemq_postgres)
    files = pipeline(tmp_path, "files", kinds["parquet"], "SELECT id FROM messages")
    table = pipeline(tmp_path, "table", kinds["postgres"], "SELECT id FROM messages")
    some = pipeline(tmp_path, "some", kinds["delta"], "SELECT id, message_offset FROM messages WHERE id % 2 = 0")
    keyed = pipeline(tmp_path, "keyed", kinds["topic"], "SELECT id, message_idempotency_key FROM messages")
    keyed = msgspec.structs.replace(keyed, source=Source(topic=TOPIC, columns=("idempotency_key",)))
    ran = [files, table, some, keyed]
    run_all(spark, broker.url, ran)
    report = audit(spark, broker.url, *ran)
    assert [(each.judged_by, each.rows, each.faults) for each in report.pipelines] == [
        (BY_BATCH, 25, {}),
        (BY_TOTAL, 25, {}),
        (BY_OFFSET, 13, {}),
        (BY_OFFSET, 25, {}),
    ]
    audited.parquet_files(files)[1].unlink()
    audited.execute(table, "delete from audited where id = 7")
    audited.double_first_rows(some, 1)
    audited.delta_file_of_batch(some, 2).unlink()
    report = audit(spark, broker.url, *ran)
    assert [each.faults for each in report.pipelines] == [
        {"missing_batch": 1},
        {"lost": 1},
        {"lost": 3, "duplicated": 1, "missing_file": 1},
        {},
    ]
    updates = pipeline(tmp_path, "updates", TopicTarget(topic="halves", create=True), _HALVES)
    updates = msgspec.structs.replace(updates, output="update", encoding=Encoding(key="half"))
    run_all(spark, broker.url, [updates])
    changing = audit_one(spark, broker.url, updates)
    assert (changing.judged_by, changing.faults) == (NOT_JUDGED, {})
    audited.add_batch(updates, 3, MESSAGES)
    audited.change_end(updates, 2, 20)
    assert audit_one(spark, broker.url, updates).faults == {"missing_batch": 1}
    distinct = msgspec.structs.replace(table, transform=Transform(sql="SELECT DISTINCT id FROM messages"))
    assert audit_one(spark, broker.url, distinct).judged_by == NOT_JUDGED


_TWICE = "SELECT id, explode(array(1, 2)) AS part, message_offset FROM messages"
_EVEN = "SELECT id, message_offset FROM messages WHERE id % 2 = 0"


def test_what_could_not_be_seen_is_not_called_proved(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, oncemq_postgres: str
) -> None:
    client.subscribe(TOPIC, "deleted")
    put_orders(client, 0, MESSAGES)
    kinds = audited.targets(tmp_path, oncemq_postgres)
    skipping = pipeline(tmp_path, "skipping", kinds["parquet"])
    skipping = msgspec.structs.replace(skipping, source=Source(topic=TOPIC, columns=("offset",), on_loss="skip"))
    deleted = msgspec.structs.replace(pipeline(tmp_path, "deleted", kinds["delta"], _EVEN), ack_last=True)
    twice = pipeline(tmp_path, "twice", DeltaTarget(path=str(tmp_path / "twice")), _TWICE)
    shared = [pipeline(tmp_path, name, kinds["postgres"], "SELECT id FROM messages") for name in ("one", "two")]
    run_all(spark, broker.url, [skipping, twice, *shared])
    report = audit(spark, broker.url, skipping, twice)
    assert [(each.judged_by, each.faults, each.unjudged) for each in report.pipelines] == [
        (BY_OFFSET, {}, ("lost",)),
        (BY_OFFSET, {}, ()),
    ]
    assert report.verdict == "No fault was found. Not all rows of skipping could be judged."
    assert audit(spark, broker.url, twice).is_proved
    audited.double_first_rows(twice, 3)
    assert audit_one(spark, broker.url, twice).faults == {"duplicated": 3}

    # Rows of the other query make up for those that were lost.
    audited.execute(shared[0], "delete from audited where ctid in (select ctid from audited limit 25)")
    assert [each.judged_by for each in audit(spark, broker.url, *shared).pipelines] == [NOT_JUDGED, NOT_JUDGED]

    run_all(spark, broker.url, [deleted])
    for name in ("skipping", "twice", "one", "two"):
        client.unsubscribe(TOPIC, name)
    result = audit(spark, broker.url, deleted)
    assert (result.is_good, result.is_proved) == (True, False)
    assert result.pipelines[0].unjudged == ("lost",)


def test_a_target_topic_that_deletes_messages_is_judged_from_its_oldest_row_on(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic(TOPIC, retain_ms=3_600_000)
    put_orders(client, 0, MESSAGES)
    client.subscribe("audited", "reader")
    each = pipeline(tmp_path, "topic", TopicTarget(topic="audited"))
    run_all(spark, broker.url, [each])
    # Somebody else's message, whose field is no number.
    client.put("audited", json.dumps({"message_offset": "none"}))
    found = audit(spark, broker.url, each)
    assert (found.is_proved, found.pipelines[0].rows) == (True, MESSAGES)
    client.seek("audited", "reader", 10)
    found = audit(spark, broker.url, each)
    assert (found.findings, found.pipelines[0].rows, found.pipelines[0].unjudged) == ([], MESSAGES - 10, ("lost",))
    client.seek("audited", "reader", MESSAGES + 1)
    found = audit(spark, broker.url, each)
    assert (found.findings, found.pipelines[0].rows, found.is_proved) == ([], 0, False)


def test_a_delta_table_whose_log_was_deleted_is_judged_by_its_rows(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic(TOPIC, retain_ms=3_600_000)
    put_orders(client, 0, MESSAGES)
    each = pipeline(tmp_path, "delta", DeltaTarget(path=str(tmp_path / "delta")), "SELECT id FROM messages")
    run_all(spark, broker.url, [each])
    assert audit_one(spark, broker.url, each).judged_by == BY_BATCH
    audited.forget_log(each, 2)
    result = audit_one(spark, broker.url, each)
    assert (result.judged_by, result.rows, result.faults) == (BY_TOTAL, MESSAGES, {})


def test_a_micro_batch_that_only_the_target_has_does_not_hide_a_loss(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, oncemq_postgres: str
) -> None:
    client.create_topic(TOPIC, retain_ms=3_600_000)
    put_orders(client, 0, MESSAGES)
    target = audited.targets(tmp_path, oncemq_postgres)["postgres"]
    each = pipeline(tmp_path, "postgres", target, "SELECT id FROM messages")
    run_all(spark, broker.url, [each])
    audited.forget_entry(each, "commits", 2)
    assert audit(spark, broker.url, each).is_proved
    audited.execute(each, "delete from audited where id < 3")
    assert audit_one(spark, broker.url, each).faults == {"lost": 3}


def test_a_pipeline_that_is_running_is_judged_without_false_findings(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, oncemq_postgres: str
) -> None:
    client.create_topic(TOPIC, retain_ms=3_600_000)
    put_orders(client, 0, MESSAGES)
    # By the number of rows of each micro-batch, and by the number of all rows.
    kinds = audited.targets(tmp_path, oncemq_postgres)
    counted = "SELECT id FROM messages"
    ran = [
        pipeline(tmp_path, "parquet", kinds["parquet"], counted),
        pipeline(tmp_path, "postgres", kinds["postgres"], counted),
    ]
    run_all(spark, broker.url, ran)
    running = [start(continuous(each), url=broker.url, session=spark) for each in ran]
    stop = threading.Event()

    def put_until_stopped() -> None:
        with broker.connect() as producer:
            while not stop.wait(0.2):
                put_orders(producer, 0, 3)

    producer = threading.Thread(target=put_until_stopped)
    producer.start()
    try:
        assert audit(spark, broker.url, *ran).findings == []
    finally:
        stop.set()
        producer.join()
        for each in running:
            each.stop()
    run_all(spark, broker.url, ran)
    assert audit(spark, broker.url, *ran).is_proved


def continuous(each: Pipeline) -> Pipeline:
    return msgspec.structs.replace(each, trigger=Trigger(every="500ms"))


def test_targets_in_an_object_store_are_judged_too(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path, s3: S3Server
) -> None:
    client.create_topic(TOPIC, retain_ms=3_600_000)
    put_orders(client, 0, MESSAGES)
    sql = "SELECT *, id % 2 AS half FROM messages"
    files = ParquetTarget(path=f"s3://{BUCKET}/files", storage=STORAGE, partition_by=("half",))
    ran = [
        pipeline(tmp_path, "files", files, sql),
        pipeline(tmp_path, "table", DeltaTarget(path=f"s3://{BUCKET}/table", storage=STORAGE)),
    ]
    run_all(spark, broker.url, ran)
    report = audit(spark, broker.url, *ran)
    assert [(each.judged_by, each.rows, each.faults) for each in report.pipelines] == [(BY_OFFSET, 25, {})] * 2
    first = next(path for path in s3.names("files") if path.endswith("-00000000-00000.parquet"))
    s3.store("files").delete(first)
    assert audit_one(spark, broker.url, ran[0]).faults == {"lost": 5, "wrong_count": 1, "missing_file": 1}
