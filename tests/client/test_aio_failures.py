"""The asyncio client when tasks are cancelled, brokers go away, and clients are closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

import oncemq.aio
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess, free_url
from tests.client.event_loop import on_event_loop, wait_until
from tests.transports import EACH_TRANSPORT, transport_of


async def cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Cancelled tasks.


@EACH_TRANSPORT
@on_event_loop
async def test_a_cancelled_get_loses_no_message(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        subscription = await client.subscribe("t", "s")
        got: list[bytes] = []
        for index in range(150):
            getting = asyncio.create_task(subscription.get(timeout_s=5))
            putting = asyncio.create_task(client.put("t", b"%d" % index))
            for _ in range(index % 30):
                await asyncio.sleep(0.0001)
            getting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                message = await getting
                assert message is not None
                got.append(message.value)
            await putting
        got += [message.value async for message in subscription.messages(timeout_s=0)]
        assert got == [b"%d" % index for index in range(150)]


@pytest.mark.parametrize("pattern", [False, True], ids=["a topic", "a pattern"])
@on_event_loop
async def test_a_cancelled_get_many_loses_no_message(tmp_path: Path, pattern: bool) -> None:
    async with oncemq.aio.connect(f"memory:{tmp_path.name}") as client:
        if pattern:
            subscription: Any = await client.subscribe_pattern("t.*", "s")
        else:
            subscription = await client.subscribe("t.1", "s")
        got: list[bytes] = []
        for index in range(20):
            # Each is a batch of its own, and there are more of them than are decoded at a time.
            values = [b"%d" % number for number in range(600 * index, 600 * (index + 1))]
            await asyncio.gather(*(client.put("t.1", value, create=True) for value in values))
            getting = asyncio.create_task(subscription.get_many(1000))
            for _ in range(index):
                await asyncio.sleep(0)
            getting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got += [message.value for message in await getting]
        got += [message.value async for message in subscription.messages(timeout_s=0)]
        assert got == [b"%d" % number for number in range(20 * 600)]


@EACH_TRANSPORT
@on_event_loop
async def test_cancelled_puts_leave_the_client_usable(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url, window=4) as client:
        await client.create_topic("t", retain_ms=60_000)
        oncemq_broker.pause()
        tasks = [asyncio.create_task(client.put("t", b"given up %d" % index)) for index in range(10)]
        await wait_until(lambda: len(client._driver._waiting) == 10)
        for task in tasks:
            await cancel(task)
        assert client._driver.core.is_idle
        oncemq_broker.resume()
        receipts = [await client.put("t", b"%d" % index) for index in range(10)]
        stored = [message.value async for message in client.read("t")]
        assert [stored[receipt.offset] for receipt in receipts] == [b"%d" % index for index in range(10)]
        # A put that was sent before it was given up may have happened, once; one that was not sent never does.
        given_up = [value for value in stored if value.startswith(b"given up")]
        assert given_up == [b"given up %d" % index for index in range(len(given_up))]
        assert len(given_up) <= 4


@on_event_loop
async def test_a_cancelled_put_many_gives_up_what_was_not_sent(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url, window=2) as client:
        await client.create_topic("t", retain_ms=60_000)
        oncemq_broker.pause()
        task = asyncio.create_task(client.put_many("t", [b"x"] * 100_000))
        await wait_until(lambda: len(client._driver._waiting) == 1)
        await cancel(task)
        assert (client._producer.in_flight_batches, client._producer.in_flight_bytes) == (0, 0)
        oncemq_broker.resume()
        await client.put("t", b"last")
        stored = [message.value async for message in client.read("t")]
        assert len(stored) < 50_000
        assert stored[-1] == b"last"


@on_event_loop
async def test_a_task_that_stops_waiting_for_a_handle_cancels_no_put(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        await client.create_topic("t")
        oncemq_broker.pause()
        handle = client.put_nowait("t", b"x")
        with pytest.raises(TimeoutError):
            await handle.result(timeout_s=0.01)
        waiting = [asyncio.create_task(handle.result()) for _ in range(3)]
        await wait_until(lambda: len(client._driver._waiting) == 3)
        await cancel(waiting[0])
        with pytest.raises(TimeoutError):
            await client.flush(timeout_s=0)
        oncemq_broker.resume()
        assert [(await task).offset for task in waiting[1:]] == [0, 0]


@on_event_loop
async def test_a_read_that_is_abandoned_leaves_nothing_behind(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        await client.put("t", b"x", create=True)
        reading = client.read("t", follow=True)
        waiting = asyncio.ensure_future(anext(reading))
        await wait_until(lambda: len(client._driver._waiting) == 1)
        await cancel(waiting)
        await client.put("t", b"x")
        assert client._driver.core.is_idle


# Brokers that go away.


@on_event_loop
async def test_a_broker_that_does_not_answer_is_reported() -> None:
    url = free_url()
    with pytest.raises(errors.BrokerAway, match=rf"^no answer from {url} \(2 tries in 0.1 s\)$"):
        await oncemq.aio.connect(url, timeout_s=0.05, tries=2)
    with pytest.raises(errors.SettingInvalid):
        oncemq.aio.connect("nonsense", tries=0)


@EACH_TRANSPORT
@on_event_loop
async def test_a_killed_broker_loses_and_repeats_nothing(oncemq_broker: BrokerProcess) -> None:
    values = [b"%d" % index for index in range(900)]
    loop = asyncio.get_running_loop()
    async with oncemq.aio.connect(oncemq_broker.url, timeout_s=0.5, tries=40) as client:
        subscription = await client.subscribe("t", "s")

        async def produce() -> None:
            for value in values:
                await client.put("t", value)

        producing = asyncio.create_task(produce())
        got: list[bytes] = []
        async for message in subscription.messages(timeout_s=20):
            got.append(message.value)
            if len(got) in (150, 600):
                await loop.run_in_executor(None, oncemq_broker.restart)
            if len(got) == len(values):
                break
        await producing
        assert got == values


@EACH_TRANSPORT
@on_event_loop
async def test_after_the_broker_was_away_the_client_continues(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url, timeout_s=0.1, tries=3) as client:
        subscription = await client.subscribe("t", "s")
        await client.put("t", b"before")
        oncemq_broker.kill()
        with pytest.raises(errors.BrokerAway):
            await client.put("t", b"never")
        with pytest.raises(errors.BrokerAway):
            await subscription.get()
        oncemq_broker.start()
        assert (await client.put("t", b"after")).offset == 1
        assert [message.value async for message in subscription.messages(timeout_s=0)] == [b"before", b"after"]


@EACH_TRANSPORT
@on_event_loop
async def test_the_next_address_is_tried(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect([free_url(transport_of(oncemq_broker)), oncemq_broker.url], timeout_s=0.2) as client:
        assert (await client.put("t", b"x", create=True)).offset == 0


@on_event_loop
async def test_a_failing_transport_fails_every_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with oncemq.aio.connect(f"memory:{tmp_path.name}") as client:
        subscription = await client.subscribe("t", "s")
        waiting = asyncio.create_task(subscription.get(timeout_s=None))
        await wait_until(lambda: len(client._driver._waiting) == 1)

        def fail() -> None:
            raise errors.JournalFailed("the disk is gone")

        with monkeypatch.context() as patches:
            patches.setattr(client._driver.transport, "receive", fail)
            with pytest.raises(errors.JournalFailed, match="the disk is gone"):
                await client.put("t", b"x")
            with pytest.raises(errors.JournalFailed, match="the disk is gone"):
                await waiting


# The end.


@EACH_TRANSPORT
@on_event_loop
async def test_every_wait_ends_when_the_client_is_closed(oncemq_broker: BrokerProcess) -> None:
    client = await oncemq.aio.connect(oncemq_broker.url)
    subscription = await client.subscribe("t", "s")
    getting = asyncio.create_task(subscription.get(timeout_s=None))
    await wait_until(lambda: subscription.consumer.session.get_pending is not None)
    oncemq_broker.pause()
    putting = asyncio.create_task(client.put("t", b"x"))
    await wait_until(lambda: len(client._driver._waiting) == 2)
    await client._driver.run(client._connection.abort())
    for task in (getting, putting):
        with pytest.raises(errors.ClientClosed):
            await task
    oncemq_broker.resume()


@on_event_loop
async def test_a_get_ends_when_the_subscription_is_closed(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        subscription = await client.subscribe("t", "s")
        getting = asyncio.create_task(subscription.get(timeout_s=None))
        await wait_until(lambda: subscription.consumer.session.get_pending is not None)
        await subscription.close()
        with pytest.raises(errors.ClientClosed):
            await getting


@on_event_loop
async def test_closing_sends_what_was_put_and_acks_what_was_delivered(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url, linger_ms=60_000) as client:
        subscription = await client.subscribe("t", "s")
        await client.put("t", b"1")
        assert await subscription.get() is not None
        client.put_nowait("t", b"2")
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        [info] = await client.subscriptions("t")
        assert (info.acked, info.end_offset) == (1, 2)


@on_event_loop
async def test_a_client_whose_close_is_cancelled_is_still_closed(oncemq_broker: BrokerProcess) -> None:
    client = await oncemq.aio.connect(oncemq_broker.url)
    await client.create_topic("t")
    oncemq_broker.pause()
    client.put_nowait("t", b"x")
    closing = asyncio.create_task(client.close())
    await wait_until(lambda: len(client._driver._waiting) == 1)
    await cancel(closing)
    with pytest.raises(errors.ClientClosed):
        await client.put("t", b"x")
    oncemq_broker.resume()


@EACH_TRANSPORT
@on_event_loop
async def test_nothing_is_left_open(oncemq_broker: BrokerProcess) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def use() -> None:
        async with oncemq.aio.connect(oncemq_broker.url, timeout_s=0.1, tries=3) as client:
            subscription = await client.subscribe("t", "s")
            oncemq_broker.pause()
            with pytest.raises(errors.BrokerAway):
                await client.put("t", b"x")
            oncemq_broker.resume()
            await wait_until(lambda: is_answered(subscription.get()))
        with pytest.raises(errors.BrokerAway):
            await oncemq.aio.connect(free_url(), timeout_s=0.01, tries=2)

    async def is_answered(getting: Awaitable[object]) -> bool:
        with contextlib.suppress(errors.BrokerAway):
            await getting
            return True
        return False

    await use()
    before = open_files()
    await use()
    gc.collect()
    # ZeroMQ closes sockets in its own thread.
    await wait_until(lambda: open_files() <= before)


def test_a_loop_that_can_not_watch_sockets_is_refused(oncemq_broker: BrokerProcess) -> None:
    class Proactor(asyncio.SelectorEventLoop):
        def add_reader(self, *_: object) -> None:
            raise NotImplementedError

    async def use() -> None:
        with pytest.raises(errors.SettingInvalid, match=r"Runner\(loop_factory=asyncio.SelectorEventLoop\)"):
            await oncemq.aio.connect(oncemq_broker.url)
        async with oncemq.aio.connect("memory:proactor") as client:
            await client.put("t", b"x", create=True)

    with asyncio.Runner(loop_factory=Proactor) as runner:
        runner.run(use())


@EACH_TRANSPORT
@on_event_loop
async def test_a_forked_child_has_to_connect_again(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        child = os.fork()
        if child == 0:
            try:
                client.put_nowait("t", b"x")
            except errors.ForkedError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@on_event_loop
async def test_an_iteration_that_was_left_continues_where_it_was(oncemq_broker: BrokerProcess) -> None:
    async def first(messages: AsyncIterator[oncemq.Message]) -> str:
        async for message in messages:
            return message.text
        return ""

    async with oncemq.aio.connect(oncemq_broker.url) as client:
        subscription = await client.subscribe("t", "s")
        await client.put_many("t", ["a", "b", "c"])
        assert [await first(subscription.messages(timeout_s=5)) for _ in range(3)] == ["a", "b", "c"]
