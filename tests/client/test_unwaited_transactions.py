"""Transactions whose callers do not wait for the reply: `transaction(wait=False)`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

import oncemq
import oncemq.aio
from oncemq.client.consumer.consumer import Consumer
from oncemq.client.consumer.session import ConsumerSession
from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.client.event_loop import on_event_loop
from tests.transports import EACH_TRANSPORT

_MESSAGES = 40
#: A transaction with a put to it is refused.
_NO_TOPIC = "there is no such topic"


class Interruption(BaseException):
    """Like Ctrl-C, which would end the tests."""


@pytest.fixture
def client(oncemq_broker: BrokerProcess) -> Iterator[oncemq.Client]:
    client = oncemq_broker.connect(timeout_s=0.5, tries=40)
    client.create_topic("target", retain_ms=10**9)
    # A transaction looks the schema of a topic up before the first put to it.
    for topic in ("target", _NO_TOPIC):
        with contextlib.suppress(errors.TopicUnknown):
            client.put_many(topic, [])
    yield client
    # A test may have left failures, which `close` raises.
    with contextlib.suppress(errors.OnceMQError):
        client.close()


@pytest.fixture
def source(client: oncemq.Client) -> oncemq.Subscription:
    subscription = client.subscribe("source", "copier", auto_ack=False)
    client.put_many("source", [str(number) for number in range(_MESSAGES)])
    return subscription


def copy(client: oncemq.Client, source: oncemq.Subscription, count: int, target: str = "target") -> list[str]:
    """Copy some messages, and do not wait until that is done. Return their texts."""
    with client.transaction(wait=False) as transaction:
        messages = source.get_many(count, timeout_s=5)
        transaction.put_many(target, [message.value for message in messages])
        transaction.ack(source)
    return [message.text for message in messages]


def copied(client: oncemq.Client) -> list[str]:
    return [message.text for message in client.read("target")]


def acked(client: oncemq.Client) -> int:
    [info] = client.subscriptions("source")
    return info.acked


def numbers(*counts: int) -> list[str]:
    return list(map(str, range(*counts)))


@pytest.mark.parametrize("topic", ["source", "source.*"])
@pytest.mark.parametrize("seed", range(3))
def test_each_message_is_copied_once_whatever_happens(oncemq_broker: BrokerProcess, topic: str, seed: int) -> None:
    """Refused transactions, exceptions in blocks, acks and flushes in between, and a broker that does not answer."""
    random, count = Random(f"{topic}/{seed}"), 600
    with oncemq_broker.connect(timeout_s=0.05, tries=2) as client:
        client.create_topic("target", retain_ms=10**9)
        name = topic.replace("*", "1")
        client.create_topic(name)
        subscribe = client.subscribe_pattern if topic != name else client.subscribe
        source = subscribe(topic, "copier", "earliest", auto_ack=False)
        client.put_many(name, numbers(count))
        resumed = threading.Timer(0.0, lambda: None)
        resumed.start()
        while copied_so_far(client) < count:
            if random.random() < 0.03 and not resumed.is_alive():
                oncemq_broker.pause()
                resumed = threading.Timer(random.uniform(0.01, 0.25), oncemq_broker.resume)
                resumed.start()
            with contextlib.suppress(KeyError, errors.TopicUnknown, errors.BrokerAway, errors.EarlierFailed):
                with client.transaction(wait=random.random() < 0.2) as transaction:
                    messages = source.get_many(random.randint(1, 9), timeout_s=0.5)
                    target = _NO_TOPIC if random.random() < 0.05 else "target"
                    transaction.put_many(target, [message.value for message in messages])
                    if messages:
                        transaction.ack(source)
                    if random.random() < 0.05:
                        raise KeyError
                if random.random() < 0.1:
                    client.flush()
        resumed.join()
        with contextlib.suppress(errors.OnceMQError):
            client.flush()
        assert copied(client) == numbers(count)


def copied_so_far(client: oncemq.Client) -> int:
    while True:
        with contextlib.suppress(errors.BrokerAway):
            return next(info.end_offset for info in client.topics() if info.name == "target")


@EACH_TRANSPORT
def test_several_transactions_are_on_their_way_at_a_time(
    client: oncemq.Client, source: oncemq.Subscription, oncemq_broker: BrokerProcess
) -> None:
    assert copy(client, source, 5) == numbers(5)
    client.flush()
    oncemq_broker.pause()
    for _ in range(5):
        copy(client, source, 5)
    oncemq_broker.resume()
    client.flush()
    assert copied(client) == numbers(30)
    assert acked(client) == 30


def test_receipts_are_there_when_the_outcome_is_known(client: oncemq.Client) -> None:
    with client.transaction(wait=False) as transaction:
        transaction.put("target", "one")
    client.flush()
    assert [(receipt.topic, receipt.offset) for receipt in transaction.receipts] == [("target", 0)]


def test_what_follows_a_refused_transaction_is_refused_and_everything_is_delivered_again(
    client: oncemq.Client, source: oncemq.Subscription, oncemq_broker: BrokerProcess
) -> None:
    copy(client, source, 5)
    client.flush()
    oncemq_broker.pause()
    copy(client, source, 5)
    copy(client, source, 5, _NO_TOPIC)
    copy(client, source, 5)
    copy(client, source, 5)
    oncemq_broker.resume()
    with pytest.raises(errors.TopicUnknown):
        client.flush()
    assert copied(client) == numbers(10)
    assert acked(client) == 10
    assert copy(client, source, 3) == numbers(10, 13)
    client.flush()
    assert copied(client) == numbers(13)


def _get(client: oncemq.Client, source: oncemq.Subscription) -> None:
    # What was fetched ahead is delivered first.
    for _ in range(_MESSAGES):
        source.get(timeout_s=5)


def _ack(client: oncemq.Client, source: oncemq.Subscription) -> None:
    source.ack()


def _seek(client: oncemq.Client, source: oncemq.Subscription) -> None:
    source.seek("earliest")


def _close(client: oncemq.Client, source: oncemq.Subscription) -> None:
    source.close()


def _close_client(client: oncemq.Client, source: oncemq.Subscription) -> None:
    client.close()


def _transact(client: oncemq.Client, source: oncemq.Subscription) -> None:
    with client.transaction() as transaction:
        transaction.put("target", "never")
        source.get(timeout_s=5)
        transaction.ack(source)


def _transact_without_waiting(client: oncemq.Client, source: oncemq.Subscription) -> None:
    copy(client, source, 1)
    client.flush()


@pytest.mark.parametrize("call", [_get, _ack, _seek, _close, _close_client, _transact, _transact_without_waiting])
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_failure_is_raised_by_the_next_call_that_could_skip_its_messages(
    client: oncemq.Client,
    source: oncemq.Subscription,
    oncemq_broker: BrokerProcess,
    call: Callable[[oncemq.Client, oncemq.Subscription], None],
    is_answered: bool,
) -> None:
    copy(client, source, 5)
    client.flush()
    if not is_answered:
        oncemq_broker.pause()
        timer = threading.Timer(0.2, oncemq_broker.resume)
        timer.start()
    copy(client, source, 5, _NO_TOPIC)
    if is_answered:
        while client._producer.in_flight_batches:
            client.health()
    with pytest.raises(errors.TopicUnknown):
        call(client, source)
    if not is_answered:
        timer.join()
    with oncemq_broker.connect() as other:
        assert acked(other) == 5
        assert copied(other) == numbers(5)
        again = other.subscription("source", "copier", auto_ack=False)
        assert again.get(timeout_s=5).text == "5"  # type: ignore[union-attr]


def test_a_failed_block_does_not_deliver_again_what_is_on_its_way(
    client: oncemq.Client, source: oncemq.Subscription, oncemq_broker: BrokerProcess
) -> None:
    assert source.get_many(1, timeout_s=5)
    copy(client, source, 9)
    oncemq_broker.pause()
    copy(client, source, 5)
    with pytest.raises(KeyError), client.transaction(wait=False) as transaction:
        source.get_many(5)
        transaction.ack(source)
        raise KeyError
    oncemq_broker.resume()
    assert copy(client, source, 5) == numbers(15, 20)
    client.flush()
    assert copied(client) == numbers(1, 20)


def test_a_waiting_transaction_continues_those_that_are_on_their_way(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    for _ in range(3):
        copy(client, source, 5)
    with client.transaction() as transaction:
        transaction.put_many("target", [message.value for message in source.get_many(5, timeout_s=5)])
        transaction.ack(source)
    assert acked(client) == 20
    assert copied(client) == numbers(20)


def test_the_broker_is_killed_while_transactions_are_on_their_way(
    client: oncemq.Client, source: oncemq.Subscription, oncemq_broker: BrokerProcess
) -> None:
    done: list[str] = []
    for count in (3, 4, 5, 6):
        done += copy(client, source, count)
        if count == 4:
            oncemq_broker.pause()
    oncemq_broker.kill()
    oncemq_broker.start()
    client.flush()
    assert done == numbers(18)
    assert copied(client) == numbers(18)
    assert acked(client) == 18


def test_an_unknown_outcome_is_looked_up(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=0.1, tries=2) as client:
        client.create_topic("target", retain_ms=10**9)
        source = client.subscribe("source", "copier", auto_ack=False)
        client.put_many("source", numbers(_MESSAGES))
        copy(client, source, 5)
        client.flush()
        oncemq_broker.pause()
        copy(client, source, 5)
        copy(client, source, 5)
        with pytest.raises(errors.BrokerAway):
            client.flush()
        oncemq_broker.resume()
        while acked(client) < _MESSAGES:
            try:
                copy(client, source, 7)
                client.flush()
            except errors.BrokerAway:
                continue
        assert copied(client) == numbers(_MESSAGES)


def test_a_failure_is_told_to_the_user_of_the_subscription(client: oncemq.Client, source: oncemq.Subscription) -> None:
    other = client.subscribe("other source", "copier", auto_ack=False)
    client.put("other source", "theirs")

    def fail() -> None:
        with client.transaction(wait=False) as transaction:
            assert other.get(timeout_s=5) is not None
            transaction.put(_NO_TOPIC, "never")
            transaction.ack(other)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    # It does not concern this thread's subscription. `flush` raises it, once.
    assert copy(client, source, 5) == numbers(5)
    with pytest.raises(errors.TopicUnknown):
        client.flush()
    client.flush()
    assert copied(client) == numbers(5)
    # Whoever uses the subscription next is told, and gets the message again.
    with pytest.raises(errors.TopicUnknown):
        other.get(timeout_s=5)
    assert other.get(timeout_s=5).text == "theirs"  # type: ignore[union-attr]


def test_a_flush_elsewhere_does_not_move_a_subscription_that_is_in_use(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    """One thread sends a transaction that fails. Another one uses the subscription when the first one flushes."""
    copy(client, source, 5, _NO_TOPIC)
    has_read, has_flushed = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def use() -> None:
        try:
            with client.transaction() as transaction:
                messages = source.get_many(5)
                has_read.set()
                assert has_flushed.wait(30)
                transaction.put_many("target", [message.value for message in messages])
                transaction.ack(source)
        except errors.OnceMQError as error:
            raised.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    assert has_read.wait(30)
    with pytest.raises(errors.TopicUnknown):
        client.flush()
    has_flushed.set()
    thread.join()
    assert [type(error) for error in raised] == [errors.TopicUnknown]
    assert copied(client) == []
    while acked(client) < _MESSAGES:
        copy(client, source, 7)
        client.flush()
    assert copied(client) == numbers(_MESSAGES)


@pytest.mark.parametrize("by", ["flush", "get in a thread"])
def test_a_block_that_was_open_when_a_failure_was_noted_is_not_committed(
    client: oncemq.Client, source: oncemq.Subscription, by: str
) -> None:
    def note() -> None:
        with contextlib.suppress(errors.TopicUnknown):
            client.flush() if by == "flush" else _get(client, source)

    copy(client, source, 5, _NO_TOPIC)
    with pytest.raises(errors.EarlierFailed), client.transaction() as transaction:
        messages = source.get_many(5)
        transaction.put_many("target", [message.value for message in messages])
        transaction.ack(source)
        thread = threading.Thread(target=note)
        if by == "flush":
            note()
        else:
            thread.start()
            thread.join()
    assert acked(client) == 0
    while acked(client) < _MESSAGES:
        copy(client, source, 7)
        client.flush()
    assert copied(client) == numbers(_MESSAGES)


def test_a_failure_that_was_handled_is_not_raised_again(
    client: oncemq.Client, source: oncemq.Subscription, oncemq_broker: BrokerProcess
) -> None:
    source.get_many(1, timeout_s=5)
    oncemq_broker.pause()
    for target in (_NO_TOPIC, "target", "target"):
        copy(client, source, 5, target)
    oncemq_broker.resume()
    with pytest.raises(errors.TopicUnknown):
        _ack(client, source)
    while acked(client) < _MESSAGES:
        copy(client, source, 7)
        source.ack()
    client.flush()
    assert copied(client) == numbers(_MESSAGES)


def test_an_ack_of_a_pattern_survives_a_failed_block(client: oncemq.Client) -> None:
    client.put_many("source.1", ["stored before there is a topic"], create=True)
    source = client.subscribe_pattern("source.*", "copier", auto_ack=False)
    client.put_many("source.1", numbers(5))
    first = source.get(timeout_s=5)
    assert first is not None
    source.ack(first)
    with pytest.raises(KeyError), client.transaction():
        source.get(timeout_s=5)
        raise KeyError
    assert source.get(timeout_s=5).text == "1"  # type: ignore[union-attr]


def test_what_a_filter_drops_does_not_hide_a_failure(client: oncemq.Client) -> None:
    source = client.subscribe("source", "copier", auto_ack=False, filter=lambda message: message.text != "skip")
    client.put_many("source", numbers(256))
    client.put_many("source", ["skip"] * 300)
    copy(client, source, 5, _NO_TOPIC)
    while client._producer.in_flight_batches:
        client.health()
    # There are messages at hand, and all that would be fetched is dropped.
    with pytest.raises(errors.TopicUnknown):
        copy(client, source, 1000)
        client.flush()
    assert copy(client, source, 1000) == numbers(256)
    client.flush()
    assert copied(client) == numbers(256)


def test_an_exception_after_an_early_commit_does_not_deliver_again_what_is_on_its_way(
    client: oncemq.Client, source: oncemq.Subscription, oncemq_broker: BrokerProcess
) -> None:
    source.get_many(1, timeout_s=5)
    oncemq_broker.pause()
    with pytest.raises(KeyError), client.transaction(wait=False) as transaction:
        messages = source.get_many(4)
        transaction.put_many("target", [message.value for message in messages])
        transaction.ack(source)
        transaction.commit()
        raise KeyError
    oncemq_broker.resume()
    assert copy(client, source, 5) == numbers(5, 10)
    client.flush()
    assert copied(client) == numbers(1, 10)


@pytest.mark.parametrize("method", ["transaction_failed", "go_back"])
@pytest.mark.parametrize("is_before", [True, False])
def test_an_interrupt_while_a_failure_is_noted_skips_nothing(
    client: oncemq.Client,
    source: oncemq.Subscription,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    is_before: bool,
) -> None:
    copy(client, source, 5, _NO_TOPIC)
    real = getattr(Consumer, method)

    def interrupted(consumer: Consumer, *arguments: object) -> None:
        if not is_before:
            real(consumer, *arguments)
        raise Interruption

    with monkeypatch.context() as patched:
        patched.setattr(Consumer, method, interrupted)
        with pytest.raises(Interruption):
            client.flush()
    while acked(client) < _MESSAGES:
        with contextlib.suppress(errors.TopicUnknown):
            copy(client, source, 7)
            client.flush()
    assert copied(client) == numbers(_MESSAGES)


def test_a_transaction_waits_if_it_does_not_ack_all_that_was_read(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    """The messages of `other` may have gone into it. If it fails, they must come again before they are acked."""
    other = client.subscribe("other source", "copier", auto_ack=False)
    client.put("other source", "theirs")
    with pytest.raises(errors.TopicUnknown), client.transaction(wait=False) as transaction:
        assert other.get(timeout_s=5) is not None
        transaction.put_many(_NO_TOPIC, [message.value for message in source.get_many(5, timeout_s=5)])
        transaction.ack(source)
    assert other.get(timeout_s=5).text == "theirs"  # type: ignore[union-attr]
    assert source.get(timeout_s=5).text == "0"  # type: ignore[union-attr]


def test_a_subscription_that_another_thread_has_read_makes_a_transaction_wait(
    client: oncemq.Client, source: oncemq.Subscription
) -> None:
    other = client.subscribe("other source", "copier", auto_ack=False)
    client.put_many("other source", ["one", "two"])
    thread = threading.Thread(target=lambda: other.get(timeout_s=5))
    thread.start()
    thread.join()
    # Its message may have gone into the transaction.
    with pytest.raises(errors.TopicUnknown):
        copy(client, source, 5, _NO_TOPIC)
    # This thread's view of it is unchanged: the second message is the next one.
    assert other.get(timeout_s=5).text == "two"  # type: ignore[union-attr]
    other.ack(wait=True)
    copy(client, source, 5, _NO_TOPIC)
    with pytest.raises(errors.TopicUnknown):
        client.flush()


def test_a_schema_is_looked_up_before_the_first_transaction(client: oncemq.Client) -> None:
    client.create_topic("typed", retain_ms=10**9)
    client.put_schema("typed", "id: int64")
    with client.transaction(wait=False) as transaction:
        transaction.put("typed", {"id": 1})
    with pytest.raises(errors.SchemaMismatch), client.transaction(wait=False) as transaction:
        transaction.put("typed", b'{"id": "one"}')
    client.flush()
    assert [message.text for message in client.read("typed")] == ['{"id":1}']


def test_a_seek_after_transactions_on_their_way_is_not_undone_by_their_replies(
    client: oncemq.Client, source: oncemq.Subscription, oncemq_broker: BrokerProcess
) -> None:
    client.create_topic("source", retain_ms=10**9, alter=True)
    copy(client, source, 5)
    copy(client, source, 5)
    source.seek("earliest")
    assert copy(client, source, 5) == numbers(5)
    client.flush()
    assert acked(client) == 5


def test_a_transaction_with_tasks_waits(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("tasks", "workers")
    client.put("tasks", "one")
    task = workers.take(timeout_s=5)
    assert task is not None
    with pytest.raises(errors.TopicUnknown), client.transaction(wait=False) as transaction:
        transaction.put(_NO_TOPIC, task.value)
        transaction.ack(task)
    with client.transaction(wait=False) as transaction:
        transaction.put("target", task.value)
        transaction.ack(task)
    assert copied(client) == ["one"]
    assert client.subscriptions("tasks")[0].lag == 0


def test_a_get_does_not_wait_at_the_broker_for_more_than_it_has(
    client: oncemq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_get = ConsumerSession.send_get

    def checked(session: ConsumerSession, wait_ms: int, *, with_acks: bool = True) -> Pending:
        assert not (wait_ms and session.cursor.is_buffered), "it would wait although there are messages"
        return send_get(session, wait_ms, with_acks=with_acks)

    monkeypatch.setattr(ConsumerSession, "send_get", checked)
    source = client.subscribe("source", "copier", auto_ack=False, prefetch_bytes=200_000)
    for _ in range(30):
        client.put_many("source", [b"m" * 1000] * 1000)
        left = 1000
        while left:
            left -= len(copy(client, source, 100))
        client.flush()


def test_a_get_without_a_timeout_finds_what_is_there(
    client: oncemq.Client, source: oncemq.Subscription, oncemq_broker: BrokerProcess
) -> None:
    assert copy(client, source, _MESSAGES) == numbers(_MESSAGES)
    with oncemq_broker.connect() as other:
        other.put("source", "one more")
    # Whether the transaction is answered or not: the message is at the broker.
    assert [message.text for message in source.get_many(10, timeout_s=0)] == ["one more"]


def test_at_most_a_hundred_transactions_are_on_their_way(
    client: oncemq.Client, oncemq_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemq.client.unanswered._UNANSWERED_MAX", 3)
    oncemq_broker.pause()
    sent: list[int] = []

    def put() -> None:
        for number in range(10):
            with client.transaction(wait=False) as transaction:
                transaction.put("target", str(number))
            sent.append(number)

    thread = threading.Thread(target=put)
    thread.start()
    thread.join(0.3)
    assert len(sent) <= 3
    oncemq_broker.resume()
    thread.join()
    client.flush()
    assert copied(client) == numbers(10)


def test_an_outbox_has_no_transactions_without_a_wait(tmp_path: Path) -> None:
    with oncemq.connect("memory:", outbox=tmp_path / "outbox") as client, pytest.raises(ValueError, match="outbox"):
        client.transaction(wait=False)


@on_event_loop
async def test_an_ack_in_another_task_waits_for_the_transactions_before_it(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        await client.create_topic("target", retain_ms=10**9)
        source = await client.subscribe("source", "copier", auto_ack=False)
        await client.put_many("source", numbers(_MESSAGES))
        async with client.transaction(wait=False) as transaction:
            await source.get_many(5, timeout_s=5)
            transaction.put(_NO_TOPIC, "never")
            transaction.ack(source)
        message = await source.get(timeout_s=5)
        with pytest.raises(errors.TopicUnknown):
            await asyncio.create_task(source.ack(message, wait=True))
        assert (await client.subscriptions("source"))[0].acked == 0
        assert (await source.get(timeout_s=5)).text == "0"  # type: ignore[union-attr]


@on_event_loop
async def test_messages_that_other_tasks_got_make_a_transaction_wait(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        sources = [await client.subscribe(name, "copier", auto_ack=False) for name in ("one", "two")]
        for name in ("one", "two"):
            await client.put(name, "message")
        with pytest.raises(errors.TopicUnknown):
            async with client.transaction(wait=False) as transaction:
                await asyncio.gather(*(source.get(timeout_s=5) for source in sources))
                transaction.put(_NO_TOPIC, "both")
                transaction.ack(sources[0])


@on_event_loop
async def test_a_failure_without_acks_is_for_those_who_flush(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        await client.create_topic("target", retain_ms=10**9)

        async def put(topic: str) -> None:
            async with client.transaction(wait=False) as transaction:
                transaction.put(topic, "one")

        for _ in range(150):
            await asyncio.create_task(put(_NO_TOPIC))
            await asyncio.create_task(put("target"))
        with pytest.raises(errors.TopicUnknown):
            await client.flush()
        await client.flush()
        assert len([message async for message in client.read("target")]) == 150


@on_event_loop
async def test_asyncio_transactions_do_not_wait_either(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        await client.create_topic("target", retain_ms=10**9)
        source = await client.subscribe("source", "copier", auto_ack=False)
        await client.put_many("source", numbers(_MESSAGES))
        with pytest.raises(errors.TopicUnknown):
            await client.put_many(_NO_TOPIC, [b"its schema is known then"])

        async def copy_some(target: str) -> list[str]:
            async with client.transaction(wait=False) as transaction:
                messages = await source.get_many(5, timeout_s=5)
                transaction.put_many(target, [message.value for message in messages])
                transaction.ack(source)
            return [message.text for message in messages]

        assert await copy_some("target") == numbers(5)
        await client.flush()
        oncemq_broker.pause()
        for target in ("target", _NO_TOPIC, "target"):
            await copy_some(target)
        oncemq_broker.resume()
        with pytest.raises(errors.TopicUnknown):
            await client.flush()
        assert await copy_some("target") == numbers(10, 15)
        await client.flush()
        assert [message.text async for message in client.read("target")] == numbers(15)
