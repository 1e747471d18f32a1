"""A shared subscription: each message is one consumer's, until it is settled."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

import oncemq
from oncemq.protocol import errors

Connect = Callable[[], oncemq.Client]


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    made: list[oncemq.Client] = []

    def make() -> oncemq.Client:
        made.append(oncemq.connect(f"memory:{request.node.name}"))
        return made[-1]

    yield make
    for client in reversed(made):
        client._close(clean=False)


@pytest.fixture
def client(connect: Connect) -> oncemq.Client:
    return connect()


def texts(tasks: object) -> list[str]:
    return [task.text for task in tasks]  # type: ignore[attr-defined]


def lag(client: oncemq.Client) -> int:
    return client.subscriptions("t")[0].lag


def test_each_message_goes_to_one_consumer(client: oncemq.Client) -> None:
    one = client.subscribe_shared("t", "s")
    two = client.shared_subscription("t", "s")
    assert (one.created, two.created) == (True, False)
    client.put_many("t", map(str, range(100)))
    got: dict[str, list[str]] = {"one": [], "two": []}
    while tasks := [("one", task) for task in one.take_many(7)] + [("two", task) for task in two.take_many(5)]:
        for name, task in tasks:
            got[name].append(task.text)
            task.ack()
    assert got["one"]
    assert got["two"]
    assert sorted(got["one"] + got["two"], key=int) == texts_of(100)
    one.flush()
    two.flush()
    assert lag(client) == 0


def texts_of(count: int) -> list[str]:
    return [str(index) for index in range(count)]


def test_a_task_tells_what_its_message_is(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    stored = client.put("t", "one pizza", key="table-7", headers={"size": "large"})
    task = workers.take()
    assert task is not None
    assert (task.value, task.text) == (b"one pizza", "one pizza")
    assert (task.key, task.headers) == (b"table-7", {"size": b"large"})
    assert (task.topic, task.offset, task.topic_id, task.tries) == ("t", stored.offset, stored.topic_id, 1)
    assert task.message.idempotency_key
    assert (task.subscriber, task.outcome, task.is_lost) == ("s", "", False)
    assert task.token
    assert task.epoch


@pytest.mark.parametrize("how", ["take", "take_many", "tasks", "iter"])
def test_tasks_come_in_every_way(client: oncemq.Client, how: str) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", map(str, range(2500)))
    got = []
    for _ in range(2500):
        if how == "take":
            task = workers.take()
        elif how == "take_many":
            [task] = workers.take_many(1)
        else:
            task = next(iter(workers) if how == "iter" else workers.tasks(timeout_s=0))
        assert task is not None
        got.append(task.text)
        task.ack()
    assert got == texts_of(2500)
    assert workers.take() is None
    assert workers.take_many() == []
    assert list(workers.tasks(timeout_s=0)) == []
    workers.close()
    assert lag(client) == 0


def test_an_ack_that_waits_is_on_the_brokers_disk(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put("t", "x")
    task = workers.take()
    assert task is not None
    task.ack(wait=True)
    assert lag(client) == 0
    task.ack(wait=True)
    task.ack()
    assert task.outcome == "acked"


def test_an_ack_is_sent_automatically_after_a_moment(connect: Connect) -> None:
    client, watching = connect(), connect()
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", ["a", "b", "c"])
    for task in workers.take_many(3):
        before = lag(watching)
        task.ack()
        poll(lambda before=before: lag(watching) == before - 1, 5)  # type: ignore[misc]


def poll(is_true: Callable[[], bool], within_s: float = 10.0) -> None:
    event = threading.Event()
    for _ in range(int(within_s / 0.01)):
        if is_true():
            return
        event.wait(0.01)
    raise AssertionError(f"not within {within_s} s")


def test_a_returned_task_is_delivered_again(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put("t", "x")
    for tries in (1, 2, 3):
        [task] = workers.take_many(timeout_s=5)
        assert (task.text, task.tries) == ("x", tries)
        task.nack()
        task.nack()
    with pytest.raises(RuntimeError, match="returned before"):
        task.ack()


def test_a_task_that_is_returned_with_a_delay_is_delivered_later(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put("t", "x")
    task = workers.take()
    assert task is not None
    task.nack(delay_s=0.2)
    workers.flush()
    assert workers.take() is None
    again = workers.take(timeout_s=10)
    assert again is not None
    assert again.tries == 2
    for wrong in (-1, 1e9):
        with pytest.raises(ValueError, match="delay_s"):
            again.nack(delay_s=wrong)


def test_close_gives_back_what_was_not_acked(client: oncemq.Client) -> None:
    with client.subscribe_shared("t", "s") as workers:
        client.put_many("t", map(str, range(10)))
        tasks = workers.take_many(10)
        for task in tasks[::2]:
            task.ack()
    for task in tasks[1::2]:
        with pytest.raises(errors.ClientClosed):
            task.ack()
    # That was said before, and is known.
    tasks[0].ack()
    with pytest.raises(errors.ClientClosed):
        workers.take()
    other = client.shared_subscription("t", "s")
    got = other.take_many(10)
    assert [(task.text, task.tries) for task in got] == [(str(index), 2) for index in range(1, 10, 2)]


def test_closing_the_client_sends_the_acks(connect: Connect) -> None:
    watching = connect()
    client = connect()
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", map(str, range(10)))
    for task in workers.take_many(7):
        task.ack()
    client.close()
    assert lag(watching) == 3
    assert len(watching.shared_subscription("t", "s").take_many(10)) == 3


def test_handling_acks_what_went_well_and_gives_back_what_did_not(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", ["good", "bad", "own"])
    good, bad, own = workers.take_many(3)
    with workers.handling(good) as task:
        assert task is good
    with pytest.raises(ZeroDivisionError), workers.handling(bad):
        1 / 0  # noqa: B018
    with workers.handling(own):
        own.nack(delay_s=60)
    assert [task.outcome for task in (good, bad, own)] == ["acked", "returned", "returned"]
    assert texts(workers.take_many(3, timeout_s=5)) == ["bad"]


def test_a_consumer_that_is_slow_does_not_sit_on_what_others_could_do(client: oncemq.Client) -> None:
    slow = client.subscribe_shared("t", "s")
    other = client.shared_subscription("t", "s")
    client.put_many("t", map(str, range(10)))
    assert texts([next(slow.tasks())]) == ["0"]
    assert texts(other.take_many(10)) == texts_of(10)[1:]


def test_what_was_fetched_ahead_is_no_more_than_was_wished(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s", prefetch=6)
    client.put_many("t", map(str, range(100)))
    for _ in range(20):
        task = workers.take(timeout_s=5)
        assert task is not None
        task.ack(wait=True)
        assert client.subscriptions("t")[0].leased <= 6


def test_only_so_many_are_in_a_consumers_hands(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s", unsettled_max=3)
    client.put_many("t", map(str, range(10)))
    tasks = workers.take_many(10)
    assert texts(tasks) == texts_of(3)
    assert workers.take() is None
    assert workers.take_many(timeout_s=0.05) == []
    tasks[1].ack()
    assert texts(workers.take_many(10)) == ["3"]
    got: list[oncemq.Task | None] = []
    waiting = threading.Thread(target=lambda: got.append(workers.take(timeout_s=30)))
    waiting.start()
    poll(lambda: workers.consumer.membership.table.awaits_capacity)
    tasks[0].ack()
    waiting.join(20)
    assert texts(got) == ["4"]


def test_overlapping_calls_are_refused(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    waiting = threading.Thread(target=lambda: workers.take(timeout_s=1))
    waiting.start()
    poll(lambda: workers.consumer.takes.pending is not None)
    with pytest.raises(RuntimeError, match="another thread"):
        workers.take()
    with pytest.raises(RuntimeError, match="another thread"):
        workers.flush()
    waiting.join()


def test_close_ends_a_take_that_waits_and_leaves_nothing_behind(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s")
    met: list[BaseException] = []

    def wait() -> None:
        try:
            workers.take(timeout_s=None)
        except errors.OnceMQError as error:
            met.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    poll(lambda: workers.consumer.takes.pending is not None)
    workers.close()
    waiting.join(10)
    assert [type(error) for error in met] == [errors.ClientClosed]
    other = connect().shared_subscription("t", "s")
    client.put("t", "x")
    task = other.take(timeout_s=10)
    assert task is not None
    assert task.tries == 1


def test_order_per_key(client: oncemq.Client) -> None:
    one = client.subscribe_shared("t", "s", key_order=True)
    two = client.shared_subscription("t", "s")
    client.put_many("t", map(str, range(6)), keys=["a", "b"] * 3)
    first = one.take_many(6)
    assert texts(first) == ["0", "1"]
    assert two.take() is None
    first[0].ack(wait=True)
    assert texts(two.take_many(6)) == ["2"]


# With transactions.


def test_a_transaction_acks_tasks_or_leaves_them(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    out = client.subscribe("out", "s")
    client.put_many("t", map(str, range(4)))
    tasks = workers.take_many(4)
    with pytest.raises(ZeroDivisionError), client.transaction() as transaction:
        transaction.put("out", "never")
        transaction.ack(tasks[0])
        1 / 0  # noqa: B018
    with client.transaction() as transaction:
        for task in tasks[:3]:
            transaction.put("out", task.value)
            transaction.ack(task)
    assert [task.outcome for task in tasks] == ["acked"] * 3 + [""]
    assert (lag(client), [message.text for message in out.get_many()]) == (1, texts_of(3))
    tasks[0].ack()
    tasks[3].ack()
    workers.flush()
    assert (lag(client), workers.consumer.membership.table.unsettled) == (0, 0)


# Refusals.


def test_an_owned_subscription_can_not_be_joined_and_keeps_its_owner(client: oncemq.Client) -> None:
    owned = client.subscribe("t", "owned")
    assert owned.get() is None
    with pytest.raises(errors.KindMismatch, match="not shared"):
        client.shared_subscription("t", "owned")
    client.put("t", "x")
    message = owned.get()
    assert message is not None
    owned.ack(wait=True)


def test_what_can_not_be_is_refused(client: oncemq.Client) -> None:
    client.subscribe_shared("t", "s", lease_s=10)
    with pytest.raises(errors.SubscriptionExists, match="lease_ms=10000"):
        client.subscribe_shared("t", "s", lease_s=20)
    with pytest.raises(errors.NotSubscribed):
        client.shared_subscription("t", "nobody")
    with pytest.raises(errors.TopicUnknown):
        client.shared_subscription("nothing", "s")
    with pytest.raises(ValueError, match="tries_max"):
        client.subscribe_shared("u", "s", dead_topic="dead")
    with pytest.raises(ValueError, match="at least 1"):
        client.shared_subscription("t", "s").take_many(0)
    for wrong in ({"unsettled_max": 0}, {"prefetch": -1}, {"prefetch_bytes": 0}):
        with pytest.raises(ValueError, match="must"):
            client.subscribe_shared("u", "s", **wrong)  # type: ignore[arg-type]
    assert [topic.name for topic in client.topics()] == ["t"]


def test_acks_of_a_deleted_topic_raise_once(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", ["a", "b"])
    one, two = workers.take_many(2)
    client.delete_topic("t")
    one.ack()
    poll(lambda: workers.consumer.membership.error is not None)
    with pytest.raises(errors.TopicGone):
        two.ack()
    with pytest.raises(errors.TopicGone):
        workers.close()
    workers.close()


def test_an_ack_that_was_not_sent_before_the_end_raises(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put("t", "a")
    [task] = workers.take_many()
    with client._driver.lock:
        assert not task._ack_buffered()
        workers.consumer.membership.fail(errors.TopicGone("gone"))
    with pytest.raises(errors.TopicGone):
        workers.close()


@pytest.mark.parametrize("end", ["delete_topic", "unsubscribe", "again"])
def test_a_subscription_that_ended_is_final(client: oncemq.Client, end: str) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", ["a", "b"])
    task = workers.take()
    assert task is not None
    if end == "delete_topic":
        client.delete_topic("t")
    else:
        client.create_topic("t")
        client.unsubscribe("t", "s")
    if end == "again":
        client.subscribe_shared("t", "s")
    kind = {"delete_topic": errors.TopicGone, "unsubscribe": errors.NotSubscribed, "again": errors.Fenced}[end]
    with pytest.raises(kind):
        workers.take()
    with pytest.raises(kind):
        workers.take()
    with pytest.raises(kind):
        task.ack()
    workers.close()


def test_a_forked_child_can_ack_nothing(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", ["a", "b"])
    task, other = workers.take_many(2)
    # As while acks come.
    workers.consumer.membership.table.must_wake = False
    child = os.fork()
    if not child:
        try:
            task.ack()
        except errors.ForkedError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    task.ack()
    other.ack()
    workers.flush()
    assert lag(client) == 0
