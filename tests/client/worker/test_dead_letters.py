"""Dead letters: messages that can't be worked on lie where they can be looked at, once each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import oncemq
from oncemq.protocol import errors
from oncemq.protocol.frames import decode_response
from oncemq.protocol.names import DEAD_SUBSCRIBER
from oncemq.protocol.replies import TransactReply

Connect = Callable[..., oncemq.Client]


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    made: list[oncemq.Client] = []

    def make(**options: object) -> oncemq.Client:
        made.append(oncemq.connect(f"memory:{request.node.name}", **options))  # type: ignore[call-overload]
        return made[-1]

    yield make
    for client in reversed(made):
        client._close(clean=False)


@pytest.fixture
def client(connect: Connect) -> oncemq.Client:
    return connect()


@pytest.fixture
def workers(client: oncemq.Client) -> oncemq.SharedSubscription:
    return client.subscribe_shared("t", "packers", tries_max=2, lease_s=5)


def first_of(workers: oncemq.SharedSubscription) -> oncemq.Task:
    task = workers.take(timeout_s=10)
    assert task is not None
    return task


def summary(client: oncemq.Client) -> list[tuple[str, int, str]]:
    return [(letter.text, letter.tries, letter.reason) for letter in client.dead_letters("t.dead")]


def lag(client: oncemq.Client) -> int:
    return client.subscriptions("t")[0].lag


# How they get there.


def test_the_last_try_that_fails_makes_a_dead_letter(client: oncemq.Client, workers: oncemq.SharedSubscription) -> None:
    receipt = client.put("t", "x", key="k", headers={"colour": "red"})
    first_of(workers).nack()
    assert client.dead_letters("t.dead") == []
    task = first_of(workers)
    task.nack()
    assert task.outcome == "rejected"
    workers.flush()
    [letter] = client.dead_letters("t.dead")
    assert (letter.topic, letter.offset, letter.topic_id) == ("t", receipt.offset, receipt.topic_id)
    assert (letter.subscriber, letter.tries, letter.reason) == ("packers", 2, "tries")
    assert letter.timestamp_ms == receipt.timestamp_ms
    assert (letter.value, letter.text, letter.key, letter.headers) == (b"x", "x", b"k", {"colour": b"red"})
    assert letter.message.topic == "t.dead"
    assert lag(client) == 0
    assert workers.take() is None


def test_a_dead_letter_says_what_the_last_try_failed_with(
    client: oncemq.Client, workers: oncemq.SharedSubscription
) -> None:
    client.put_many("t", ["a", "b"])
    for _ in range(2):
        for task in (first_of(workers), first_of(workers)):
            if task.text == "a":
                with pytest.raises(ValueError), workers.handling(task):
                    raise ValueError("price\nmissing \udcff" + "!" * 1000)
            else:
                task.nack(reason="no such customer")
    workers.flush()
    long, short = client.dead_letters("t.dead")
    assert long.reason.startswith("ValueError: price missing ?!!!")
    assert len(long.reason) == 500
    assert short.reason == "no such customer"


def test_what_kills_its_consumers_is_not_handed_out_for_ever(client: oncemq.Client) -> None:
    for _ in range(2):
        with client.subscribe_shared("t", "packers", "earliest", tries_max=2) as workers:
            if not _:
                client.put_many("t", ["bad", "good"])
            workers.take_many(1)
    with client.shared_subscription("t", "packers") as workers:
        task = workers.take()
        assert task is not None
        assert (task.text, task.tries) == ("good", 1)
        task.ack()
    assert summary(client) == [("bad", 2, "tries")]
    assert lag(client) == 0


def test_a_task_can_be_rejected_for_a_reason(client: oncemq.Client, workers: oncemq.SharedSubscription) -> None:
    client.put_many("t", ["a", "b", "c"])
    one, two, three = workers.take_many(3)
    one.reject()
    two.reject("no such customer: Zoë")
    with pytest.raises(RuntimeError, match="rejected before"):
        two.ack()
    two.reject()
    with pytest.raises(errors.NameInvalid):
        three.reject("\ud800")
    three.ack()
    workers.close()
    assert summary(client) == [("a", 1, "rejected"), ("b", 1, "no such customer: Zoë")]
    assert lag(client) == 0


def test_without_a_dead_letter_topic_nothing_is_rejected(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put("t", "x")
    task = first_of(workers)
    with pytest.raises(RuntimeError, match="tries_max"):
        task.reject()
    task.ack(wait=True)


def test_a_letter_whose_answer_was_lost_is_there_once(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(timeout_s=0.2)
    workers = client.subscribe_shared("t", "s", tries_max=1)
    client.put("t", "x")
    task = first_of(workers)
    transport = client._driver.transport
    receive = transport.receive
    dropped: list[object] = []

    def lossy() -> object:
        frames = receive()
        if frames is not None and not dropped:
            replies = decode_response(frames)[0].replies
            if any(isinstance(reply, TransactReply) for reply in replies):
                dropped.append(replies)
                return None
        return frames

    monkeypatch.setattr(transport, "receive", lossy)
    task.nack()
    workers.flush()
    assert dropped
    assert summary(client) == [("x", 1, "tries")]


def test_a_message_that_is_with_somebody_else_is_not_buried(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", tries_max=5, lease_s=0.6, auto_extend=False)
    client.put_many("t", ["a", "b"])
    late = first_of(workers)
    again = next(task for task in connect().shared_subscription("t", "s").tasks(timeout_s=10) if task.text == "a")
    late.reject()
    workers.flush()
    assert summary(client) == []
    again.ack(wait=True)


def test_letters_are_kept_though_somebody_removed_their_subscription(
    client: oncemq.Client, workers: oncemq.SharedSubscription
) -> None:
    client.put_many("t", ["a", "b"])
    client.unsubscribe("t.dead", DEAD_SUBSCRIBER)
    first_of(workers).reject()
    workers.flush()
    client.create_topic("t.dead")
    client.unsubscribe("t.dead", DEAD_SUBSCRIBER)
    first_of(workers).reject()
    workers.flush()
    assert summary(client) == [("b", 1, "rejected")]


def test_a_letter_that_can_not_be_stored_raises_and_is_delivered_again(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s", tries_max=1, lease_s=0.1)
    client.put("t", b"x" * (client.batch_bytes_max - 100))
    first_of(workers).reject()
    with pytest.raises(errors.TooLarge, match=r"offset 0 of 't' can't be stored in 't\.dead'"):
        workers.flush()
    assert lag(client) == 1
    # It was delivered too often by then.
    with pytest.raises(errors.TooLarge):
        workers.take(timeout_s=10)


def test_another_dead_letter_topic_may_be_named(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s", tries_max=3, dead_topic="graveyard")
    assert {topic.name for topic in client.topics()} == {"t", "graveyard"}
    client.put("t", "x")
    first_of(workers).reject()
    workers.flush()
    assert [letter.text for letter in client.dead_letters("graveyard")] == ["x"]


# How they are read.


@pytest.mark.parametrize("change", [{"oncemq-topic": None}, {"oncemq-offset": b"zero"}, {"oncemq-reason": b"\xff"}])
def test_what_is_no_letter_is_none(
    client: oncemq.Client, workers: oncemq.SharedSubscription, change: dict[str, bytes | None]
) -> None:
    client.put("t", "x")
    first_of(workers).reject()
    workers.flush()
    [letter] = client.dead_letters("t.dead")
    headers = {**letter.message.headers, **change}
    client.put("t.dead", "x", headers={name: value for name, value in headers.items() if value is not None})
    assert len(client.dead_letters("t.dead")) == 1
    assert client.retry_dead_letters("t.dead") == 1
    assert client.subscriptions("t.dead")[0].lag == 1


def test_a_topic_without_letters_has_none(client: oncemq.Client) -> None:
    client.create_topic("u")
    assert client.dead_letters("u") == []
    assert client.retry_dead_letters("u") == 0
    assert client.dead_letters("nothing") == []
    with pytest.raises(errors.TopicUnknown):
        client.retry_dead_letters("nothing")


# How they get back.


def bury(client: oncemq.Client, workers: oncemq.SharedSubscription, values: list[str]) -> None:
    client.put_many("t", values, keys=values, headers=[{"value": value} for value in values])
    for _ in values:
        first_of(workers).reject()
    workers.flush()


def test_some_letters_go_back_and_the_others_stay(client: oncemq.Client, workers: oncemq.SharedSubscription) -> None:
    bury(client, workers, ["a", "b", "c", "d"])
    assert client.retry_dead_letters("t.dead", [1, 3, 99]) == 2
    assert [letter.text for letter in client.dead_letters("t.dead")] == ["a", "c"]
    assert [letter.text for letter in client.dead_letters("t.dead")] == ["a", "c"]
    tasks = workers.take_many(4, timeout_s=10)
    assert [(task.text, task.key, task.headers, task.tries) for task in tasks] == [
        ("b", b"b", {"value": b"b"}, 1),
        ("d", b"d", {"value": b"d"}, 1),
    ]
    assert client.retry_dead_letters("t.dead", [1, 3]) == 0
    assert client.retry_dead_letters("t.dead") == 2
    assert client.dead_letters("t.dead") == []
    assert client.subscriptions("t.dead")[0].lag == 0


def test_letters_go_back_to_the_topics_that_they_come_from(client: oncemq.Client) -> None:
    taking = [client.subscribe_shared(topic, "s", tries_max=1, dead_topic="dead") for topic in ("t", "u")]
    for workers in taking:
        client.put_many(workers.topic, [f"{workers.topic}{index}" for index in range(3)])
        for task in workers.take_many(3, timeout_s=10):
            task.reject()
        workers.flush()
    assert client.retry_dead_letters("dead") == 6
    for workers in taking:
        assert [task.text for task in workers.take_many(9, timeout_s=10)] == [
            f"{workers.topic}{index}" for index in range(3)
        ]


def test_a_letter_whose_topic_is_gone_stays(client: oncemq.Client, workers: oncemq.SharedSubscription) -> None:
    bury(client, workers, ["a"])
    workers.close()
    client.delete_topic("t")
    with pytest.raises(errors.TopicUnknown):
        client.retry_dead_letters("t.dead")
    assert summary(client) == [("a", 1, "rejected")]
    client.create_topic("t")
    assert client.retry_dead_letters("t.dead") == 1


def test_many_letters_go_back(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s", tries_max=1, unsettled_max=5000)
    values = [f"{index}-{'x' * 1000}" for index in range(3000)]
    for start in range(0, 3000, 1000):
        bury(client, workers, values[start : start + 1000])
    assert [letter.text for letter in client.dead_letters("t.dead")] == values
    assert client.retry_dead_letters("t.dead") == 3000
    got = []
    for task in workers.tasks(timeout_s=0):
        got.append(task.text)
        task.ack()
    assert got == values


def test_a_letter_that_dies_again_is_as_it_was(client: oncemq.Client, workers: oncemq.SharedSubscription) -> None:
    bury(client, workers, ["a"])
    client.retry_dead_letters("t.dead")
    first_of(workers).reject("again")
    workers.flush()
    [letter] = client.dead_letters("t.dead")
    assert (letter.offset, letter.reason, letter.headers) == (1, "again", {"value": b"a"})
