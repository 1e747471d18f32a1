"""Restores against a real broker; tasks and commits as Spark has them, without a JVM."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncemq.protocol import errors
from oncemq.protocol.message import Message
from oncemq.spark.lake import plan, restore, restorer
from tests.spark.lake.archives import NOON, add, row, rows, without_spark

if TYPE_CHECKING:
    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess

__all__ = ["without_spark"]
pytestmark = pytest.mark.usefixtures("without_spark")
FORMATS = pytest.mark.parametrize("kind", ["parquet", "delta"])


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every restore has many tasks."""
    monkeypatch.setattr(
        restorer, "make_plan", lambda incarnations, selection: plan.make_plan(incarnations, selection, part_bytes=200)
    )


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def fields(message: Message) -> tuple[Any, ...]:
    return message.value, message.key, dict(message.headers), message.timestamp_ms


def found(client: Client, topic: str) -> list[tuple[Any, ...]]:
    messages = list(client.read(topic))
    offsets = [message.offset for message in messages]
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    return [fields(message) for message in messages]


def values(client: Client, topic: str) -> list[bytes]:
    return [message.value for message in client.read(topic)]


@FORMATS
def test_messages_come_back_as_they_were_in_their_order(
    kind: str, broker: BrokerProcess, client: Client, lake: Path
) -> None:
    made = [
        row("a b.ü", 0, value=b"", key=b"", headers={}),
        row("a b.ü", 1, key=b"\x00\xff", headers={"type": b"x", "": b""}),
        row("a b.ü", 2, time=NOON - timedelta(days=40), headers={"long name " * 9: b"v" * 300}),
        row("a b.ü", 3, time=datetime(1999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC), key=b"k"),
        *rows("a b.ü", range(4, 100)),
    ]
    add(lake, 0, made[50:], kind=kind)
    add(lake, 1, made[:50], kind=kind)
    [done] = restore(str(lake), prefix="again.", create=True, url=broker.url)
    assert (done.source, done.target, done.messages) == ("a b.ü", "again.a b.ü", 100)
    assert (done.first_offset, done.last_offset, done.missing, done.before) == (0, 99, 0, False)
    assert found(client, "again.a b.ü") == [
        (each["value"], each["key"], each["headers"] or {}, round(each["timestamp"].timestamp() * 1000))
        for each in made
    ]


def test_the_same_restore_again_changes_nothing(broker: BrokerProcess, client: Client, lake: Path) -> None:
    add(lake, 0, rows("a", range(5)) + rows("b", range(3)))
    first = restore(str(lake), prefix="x.", create=True, url=broker.url)
    assert [(one.target, one.messages, one.before) for one in first] == [("x.a", 5, False), ("x.b", 3, False)]
    second = restore(str(lake), prefix="x.", create=True, url=broker.url)
    assert [(one.target, one.first_offset, one.before) for one in second] == [("x.a", None, True), ("x.b", None, True)]
    assert [one.id for one in second] == [one.id for one in first]
    # The same messages into the same topic, said in another way.
    assert restore(str(lake), topic="a", to="x.a", url=broker.url)[0].before
    assert (len(values(client, "x.a")), len(values(client, "x.b"))) == (5, 3)


def test_a_restore_that_was_cut_off_is_finished_by_the_next(
    broker: BrokerProcess, client: Client, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, 0, rows("a", range(5)) + rows("b", range(3)))
    save = restorer._save
    saved: list[bool] = []

    def once(*arguments: Any) -> None:
        if saved:
            raise OSError("the machine died")
        saved.append(True)
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(restorer, "_save", once)
        with pytest.raises(OSError, match="died"):
            restore(str(lake), prefix="x.", create=True, url=broker.url)
    done = restore(str(lake), prefix="x.", create=True, url=broker.url)
    assert [(one.target, one.before) for one in done] == [("x.a", True), ("x.b", False)]
    assert (len(values(client, "x.a")), len(values(client, "x.b"))) == (5, 3)


def test_what_is_another_restore_happens(broker: BrokerProcess, client: Client, lake: Path) -> None:
    add(lake, 0, rows("a", range(5)))
    client.create_topic("x", retain_ms=3_600_000)
    restore(str(lake), to="x", url=broker.url)
    again = restore(str(lake), to="x", again=True, url=broker.url)
    assert (again[0].first_offset, again[0].last_offset) == (5, 9)
    assert not restore(str(lake), to="x", offsets="1:3", url=broker.url)[0].before
    assert not restore(str(lake), to="x", id="mine", url=broker.url)[0].before
    assert restore(str(lake), to="x", id="mine", url=broker.url)[0].before
    assert [int(value) for value in values(client, "x")] == [*range(5), *range(5), 1, 2, *range(5)]
    # A topic that was deleted has lost what was restored: the next of its name is another one.
    client.delete_topic("x")
    assert not restore(str(lake), to="x", create=True, url=broker.url)[0].before
    with pytest.raises(errors.PipelineInvalid, match="use either id"):
        restore(str(lake), to="x", id="mine", again=True, url=broker.url)


def test_a_restore_into_a_topic_that_keeps_nothing_is_refused(
    broker: BrokerProcess, client: Client, lake: Path
) -> None:
    add(lake, 0, rows("a", range(5)))
    with pytest.raises(errors.TopicUnknown, match="topic 'a' does not exist"):
        restore(str(lake), url=broker.url)
    client.create_topic("a")
    with pytest.raises(errors.PipelineInvalid, match="neither a subscription nor a retention"):
        restore(str(lake), url=broker.url)
    client.subscribe("a", "kitchen", "earliest").close()
    assert restore(str(lake), url=broker.url)[0].messages == 5
    assert values(client, "a") == [b"%d" % number for number in range(5)]


def test_offsets_are_told_only_where_they_are_certain(
    broker: BrokerProcess, client: Client, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, 0, rows("a", range(5)))
    save = restorer._save

    def beside_another(*arguments: Any) -> None:
        client.put("x", "from elsewhere")
        save(*arguments)

    client.create_topic("x", retain_ms=3_600_000)
    monkeypatch.setattr(restorer, "_save", beside_another)
    [done] = restore(str(lake), to="x", url=broker.url)
    assert (done.messages, done.first_offset, done.last_offset) == (5, None, None)


def test_nothing_of_an_archive_with_doubles_is_restored(broker: BrokerProcess, client: Client, lake: Path) -> None:
    add(lake, 0, rows("a", range(5)))
    add(lake, 0, rows("a", [4]), query="another")
    with pytest.raises(errors.PipelineFailed, match="1 of the messages of 'a' more than once"):
        restore(str(lake), create=True, url=broker.url)
    assert client.topics() == []
