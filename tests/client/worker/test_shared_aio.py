"""A shared subscription on an event loop: the promises of the blocking one, and what is its own."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import oncemq
import oncemq.aio
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.client.event_loop import on_event_loop, wait_until


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory:{request.node.name}"


@pytest.mark.parametrize("name", ["SharedSubscription", "Task"])
def test_both_shells_have_the_same_methods_with_the_same_arguments(name: str) -> None:
    blocking, awaited = getattr(oncemq, name), getattr(oncemq.aio, name)
    names = {each for each in dir(blocking) if not each.startswith("_")}
    assert names == {each for each in dir(awaited) if not each.startswith("_")}
    for each in names:
        if inspect.isroutine(getattr(blocking, each)):
            parameters = inspect.signature(getattr(blocking, each)).parameters
            assert parameters == inspect.signature(getattr(awaited, each)).parameters, each


async def lag(client: oncemq.aio.Client) -> int:
    return (await client.subscriptions("t"))[0].lag


@on_event_loop
async def test_tasks_are_shared_and_settled(url: str) -> None:
    async with oncemq.aio.connect(url) as client:
        got: list[int] = []

        async def work() -> None:
            async with await client.subscribe_shared("t", "s", "earliest") as workers:
                async for task in workers.tasks(timeout_s=0.5):
                    got.append(int(task.text))
                    await task.ack()
                    if task.offset % 100 == 0:
                        await asyncio.sleep(0.001)

        await client.subscribe_shared("t", "s")
        await client.put_many("t", map(str, range(5000)))
        await asyncio.gather(*(work() for _ in range(4)))
        assert sorted(got) == list(range(5000))
        assert await lag(client) == 0


@on_event_loop
async def test_acks_go_by_themselves_and_leases_are_kept(url: str) -> None:
    async with oncemq.aio.connect(url) as client, oncemq.aio.connect(url) as watching:
        workers = await client.subscribe_shared("t", "s", lease_s=0.6)
        other = await watching.shared_subscription("t", "s")
        await client.put_many("t", ["a", "b"])
        one, two = await workers.take_many(2)
        await one.ack()

        async def is_acked() -> bool:
            return await lag(watching) == 1

        await wait_until(is_acked)
        assert await other.take(timeout_s=2) is None
        await two.ack(wait=True)
        assert await lag(watching) == 0


@on_event_loop
async def test_a_lost_lease_is_raised(url: str) -> None:
    async with oncemq.aio.connect(url) as client:
        workers = await client.subscribe_shared("t", "s", lease_s=0.6, auto_extend=False)
        other = await client.shared_subscription("t", "s")
        await client.put_many("t", ["a", "b"])
        late = await workers.take_many(2)
        again = await other.take_many(2, timeout_s=10)
        await late[0].ack()
        with pytest.raises(errors.LeaseLost):
            await late[1].ack(wait=True)
        with pytest.raises(errors.LeaseLost) as met:
            await workers.flush()
        assert met.value.offsets == (late[0].offset,)
        for task in again:
            await task.ack(wait=True)


@on_event_loop
async def test_failures_are_handled(url: str) -> None:
    async with oncemq.aio.connect(url) as client:
        workers = await client.subscribe_shared("t", "s", tries_max=2)
        await client.put_many("t", ["a", "b"])
        one, two = await workers.take_many(2)
        async with workers.handling(one):
            pass
        with pytest.raises(ZeroDivisionError):
            async with workers.handling(two):
                1 / 0  # noqa: B018
        again = await workers.take(timeout_s=10)
        assert again is not None
        assert (again.text, again.tries) == ("b", 2)
        await again.extend()
        await again.reject("no use")
        await workers.close()
        assert [letter.reason for letter in await client.dead_letters("t.dead")] == ["no use"]
        assert await client.retry_dead_letters("t.dead") == 1
        assert await lag(client) == 1


@on_event_loop
async def test_a_take_that_is_cancelled_loses_nothing(oncemq_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as client:
        workers = await client.subscribe_shared("t", "s")
        got: list[str] = []
        for index in range(50):
            await client.put("t", str(index))
            for turns in range(5):
                taking = asyncio.ensure_future(workers.take(timeout_s=10))
                for _ in range(turns + index % 7):
                    await asyncio.sleep(0)
                taking.cancel()
                for task in await asyncio.gather(taking, return_exceptions=True):
                    if isinstance(task, oncemq.aio.Task):
                        got.append(task.text)
                        await task.ack()
            while len(got) <= index:
                found = await workers.take(timeout_s=10)
                assert found is not None
                got.append(found.text)
                await found.ack()
        assert got == [str(index) for index in range(50)]
        await workers.flush()
        assert await lag(client) == 0


@on_event_loop
async def test_only_so_many_are_in_a_consumers_hands(url: str) -> None:
    async with oncemq.aio.connect(url) as client:
        workers = await client.subscribe_shared("t", "s", unsettled_max=2)
        await client.put_many("t", map(str, range(5)))
        one, _ = await workers.take_many(5)
        assert await workers.take() is None
        taking = asyncio.ensure_future(workers.take(timeout_s=None))
        await wait_until(lambda: workers.consumer.membership.table.awaits_capacity)
        await one.ack()
        task = await taking
        assert task is not None
        assert task.text == "2"
