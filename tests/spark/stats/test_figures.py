"""The figures of stats, next to the same figures in plain Python from messages and records that are known."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from oncemq.client.recording import records
from oncemq.client.sync import Client
from oncemq.spark.broker import Broker
from oncemq.spark.stats import StatsSelection, collect_stats, render_page
from oncemq.spark.stats.latency import Records
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.audit.planted_records import BROKER
from tests.spark.stats.test_report import Tags

START_MS = 1_767_225_600_000
WINDOW_S = 60.0


def rank(values: Sequence[int], share: float) -> int:
    """The smallest value that at least this share of the values do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def figures(values: Sequence[int]) -> tuple[int, int, int, int]:
    return len(values), rank(values, 0.5), rank(values, 0.99), max(values)


def grouped(rows: Iterable[tuple[object, int]]) -> dict[object, tuple[int, int, int, int]]:
    found: dict[object, list[int]] = defaultdict(list)
    for key, value in rows:
        found[key].append(value)
    return {key: figures(values) for key, values in found.items()}


class KnownRun:
    """Puts of one client and deliveries to one consumer. Most windows are quiet and fast; a few are slow."""

    def __init__(self, path: Path) -> None:
        self.puts: list[tuple[str, int, int]] = []  # (topic, when it was confirmed, latency), for each message
        self.deliveries: list[tuple[str, int, int, int]] = []  # (topic, confirmed, delivered, latency)
        self._lines: list[records.Line] = [records.Begin(session="p", pid=1, host="here", software="test")]
        self._next_offset: dict[str, int] = defaultdict(int)
        choice = random.Random(7)
        for number in range(1, 121):
            topic = "orders" if number % 3 else "bills"
            slow = number % 20 == 0
            sent_ms = START_MS + number * 7_919
            self._put(number, topic, choice.randrange(1, 3 if slow else 30), sent_ms, 5_000 if slow else number % 4)
        lines = [msgspec_line(line, seq) for seq, line in enumerate(self._lines)]
        path.write_text("\n".join(lines) + "\n")

    def _put(self, number: int, topic: str, count: int, sent_ms: int, latency_ms: int) -> None:
        topic_id, first = 1 + (topic == "bills"), self._next_offset[topic]
        self._next_offset[topic] += count
        stored_ms = sent_ms + latency_ms
        got_ms = stored_ms + number % 11 + (90_000 if number % 30 == 0 else 0)
        put = {"session": "p", "number": number, "topic": topic}
        sent = records.Sent(**put, count=count, digests=[0] * count, at_ms=sent_ms)  # type: ignore[arg-type]
        stored = records.Stored(**put, broker=BROKER, topic_id=topic_id, first=first, count=count, at_ms=stored_ms)  # type: ignore[arg-type]
        got = records.Got(
            broker=BROKER,
            topic_id=topic_id,
            subscriber="s",
            topic=topic,
            epoch=1,
            ranges=[(first, count)],
            digests=[0] * count,
            at_ms=got_ms,
        )
        # A process that takes over an outbox sends again, and gets the same confirmation: the first ones count.
        again = [msgspec_later(sent), msgspec_later(stored)] if number % 10 == 0 else []
        self._lines += [sent, stored, got, *again]
        self.puts += [(topic, stored_ms, latency_ms)] * count
        self.deliveries += [(topic, stored_ms, got_ms, got_ms - stored_ms)] * count


def msgspec_line(line: records.Line, seq: int) -> str:
    line.seq = seq
    return msgspec.json.encode(line).decode()


def msgspec_later(line: records.Line) -> records.Line:
    return msgspec.structs.replace(line, at_ms=line.at_ms + 1_000_000)


def window_of(time_ms: int) -> int:
    width_ms = int(WINDOW_S * 1000)
    return time_ms // width_ms * width_ms


def check(spark: SparkSession, folder: Path, run: KnownRun, selection: StatsSelection, topics: set[str]) -> None:
    since_ms, until_ms = selection.since_ms or 0, selection.until_ms or 1 << 60
    puts = [row for row in run.puts if row[0] in topics and since_ms <= row[1] < until_ms]
    deliveries = [row for row in run.deliveries if row[0] in topics and since_ms <= row[1] < until_ms]
    assert puts
    stats = Records(spark, str(folder), selection).stats(WINDOW_S)
    whole = {(row.topic, row.what): (row.messages, row.p50_ms, row.p99_ms, row.max_ms) for row in stats.latencies}
    assert whole == {
        **grouped(((topic, "put"), ms) for topic, _, ms in puts),
        **grouped(((topic, "delivery"), ms) for topic, _, _, ms in deliveries),
    }
    windows = {
        (row.topic, row.what, row.start_ms): (row.messages, row.p50_ms, row.p99_ms, row.max_ms) for row in stats.windows
    }
    assert windows == {
        **grouped(((topic, "put", window_of(at_ms)), ms) for topic, at_ms, ms in puts),
        **grouped(((topic, "delivery", window_of(at_ms)), ms) for topic, _, at_ms, ms in deliveries),
    }


def moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def test_latency_is_that_of_all_selected_messages(spark: SparkSession, tmp_path: Path) -> None:
    run = KnownRun(tmp_path / "p.ndjson")
    check(spark, tmp_path, run, StatsSelection(pattern="#"), {"orders", "bills"})
    later = StatsSelection(
        topics=("orders", "elsewhere"), since=moment(START_MS + 200_123), until=moment(START_MS + 700_321)
    )
    check(spark, tmp_path, run, later, {"orders"})


def test_the_median_is_not_that_of_the_slowest_window(spark: SparkSession, tmp_path: Path) -> None:
    """One slow put in a window of its own does not change the median of a thousand fast ones."""
    run = KnownRun(tmp_path / "p.ndjson")
    stats = Records(spark, str(tmp_path), StatsSelection(topics=("orders",))).stats(WINDOW_S)
    (put,) = [row for row in stats.latencies if row.what == "put"]
    assert put.p50_ms == rank([ms for topic, _, ms in run.puts if topic == "orders"], 0.5) < 10
    assert put.max_ms == 5_000


def test_sizes_are_those_of_all_messages(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    """More distinct sizes than an approximation keeps."""
    client.create_topic("sizes", retain_ms=3_600_000)
    choice = random.Random(3)
    sizes = [choice.randrange(1, 40_000) for _ in range(1500)] + list(range(1000))
    for at in range(0, len(sizes), 500):
        client.put_many("sizes", [b"x" * size for size in sizes[at : at + 500]])
    stats = collect_stats(spark, Broker(url=broker.url), StatsSelection(topics=("sizes",)), window_s=0.2)
    (topic,) = stats.topics
    assert (topic.messages, topic.size_p50, topic.size_p99, topic.size_max) == figures(sizes)
    assert topic.bytes == sum(sizes)
    read = [(message.timestamp_ms // 200 * 200, len(message.value)) for message in client.read("sizes")]
    assert {row.start_ms: (row.messages, row.size_p50, row.size_p99, row.size_max) for row in stats.windows} == grouped(
        read
    )


def test_subscriptions_of_topics_without_stored_messages_are_shown(
    spark: SparkSession, broker: BrokerProcess, client: Client
) -> None:
    """Their messages are all acked and deleted, or none is in the selected span."""
    for name in ("billing", "kitchen"):
        client.subscribe("eu.orders", name)
    client.subscribe("us.orders", "billing")
    client.subscribe_pattern("*.orders", "search")
    client.subscribe("elsewhere", "not-selected")
    stats = collect_stats(spark, Broker(url=broker.url), StatsSelection(pattern="*.orders"))
    assert stats.topics == ()
    assert {(row.topic, row.subscriber) for row in stats.subscriptions} == {
        ("eu.orders", "billing"),
        ("eu.orders", "kitchen"),
        ("eu.orders", "search (*.orders)"),
        ("us.orders", "billing"),
        ("us.orders", "search (*.orders)"),
    }
    page = Tags()
    page.feed(render_page(stats))
    assert "There are no subscriptions." not in page.texts
    assert page.texts.count("search (*.orders)") == 2
