"""A client with an outbox: what was put reaches the broker, once and in order, as soon as the broker can be reached."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncemq
from oncemq.protocol import errors
from tests.forking import ForkedBroker

NOBODY = "tcp://127.0.0.1:9"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/data"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.outbox"


@pytest.fixture
def reader(url: str) -> Iterator[oncemq.Client]:
    with oncemq.connect(url) as client:
        client.create_topic("orders", retain_ms=10**9)
        yield client


def texts(reader: oncemq.Client) -> list[str]:
    return [message.text for message in reader.read("orders")]


def test_a_put_needs_no_broker_and_arrives_when_there_is_one(path: Path, url: str, reader: oncemq.Client) -> None:
    with oncemq.connect(NOBODY, outbox=path) as client:
        ticket = client.put("orders", "one")
        client.put_many("orders", ["two", "three"])
        client.put_nowait("orders", "four")
        with pytest.raises(TimeoutError, match="in the outbox"):
            client.flush(timeout_s=0.01)
        assert (client.pending, client.stored(ticket)) == (3, False)
    assert texts(reader) == []
    with oncemq.connect(url, outbox=path) as client:
        client.put("orders", "five")
        client.flush()
        assert client.pending == 0
        assert client.stored(ticket.numbers[0])
    assert texts(reader) == ["one", "two", "three", "four", "five"]


def test_it_arrives_without_a_call(path: Path, url: str, reader: oncemq.Client) -> None:
    with oncemq.connect(url, outbox=path) as client:
        ticket = client.put("orders", "one")
        deadline = time.monotonic() + 20
        while client.pending and time.monotonic() < deadline:
            time.sleep(0.005)
        assert client.stored(ticket)
        assert [receipt.offset for receipt in ticket.receipts] == [0]
    assert texts(reader) == ["one"]


def test_a_broker_that_comes_back_gets_everything(path: Path, tmp_path: Path) -> None:
    broker = ForkedBroker(tmp_path / "data")
    broker.start()
    try:
        with oncemq.connect(broker.url, outbox=path, timeout_s=0.2) as client:
            client.put("orders", "0", create=True)
            client.subscribe("orders", "kitchen", start="earliest")
            client.put("orders", "1")
            broker.kill()
            for number in range(2, 50):
                client.put("orders", str(number))
            broker.start()
            client.flush(timeout_s=60)
        with broker.connect() as reader:
            found = [message.text for message in reader.subscription("orders", "kitchen").messages(timeout_s=0)]
    finally:
        broker.stop()
    assert found == [str(number) for number in range(1, 50)]


def test_a_refusal_is_kept_until_it_was_seen(path: Path, url: str, reader: oncemq.Client) -> None:
    with oncemq.connect(url, outbox=path) as client:
        ticket = client.put("there is no such topic", "lost?")
        client.put("orders", "good")
        with pytest.raises(oncemq.TopicUnknown):
            client.flush()
        with pytest.raises(oncemq.TopicUnknown):
            client.stored(ticket)
    with oncemq.connect(url, outbox=path) as client:
        with pytest.raises(oncemq.TopicUnknown):
            client.flush()
        [refusal] = client.refusals()
        assert (refusal.code, refusal.operation.topic) == ("TOPIC_UNKNOWN", "there is no such topic")  # type: ignore[union-attr]
        client.seen(refusal)
        client.flush()
        assert client.refusals() == []
    assert texts(reader) == ["good"]


def test_a_second_process_fences_the_first(path: Path, url: str, reader: oncemq.Client) -> None:
    first = oncemq.connect(url, outbox=path)
    first.put("orders", "from the first")
    first.flush()
    with oncemq.connect(url, outbox=path) as second:
        second.put("orders", "from the second")
        second.flush()
        with pytest.raises(oncemq.Fenced):
            first.put("orders", "too late")
    first._close(clean=False)
    assert texts(reader) == ["from the first", "from the second"]


def test_a_restored_copy_is_detected(path: Path, url: str, reader: oncemq.Client, tmp_path: Path) -> None:
    with oncemq.connect(url, outbox=path) as client:
        client.put("orders", "one")
        client.flush()
    shutil.copy(path, tmp_path / "copy")
    with oncemq.connect(url, outbox=path) as client:
        client.put("orders", "two")
        client.flush()
    shutil.copy(tmp_path / "copy", path)
    client = oncemq.connect(url, outbox=path)
    client.put("orders", "three")
    with pytest.raises(errors.OutboxRewound):
        client.flush()
    client._close(clean=False)
    assert texts(reader) == ["one", "two"]


def test_everything_numbered_goes_through_it(path: Path, url: str, reader: oncemq.Client) -> None:
    with oncemq.connect(url, outbox=path) as client:
        source = client.subscribe("orders", "copier", auto_ack=False)
        client.put_many("orders", ["a", "b"])
        client.flush()
        with client.transaction() as transaction:
            for message in source.get_many(10, timeout_s=5):
                transaction.put("copy", message.value, create=True)
            transaction.ack(source)
        with pytest.raises(oncemq.TopicUnknown):
            client.delete_topic("there is no such topic")
        assert client.refusals() == []
        assert client.pending == 0
    assert [topic.end_offset for topic in reader.topics() if topic.name == "copy"] == [2]


def test_an_operation_whose_caller_gave_up_is_done_later(path: Path, url: str, reader: oncemq.Client) -> None:
    with oncemq.connect(NOBODY, outbox=path, timeout_s=0.05, tries=1) as client:
        with pytest.raises((errors.BrokerAway, errors.NotNow)) as raised:
            client.subscribe("orders", "kitchen")
        assert any("outbox" in note for note in raised.value.__notes__)
    with oncemq.connect(url, outbox=path) as client:
        client.flush()
    assert [info.subscriber for info in reader.subscriptions("orders")] == ["kitchen"]


def test_a_name_together_with_an_outbox_is_refused(path: Path) -> None:
    with pytest.raises(errors.SettingInvalid, match="its own session"):
        oncemq.connect(NOBODY, outbox=path, name="alice")  # type: ignore[call-overload]


def test_a_batch_that_is_too_large_is_refused_and_nothing_of_the_call_is_kept(
    path: Path, url: str, reader: oncemq.Client
) -> None:
    with oncemq.connect(url, outbox=path) as client:
        client.put("orders", "one")
        client.flush()
        with pytest.raises(oncemq.TooLarge):
            client.put("orders", bytes(20 * 1024 * 1024))
        with pytest.raises(oncemq.TooLarge):
            client.put_many("orders", [b"small", bytes(20 * 1024 * 1024)])
        client.put_nowait("orders", bytes(20 * 1024 * 1024))
        with pytest.raises(oncemq.TooLarge):
            client.flush()
        client.flush()
    assert texts(reader) == ["one"]


def test_a_refusal_that_was_seen_is_still_an_error(path: Path, url: str, reader: oncemq.Client) -> None:
    with oncemq.connect(url, outbox=path) as client:
        ticket = client.put("there is no such topic", "x")
        with pytest.raises(oncemq.TopicUnknown):
            client.flush()
        for refusal in client.refusals():
            client.seen(refusal)
        with pytest.raises(oncemq.TopicUnknown):
            client.stored(ticket)


def test_put_nowait_does_not_wait_for_a_broker_that_is_away(path: Path) -> None:
    with oncemq.connect(NOBODY, outbox=path, buffer_bytes=1000, batch_messages=1) as client:
        for _ in range(10):
            client.put_nowait("orders", bytes(500))
        assert client.pending == 10
