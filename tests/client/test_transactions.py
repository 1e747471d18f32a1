"""Transactions through the client: all or nothing, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncemq
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.transports import EACH_TRANSPORT


@pytest.fixture
def client(tmp_path: Path) -> Iterator[oncemq.Client]:
    with oncemq.connect(f"memory:{tmp_path.name}", timeout_s=0.2, tries=2) as client:
        client.create_topic("target", retain_ms=10**9)
        yield client


@pytest.fixture
def source(client: oncemq.Client) -> oncemq.Subscription:
    subscription = client.subscribe("source", "copier", auto_ack=False)
    client.put_many("source", [f"message {number}" for number in range(10)])
    return subscription


def texts(client: oncemq.Client, topic: str = "target") -> list[str]:
    return [message.text for message in client.read(topic)]


def acked(client: oncemq.Client) -> int:
    [info] = client.subscriptions("source")
    return info.acked


def test_acks_and_puts_happen_together(client: oncemq.Client, source: oncemq.Subscription) -> None:
    with client.transaction() as transaction:
        for message in source.get_many(4):
            transaction.put("target", message.value)
        transaction.ack(source)
        assert texts(client) == []
        assert acked(client) == 0
    assert texts(client) == ["message 0", "message 1", "message 2", "message 3"]
    assert acked(client) == 4
    assert [receipt.count for receipt in transaction.receipts] == [4]
    assert source.get_many(100)[0].offset == 4


def test_after_an_exception_nothing_is_sent_and_the_messages_are_delivered_again(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    with pytest.raises(KeyError), client.transaction() as transaction:
        messages = source.get_many(4)
        transaction.put("target", "never")
        transaction.ack(source, messages[1])
        raise KeyError
    assert texts(client) == []
    assert acked(client) == 0
    assert [message.offset for message in source.get_many(3)] == [0, 1, 2]


def test_a_refused_part_refuses_all(client: oncemq.Client, source: oncemq.Subscription) -> None:
    with pytest.raises(oncemq.TopicUnknown), client.transaction() as transaction:
        source.get_many(4)
        transaction.ack(source)
        transaction.put("target", "never")
        transaction.put("there is no such topic", "never")
    assert texts(client) == []
    assert acked(client) == 0
    assert [message.offset for message in source.get_many(2)] == [0, 1]


def test_order_holds_within_a_topic_whatever_is_put_between(client: oncemq.Client) -> None:
    with client.transaction() as transaction:
        transaction.put("target", "one")
        transaction.put("other", "x", create=True)
        transaction.put("target", "two", key="k", headers={"a": "b"})
        transaction.put_many("target", ["three", "four"], keys=["k", None])
        transaction.put("target", "late", delay_s=3600)
        transaction.put("target", "five")
    assert texts(client) == ["one", "two", "three", "four", "five"]
    assert [message.key for message in client.read("target")] == [None, b"k", b"k", None, None]
    assert transaction.receipts[-2].offset == -1


def test_an_ack_of_an_earlier_message_leaves_the_later_ones(client: oncemq.Client, source: oncemq.Subscription) -> None:
    messages = source.get_many(4)
    with client.transaction() as transaction:
        transaction.ack(source, messages[1])
        transaction.ack(source, messages[0])
    assert acked(client) == 2


def test_a_fenced_subscription_refuses_the_transaction_and_the_client_continues(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    source.get_many(4)
    thief = client.subscription("source", "copier", auto_ack=False)
    assert thief.get() is not None
    with pytest.raises(errors.SubscriptionFenced), client.transaction() as transaction:
        transaction.put("target", "never")
        transaction.ack(source)
    with pytest.raises(oncemq.Fenced):
        source.get()
    assert texts(client) == []
    assert client.put("target", "the client goes on").offset == 0
    assert thief.get() is not None


def test_a_seek_refuses_the_transaction_and_the_consumer_continues_there(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    source.get_many(4)
    client.seek("source", "copier", 2)
    with pytest.raises(errors.Sought), client.transaction() as transaction:
        transaction.put("target", "never")
        transaction.ack(source)
    assert texts(client) == []
    assert [message.offset for message in source.get_many(2)] == [2, 3]


def test_an_earlier_ack_survives_a_failed_transaction(client: oncemq.Client, source: oncemq.Subscription) -> None:
    messages = source.get_many(4)
    source.ack(messages[1])
    with pytest.raises(KeyError), client.transaction() as transaction:
        transaction.ack(source)
        raise KeyError
    assert [message.offset for message in source.get_many(2)] == [2, 3]


def test_an_unknown_outcome_is_looked_up(
    client: oncemq.Client, source: oncemq.Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is lost and the caller gives up. The subscription shows afterwards what happened."""
    messages = source.get_many(4)
    transport: Any = client._driver.transport
    receive = transport.receive
    with monkeypatch.context() as patch:
        patch.setattr(transport, "receive", lambda: receive() and None)
        with pytest.raises(errors.BrokerAway), client.transaction() as transaction:
            transaction.put_many("target", [message.value for message in messages])
            transaction.ack(source)
    following = source.get_many(100)[0].offset
    assert (following, len(texts(client))) in ((0, 0), (4, 4))


def test_wrong_use_is_refused(client: oncemq.Client, source: oncemq.Subscription, tmp_path: Path) -> None:
    with client.transaction() as transaction:
        with pytest.raises(ValueError, match="not delivered a message yet"):
            transaction.ack(source)
        messages = source.get_many(2)
        with pytest.raises(ValueError, match="not delivered yet"):
            transaction.ack(source, messages[1].offset + 1)
        with pytest.raises(ValueError, match="auto_ack"):
            transaction.ack(client.subscribe("source", "other"))
        with oncemq.connect(f"memory:{tmp_path.name}") as another, pytest.raises(ValueError, match="another client"):
            transaction.ack(another.subscription("source", "copier", auto_ack=False))
        with pytest.raises(ValueError, match="keys"):
            transaction.put_many("target", ["a", "b"], keys=["one"])
        with pytest.raises(ValueError, match="3 keys for 2 values"):
            transaction.put_many("target", iter(["a", "b"]), keys=["one", "two", "three"])
    with pytest.raises(RuntimeError, match="ended"):
        transaction.put("target", "too late")


def test_an_empty_transaction_sends_nothing(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(operation: object, *_: object, **__: object) -> None:
        pytest.fail(f"{operation} was sent")

    with monkeypatch.context() as patch:
        patch.setattr(client._driver.core, "submit", submit)
        with client.transaction():
            pass


def test_a_transaction_that_is_too_large_is_refused_whole(client: oncemq.Client) -> None:
    with pytest.raises(oncemq.TooLarge), client.transaction() as transaction:
        for _ in range(3):
            transaction.put("target", bytes(8 * 1024 * 1024))
    assert texts(client) == []


def test_messages_that_were_read_in_a_failed_block_are_delivered_again(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    with pytest.raises(KeyError), client.transaction():
        assert source.get_many(1)
        raise KeyError
    with client.transaction() as transaction:
        messages = source.get_many(2)
        transaction.ack(source)
    assert [message.offset for message in messages] == [0, 1]


def test_a_seek_within_the_block_is_not_undone(client: oncemq.Client, source: oncemq.Subscription) -> None:
    with pytest.raises(errors.Sought), client.transaction() as transaction:
        messages = source.get_many(8)
        transaction.ack(source, messages[-1])
        client.seek("source", "copier", "earliest")
        assert source.get(timeout_s=1) is not None
    assert acked(client) == 0


def test_earlier_acks_survive_a_close_after_an_unknown_outcome(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    messages = source.get_many(4)
    source.ack(messages[1])
    source.consumer.session.reopen()
    source.close()
    assert acked(client) == 2


def failing_once() -> Callable[[oncemq.Message], str]:
    failed: list[oncemq.Message] = []

    def handle(message: oncemq.Message) -> str:
        if message.offset == 3 and not failed:
            failed.append(message)
            raise ConnectionError("away for a moment")
        return message.text

    return handle


@pytest.mark.parametrize("by", ["name", "pattern"])
def test_a_loop_that_restarts_after_a_failure_skips_nothing(client: oncemq.Client, by: str) -> None:
    """The loop reads before the block, and acks at its end."""
    subscribe = client.subscribe if by == "name" else client.subscribe_pattern
    source = subscribe("source" if by == "name" else "source.*", "copier", auto_ack=False)
    client.put_many("source" if by == "name" else "source.a", map(str, range(10)), create=True)
    handle = failing_once()
    failures = 0
    while True:
        try:
            if not (messages := source.get_many(2)):
                break
            with client.transaction() as transaction:
                for message in messages:
                    transaction.put("target", handle(message))
                transaction.ack(source)
        except ConnectionError:
            failures += 1
    assert texts(client) == [str(index) for index in range(10)]
    assert failures == 1


def test_a_failed_block_undoes_no_ack_and_later_messages_are_delivered_again(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    """This holds for all subscriptions that this thread reads, in the block or not."""
    other = client.subscribe("other", "reader", auto_ack=False)
    client.put_many("other", ["a", "b", "c"])
    source.ack(source.get_many(4)[1])
    held = other.get_many(3)
    with pytest.raises(KeyError), client.transaction() as transaction:
        transaction.put("target", "never")
        raise KeyError
    with pytest.raises(ValueError, match="delivered again"), client.transaction() as transaction:
        transaction.ack(other, held[0])
    other.ack(held[1])
    assert source.get_many(10)[0].offset == 2
    assert [message.text for message in other.get_many(10)] == ["c"]


def test_messages_of_another_thread_are_not_delivered_again(client: oncemq.Client, source: oncemq.Subscription) -> None:
    reader = threading.Thread(target=source.get_many, args=(4,))
    reader.start()
    reader.join()
    with pytest.raises(KeyError), client.transaction():
        raise KeyError
    assert source.get_many(1)[0].offset == 4


def test_a_failed_inner_block_keeps_the_acks_of_the_outer_block(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    with client.transaction() as outer:
        source.get_many(4)
        outer.ack(source)
        with pytest.raises(KeyError), client.transaction():
            assert source.get_many(2)[0].offset == 4
            raise KeyError
    assert acked(client) == 4
    assert source.get_many(2)[0].offset == 4


def test_messages_read_after_an_early_commit_are_delivered_again(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    with pytest.raises(KeyError), client.transaction() as transaction:
        transaction.ack(source, source.get_many(2)[-1])
        transaction.commit()
        source.get_many(2)
        raise KeyError
    assert source.get_many(2)[0].offset == 2


def test_a_fenced_subscription_does_not_stop_another_subscription_of_the_block(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    other = client.subscribe("other", "reader", auto_ack=False)
    client.put_many("other", ["a", "b"])
    thief = client.subscription("source", "copier", auto_ack=False)
    with pytest.raises(oncemq.Fenced), client.transaction() as transaction:
        source.get()
        transaction.ack(source)
        other.get()
        transaction.ack(other)
        assert thief.get() is not None
    assert [message.text for message in other.get_many(2)] == ["a", "b"]
    with pytest.raises(oncemq.Fenced):
        source.get()


@EACH_TRANSPORT
def test_a_transaction_that_is_larger_than_a_request_is_refused_and_the_client_continues(
    oncemq_broker: BrokerProcess,
) -> None:
    with oncemq_broker.connect() as client:
        with pytest.raises(oncemq.TooLarge, match="the transaction has 6291"), client.transaction() as transaction:
            for name in ("a", "b", "c"):
                transaction.put(name, bytes(2 * 2**20), create=True)
        assert client.put("a", b"x", create=True).offset == 0
