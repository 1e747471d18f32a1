"""A broker whose data was replaced by an older copy while clients stayed connected."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

import oncemq
from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import errors
from oncemq.protocol.replies import AnyPart, GetAnyReply, OpenReply, TakeReply
from oncemq.testing.broker_process import BrokerProcess


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[oncemq.Client]:
    made = oncemq.connect(f"memory:{request.node.name}")
    made.create_topic("t", retain_ms=10**9)
    yield made
    made._close(clean=False)


def answered(reply: object) -> Callable[..., Pending]:
    def ask(*_: object, **__: object) -> Pending:
        pending = Pending(0.0)
        pending.succeed(reply)  # type: ignore[arg-type]
        return pending

    return ask


def test_a_consumer_does_not_skip_messages_that_were_put_after_its_broker_was_restored(
    oncemq_broker: BrokerProcess,
) -> None:
    folder = oncemq_broker.folder
    with oncemq_broker.connect() as others, oncemq_broker.connect() as client:
        others.create_topic("t", retain_ms=10**9)
        consumer = client.subscribe("t", "s", auto_ack=False)
        others.put_many("t", ["old"] * 2)
        consumer.ack(consumer.get_many(10)[-1], wait=True)
        oncemq_broker.stop()
        shutil.copytree(folder, folder.with_name("copy"))
        oncemq_broker.start()
        others.put_many("t", ["lost"] * 2)
        consumer.ack(consumer.get_many(10, timeout_s=10)[-1], wait=True)
        oncemq_broker.kill()
        shutil.rmtree(folder)
        folder.with_name("copy").rename(folder)
        oncemq_broker.start()
        with oncemq_broker.connect() as later:
            later.put_many("t", ["new"] * 5)
            for _ in range(2):
                with pytest.raises(errors.BrokerRewound, match="offset 3 was acked, and the broker is at 2"):
                    consumer.get(timeout_s=10)
            again = later.subscription("t", "s")
            assert len(again.get_many(10, timeout_s=10)) == 5
        others._close(clean=False)
        client._close(clean=False)


def test_a_subscription_by_pattern_detects_it_too(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = client.subscribe_pattern("*", "s", auto_ack=False)
    client.put_many("t", ["a", "b"])
    [first, _] = consumer.get_many(10)
    consumer.ack(first, wait=True)
    part = AnyPart("t", first.topic_id, 2, 5, 0)
    monkeypatch.setattr(client._driver.core, "ask", answered(GetAnyReply((part,), True)))
    with pytest.raises(errors.BrokerRewound, match="offset 0 of 't' was acked, and the broker is at 0"):
        consumer.get()


@pytest.mark.parametrize("pattern", ["t", "*"])
def test_an_owner_that_gets_an_earlier_epoch_stops(
    client: oncemq.Client, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    consumer = (client.subscribe if pattern == "t" else client.subscribe_pattern)(pattern, "s")
    consumer.get()
    session = consumer.consumer.session
    assert session.opened is not None
    epoch = session.opened.epoch
    session.reopen()
    with monkeypatch.context() as patch:
        patch.setattr(client._driver.core, "submit", answered(OpenReply(1, epoch, 0)))
        with pytest.raises(errors.BrokerRewound):
            consumer.get()
    with pytest.raises(errors.BrokerRewound):
        consumer.get()


def test_a_lease_with_an_earlier_token_is_refused(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", ["a", "b"])
    task = workers.take()
    assert task is not None
    task.ack(wait=True)
    with monkeypatch.context() as patch:
        patch.setattr(client._driver.core, "ask", answered(TakeReply(task.topic_id, task.token - 1, 1000)))
        with pytest.raises(errors.BrokerRewound):
            workers.take()
    with pytest.raises(errors.BrokerRewound):
        workers.take()
