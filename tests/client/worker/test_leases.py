"""Leases of a shared subscription: kept while they are needed, and never lost in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import oncemq
from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Extend, Operation, Settle
from oncemq.protocol.frames import decode_response
from oncemq.protocol.replies import TakeReply

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


def first_of(workers: oncemq.SharedSubscription, timeout_s: float = 10) -> oncemq.Task:
    task = workers.take(timeout_s=timeout_s)
    assert task is not None
    return task


def poll(is_true: Callable[[], bool], within_s: float = 10.0) -> None:
    event = threading.Event()
    for _ in range(int(within_s / 0.01)):
        if is_true():
            return
        event.wait(0.01)
    raise AssertionError(f"not within {within_s} s")


def lag(client: oncemq.Client) -> int:
    return client.subscriptions("t")[0].lag


# Keeping them.


def test_a_long_task_is_not_delivered_again(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=0.6)
    client.put("t", "x")
    task = first_of(workers)
    assert connect().shared_subscription("t", "s").take(timeout_s=2) is None
    task.ack(wait=True)
    assert (lag(client), workers.lost, task.is_lost) == (0, 0, False)


def test_what_is_at_hand_is_kept_too(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=0.6, prefetch=20)
    client.put_many("t", map(str, range(10)))
    task = first_of(workers)
    assert connect().shared_subscription("t", "s").take(timeout_s=2) is None
    got = [task, *(first_of(workers) for _ in range(9))]
    assert [task.tries for task in got] == [1] * 10
    for task in got:
        task.ack()
    workers.flush()
    assert lag(client) == 0


def test_a_task_that_takes_too_long_is_delivered_again_after_all(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=0.1, extend_max_s=0.3)
    client.put("t", "x")
    task = first_of(workers)
    again = first_of(connect().shared_subscription("t", "s"))
    assert (again.text, again.tries) == ("x", 2)
    with pytest.raises(errors.LeaseLost):
        task.ack(wait=True)


def test_a_lease_is_extended_by_hand(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=0.5, auto_extend=False)
    client.put("t", "x")
    task = first_of(workers)
    other = connect().shared_subscription("t", "s")
    for _ in range(10):
        assert other.take(timeout_s=0.1) is None
        task.extend()
    assert first_of(other).tries == 2
    with pytest.raises(errors.LeaseLost):
        task.extend()
    assert task.is_lost
    with pytest.raises(errors.LeaseLost):
        task.ack()


# Losing them.


def lose(client: oncemq.Client, other: oncemq.SharedSubscription) -> oncemq.Task:
    """Nothing of a client happens until its lease went to another one."""
    with client._driver.lock:
        return first_of(other)


def test_an_ack_that_came_too_late_is_raised_by_the_next_call(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=0.6, auto_extend=False)
    client.put_many("t", ["a", "b"])
    late = workers.take_many(2)
    again = connect().shared_subscription("t", "s").take_many(2, timeout_s=10)
    for task in late:
        task.ack()
    with pytest.raises(errors.LeaseLost, match="offset 0") as met:
        workers.flush()
    assert met.value.offsets == tuple(task.offset for task in late)
    assert workers.lost == 2
    assert [task.is_lost for task in late] == [True, True]
    workers.flush()
    for task in again:
        task.ack(wait=True)


@pytest.mark.parametrize("call", ["take", "take_many", "tasks", "close"])
def test_every_call_tells_it(connect: Connect, call: str) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=0.1, auto_extend=False)
    client.put("t", "x")
    task = first_of(workers)
    other = connect().shared_subscription("t", "s")
    first_of(other)
    task.ack()
    poll(lambda: bool(workers.lost))
    calls = {"tasks": lambda: next(workers.tasks())}
    with pytest.raises(errors.LeaseLost):
        calls.get(call, getattr(workers, call))()


def test_an_ack_that_waits_tells_it_itself_and_nobody_else(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=0.1, auto_extend=False)
    client.put("t", "x")
    task = first_of(workers)
    first_of(connect().shared_subscription("t", "s"))
    for _ in range(2):
        with pytest.raises(errors.LeaseLost) as met:
            task.ack(wait=True)
        assert met.value.offsets == (0,)
    workers.flush()
    assert workers.lost == 1


def test_a_lease_that_is_known_to_be_lost_takes_no_ack_and_hands_out_nothing(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=0.2, prefetch=10)
    client.put_many("t", map(str, range(5)))
    task = first_of(workers)
    lose(client, connect().shared_subscription("t", "s"))
    poll(lambda: task.is_lost)
    with pytest.raises(errors.LeaseLost):
        task.ack()
    assert workers.lost == 1
    # Its lease expires: the other consumer keeps only what it took.
    assert first_of(workers).tries == 2


def test_a_late_ack_does_not_hide_a_good_one_of_the_same_message(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s", lease_s=0.5, auto_extend=False)
    client.put("t", "x")
    late = first_of(workers)
    again = first_of(workers)
    assert (late.offset, again.offset, again.tries) == (0, 0, 2)
    with client._driver.lock:
        late.lease.done.append(0)
        late.lease.is_over = True
        workers.consumer.membership.table.expired.append(late.lease)
        again.lease.done.append(0)
    with pytest.raises(errors.LeaseLost):
        workers.flush()
    assert (late.is_lost, again.is_lost, workers.lost, lag(client)) == (True, False, 1, 0)


def test_giving_back_what_is_lost_harms_nobody(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=0.6, auto_extend=False)
    client.put("t", "x")
    task = first_of(workers)
    again = first_of(connect().shared_subscription("t", "s"))
    task.nack()
    workers.flush()
    assert workers.lost == 0
    again.ack(wait=True)
    assert lag(client) == 0


def test_a_seek_moves_the_consumers_too(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", ["a", "b", "c"])
    task = first_of(workers)
    client.seek("t", "s", "earliest")
    again = workers.take()
    assert again is not None
    assert (again.text, again.tries, task.is_lost) == ("a", 1, True)
    with pytest.raises(errors.LeaseLost):
        task.ack()
    client.seek("t", "s", "earliest")
    again.ack()
    with pytest.raises(errors.LeaseLost):
        workers.flush()
    got = []
    for task in workers.tasks(timeout_s=0):
        got.append((task.text, task.tries))
        task.ack()
    assert got == [("a", 1), ("b", 1), ("c", 1)]
    workers.flush()
    assert lag(client) == 0


def test_a_consumer_that_waits_continues_after_a_seek(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.create_topic("t", retain_ms=3_600_000)
    client.put("t", "a")
    first_of(workers).ack(wait=True)
    got: list[oncemq.Task] = []
    waiting = threading.Thread(target=lambda: got.append(first_of(workers, 30)))
    waiting.start()
    poll(lambda: workers.consumer.takes.pending is not None)
    client.seek("t", "s", "earliest")
    waiting.join(20)
    assert [task.text for task in got] == ["a"]


# Threads.


def test_a_pool_of_threads_settles_what_one_thread_takes(connect: Connect) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", unsettled_max=50)
    client.put_many("t", map(str, range(5000)))
    worked: list[str] = []

    def work(task: oncemq.Task) -> None:
        worked.append(task.text)
        if task.tries == 1 and task.offset % 7 == 0:
            task.nack()
        else:
            task.ack()

    with ThreadPoolExecutor(8) as pool:
        for task in workers.tasks(timeout_s=1):
            pool.submit(work, task)
    workers.flush()
    again = [index for index in range(5000) if index % 7 == 0]
    assert sorted(map(int, worked)) == sorted([*range(5000), *again])
    assert (lag(client), workers.lost) == (0, 0)


def test_acks_that_wait_may_come_from_any_thread(client: oncemq.Client) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", map(str, range(200)))
    tasks = workers.take_many(200)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda task: task.ack(wait=True), tasks))
        list(pool.map(lambda task: task.ack(), tasks))
    assert lag(client) == 0


# What the network does.


class Deaf:
    """Drop the replies to the first takes of a client."""

    def __init__(self, client: oncemq.Client, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        transport = client._driver.transport
        self.receive = transport.receive
        self.count = count
        self.missed: list[TakeReply] = []
        monkeypatch.setattr(transport, "receive", self.hear)

    def hear(self) -> object:
        frames = self.receive()
        if frames is not None and len(self.missed) < self.count:
            [reply, *_] = decode_response(frames)[0].replies
            if isinstance(reply, TakeReply):
                self.missed.append(reply)
                return None
        return frames


def test_a_take_whose_answer_was_lost_brings_the_same_messages(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(timeout_s=0.2)
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", map(str, range(10)))
    deaf = Deaf(client, monkeypatch, 3)
    tasks = workers.take_many(10)
    assert [(task.text, task.tries) for task in tasks] == [(str(index), 1) for index in range(10)]
    assert {reply.token for reply in deaf.missed} == {tasks[0].token}


def test_a_take_that_was_abandoned_brings_the_same_messages_later(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(timeout_s=0.1, tries=2)
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", map(str, range(10)))
    with monkeypatch.context() as patching:
        patching.setattr(client._driver.transport, "receive", lambda: None)
        with pytest.raises(errors.BrokerAway):
            workers.take_many(10)
    tasks = workers.take_many(10)
    assert [(task.text, task.tries) for task in tasks] == [(str(index), 1) for index in range(10)]


def test_a_payload_that_arrives_damaged_is_asked_for_again(
    client: oncemq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put("t", "x")
    take_arrived = workers.consumer.takes._on_reply
    damaged: list[Pending] = []

    def damaging(pending: Pending) -> None:
        if len(damaged) < 2:
            damaged.append(pending)
            pending.payloads = [bytes(payload)[:-1] + b"!" for payload in pending.payloads]
        take_arrived(pending)

    monkeypatch.setattr(workers.consumer.takes, "_on_reply", damaging)
    task = first_of(workers)
    assert (task.text, task.tries, len(damaged)) == ("x", 1, 2)
    task.ack(wait=True)
    assert lag(client) == 0


def test_settles_are_few_and_their_ranges_too(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = client.subscribe_shared("t", "s")
    client.put_many("t", map(str, range(3000)))
    submit = client._driver.core.submit
    settles: list[Settle] = []

    def noting(operation: Operation, *args: object, **options: object) -> Pending:
        if isinstance(operation, Settle):
            settles.append(operation)
        return submit(operation, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(client._driver.core, "submit", noting)
    for task in workers.take_many(1000):
        task.ack()
    workers.flush()
    assert sum(len(settle.done) for settle in settles) <= 50
    assert sum(count for settle in settles for _, _, count in settle.done) == 1000


def test_an_extension_that_fails_is_tried_again(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect()
    workers = client.subscribe_shared("t", "s", lease_s=1)
    client.put("t", "x")
    task = first_of(workers)
    ask = client._driver.core.ask
    failed: list[Extend] = []

    def failing(command: Command, **options: float) -> Pending:
        if isinstance(command, Extend) and len(failed) < 3:
            failed.append(command)
            pending = Pending(0.0)
            pending.fail(errors.BrokerAway("for a moment"))
            return pending
        return ask(command, None, **options)

    monkeypatch.setattr(client._driver.core, "ask", failing)
    assert connect().shared_subscription("t", "s").take(timeout_s=2.5) is None
    assert len(failed) == 3
    task.ack(wait=True)
    assert lag(client) == 0
