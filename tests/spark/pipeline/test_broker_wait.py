"""A pipeline waits for a broker that is away, and then continues."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from oncemq.protocol.errors import BrokerAway, TopicUnknown
from oncemq.spark.broker import Broker
from oncemq.spark.pipeline import Source, run, start
from oncemq.spark.pipeline.model import Trigger
from oncemq.spark.pipeline.runs.broker_wait import BrokerWait
from tests.spark.pipeline.test_runner import Told, put_orders, read_totals, totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.testing.broker_process import BrokerProcess

DEADLINE_S = 120


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


class Outage:
    """A broker that is away until a time, and what is said about it."""

    def __init__(self, end_s: float, limit_s: float | None = None, stop_s: float = 1e9) -> None:
        self.clock = Clock()
        self.said: list[str] = []
        self.probes = 0
        self.end_s = end_s
        self.wait = BrokerWait(
            Broker(url="tcp://b:1"),
            limit_s,
            self.said.append,
            lambda: self.clock.now_s >= stop_s,
            self._probe,
            self.clock,
            self.clock.sleep,
        )

    def _probe(self, _: Broker) -> bool:
        self.probes += 1
        return self.clock.now_s >= self.end_s


def test_a_broker_that_answers_is_not_waited_for() -> None:
    outage = Outage(0)
    assert outage.wait.wait()
    assert (outage.probes, outage.clock.now_s, outage.said) == (1, 100.0, [])


def test_an_outage_is_told_and_its_end() -> None:
    outage = Outage(130)
    assert outage.wait.wait()
    assert 130 <= outage.clock.now_s < 142
    assert len(outage.said) == 2
    assert outage.said[0].startswith("the broker at tcp://b:1 is unreachable since 20")
    assert "answers again" in outage.said[1]


def test_the_limit_of_an_outage_counts_from_its_start() -> None:
    outage = Outage(1e9, limit_s=60)
    outage.wait.begin(20)
    with pytest.raises(BrokerAway, match="longer than the limit of 60 s"):
        outage.wait.wait()
    assert outage.clock.now_s == pytest.approx(140)


def test_an_attempt_that_fails_again_is_part_of_the_same_outage() -> None:
    """The broker answers, but the query can't work with it: the pauses become longer, and the limit is reached."""
    outage = Outage(0, limit_s=60)
    begun = []
    with pytest.raises(BrokerAway):
        while outage.wait.wait():
            begun.append(outage.clock.now_s)
            outage.wait.begin()
    pauses = [after - before for before, after in itertools.pairwise(begun[1:-1])]
    assert pauses == sorted(pauses)
    assert 5 < len(begun) < 15
    # Each attempt is told, and that it failed.
    assert ["unreachable" in text for text in outage.said] == [True, False] * (len(begun) - 1)
    outage.wait.end()
    assert outage.wait.wait()


def test_a_run_that_is_to_stop_does_not_wait() -> None:
    outage = Outage(1e9, stop_s=110)
    assert not outage.wait.wait()
    assert outage.clock.now_s == pytest.approx(110, abs=1)


def test_a_pipeline_continues_after_the_broker_was_away(
    spark: SparkSession, oncemq_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is away at the start, and then in the middle for longer than the source and the sink wait."""
    monkeypatch.setattr("oncemq.spark.pipeline.runs.stream._CALL_TIMEOUT_S", 1.0)
    with oncemq_broker.connect() as client:
        client.subscribe("totals", "reader")
        put_orders(client, range(5))
    oncemq_broker.kill()
    told = Told()
    pipeline = msgspec.structs.replace(totals(tmp_path), trigger=Trigger(every="100ms"))
    running = start(pipeline, url=oncemq_broker.url, session=spark, reporter=told)
    until(lambda: running.status == "waiting")
    oncemq_broker.start()
    until(lambda: bool(told.batches))
    oncemq_broker.kill()
    until(lambda: running.status == "waiting")
    assert running.exception is None
    oncemq_broker.start()
    with oncemq_broker.connect() as client:
        put_orders(client, range(5, 10))
        until(lambda: len(read_totals(client)) == 10)
        summary = running.stop(DEADLINE_S)
        assert read_totals(client) == {number: number / 2 for number in range(10)}
    assert summary is not None
    assert summary.is_stopped
    assert ["unreachable" in text for text in told.notices] == [True, False, True, False]


def test_a_topic_that_does_not_exist_is_an_error_that_names_a_similar_one(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    with broker.connect() as client:
        client.subscribe("orders", "somebody")
        wrong = msgspec.structs.replace(totals(tmp_path), source=Source(topic="odrers"))
        with pytest.raises(TopicUnknown, match="there is no topic 'odrers'; did you mean orders"):
            run(wrong, url=broker.url, session=spark)
        assert [topic.name for topic in client.topics()] == ["orders"]
        creating = msgspec.structs.replace(wrong, source=Source(topic="odrers", create=True))
        assert run(creating, url=broker.url, session=spark).rows == 0
        assert [topic.name for topic in client.topics()] == ["odrers", "orders"]


def until(condition: object) -> None:
    assert callable(condition)
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
