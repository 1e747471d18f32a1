"""The asyncio client with real brokers: the guarantees of the blocking one, and what is specific to asyncio."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oncemq
import oncemq.aio
from oncemq.client.options import ConnectOptions, ConnectSettings
from oncemq.client.staging import AsyncStager, Stager
from oncemq.config import endpoints
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.client.event_loop import on_event_loop, wait_until
from tests.forking import ForkedBroker


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = ForkedBroker(tmp_path_factory.mktemp("broker") / "data")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(params=["memory", "file", "zeromq"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "zeromq":
        return request.getfixturevalue("process").url  # type: ignore[no-any-return]
    return f"memory:{tmp_path.name}" if request.param == "memory" else f"file:{tmp_path}/data"


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return request.node.name[:200].replace("[", " ").replace("]", "")  # type: ignore[no-any-return]


# The same operations.

#: A database's connection is for one thread, and nothing in asyncio waits for it.
ONLY_FOR_THREADS = {"inbox"}

PAIRS = [
    (oncemq.Client, oncemq.aio.Client),
    (oncemq.OutboxClient, oncemq.aio.OutboxClient),
    (oncemq.Transaction, oncemq.aio.Transaction),
    (Stager, AsyncStager),
    (oncemq.Subscription, oncemq.aio.Subscription),
    (oncemq.PatternSubscription, oncemq.aio.PatternSubscription),
    (oncemq.SharedSubscription, oncemq.aio.SharedSubscription),
    (oncemq.Task, oncemq.aio.Task),
    (oncemq.Handle, oncemq.aio.Handle),
]


def public_names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_both_clients_have_the_same_methods_with_the_same_arguments(blocking: type, awaited: type) -> None:
    names = public_names(blocking) - ONLY_FOR_THREADS
    assert names == public_names(awaited)
    for name in names:
        method = getattr(blocking, name)
        if inspect.isroutine(method):
            parameters = inspect.signature(method).parameters
            assert parameters == inspect.signature(getattr(awaited, name)).parameters, name


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_both_clients_describe_a_method_with_the_same_words(blocking: type, awaited: type) -> None:
    for name in public_names(blocking) - ONLY_FOR_THREADS:
        described, expected = (inspect.getdoc(getattr(kind, name)) or "" for kind in (awaited, blocking))
        assert described.startswith(expected.partition("\n\n")[0].rstrip(".")), name


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS[:2])
def test_a_method_is_in_the_class_that_a_user_holds_with_its_result_and_its_documentation(
    blocking: type, awaited: type
) -> None:
    asynchronous = {
        "Transaction": "AsyncTransaction",
        "Stager": "AsyncStager",
        "Iterator[Message]": "AsyncIterator[Message]",
        "Iterator[pyarrow.Table]": "AsyncIterator[pyarrow.Table]",
    }
    for name, method in vars(blocking).items():
        if name.startswith("_") or name in ONLY_FOR_THREADS or not inspect.isfunction(method):
            continue
        other = vars(awaited)[name]
        result = method.__annotations__["return"]
        assert other.__annotations__["return"] == asynchronous.get(result, result), name
        assert "\n" in (method.__doc__ or "") or name == "close", f"{name} has no example"
    inherited = {name for base in oncemq.Client.__mro__[1:] for name in vars(base) if not name.startswith("_")}
    assert not inherited


def test_what_may_wait_is_awaited() -> None:
    for shell in (awaited for _, awaited in PAIRS):
        methods = {name for name, _ in inspect.getmembers(shell, inspect.isfunction) if not name.startswith("_")}
        plain = {name for name in methods if not inspect.iscoroutinefunction(getattr(shell, name))}
        collected = {"put", "put_many", "ack"} if shell is oncemq.aio.Transaction else set()
        known = {
            "put_nowait",
            "read",
            "read_frames",
            "messages",
            "frames",
            "objects",
            "tasks",
            "handling",
            "done",
            "transaction",
        }
        known |= {"stager"}
        assert plain <= known | collected, shell


def test_options_are_those_that_are_documented() -> None:
    fields = {field.name for field in msgspec.structs.fields(ConnectSettings)} - {"urls", "outbox", "credentials"}
    options = fields | {"context", *endpoints.CREDENTIALS}
    assert set(ConnectOptions.__annotations__) == options
    assert all(f"`{name}`" in (oncemq.connect.__doc__ or "") for name in options)


@pytest.mark.parametrize("connect", [oncemq.connect, oncemq.aio.connect])
def test_an_option_that_does_not_exist_is_refused_with_those_that_do(connect: Any) -> None:
    with pytest.raises(TypeError, match=r"no option 'timeout_ms'; it has .*timeout_s"):
        connect("memory:", timeout_ms=1000)


@on_event_loop
async def test_a_message_that_was_put_is_delivered(url: str, topic: str) -> None:
    async with oncemq.aio.connect(url) as client:
        subscription = await client.subscribe(topic, "kitchen")
        assert subscription.created
        receipt = await client.put(topic, "one pizza", key="table-7", headers={"source": "web"})
        assert (receipt.topic, receipt.offset, receipt.count, receipt.subscriptions) == (topic, 0, 1, 1)
        message = await subscription.get(timeout_s=5)
        assert message is not None
        assert (message.value, message.key, dict(message.headers)) == (b"one pizza", b"table-7", {"source": b"web"})
        assert await subscription.get() is None


@on_event_loop
async def test_many_messages_are_delivered_once_and_in_order(url: str, topic: str) -> None:
    values = [b"%d" % index for index in range(30_000)]
    async with oncemq.aio.connect(url) as client:
        subscription = await client.subscribe(topic, "s", prefetch_bytes=64 * 1024)
        await client.put_many(topic, values[:10_000])
        for value in values[10_000:20_000]:
            client.put_nowait(topic, value)
        await client.flush()
        await client.put_many(topic, values[20_000:])
        assert [message.value async for message in client.read(topic, 29_990, stop=29_995)] == values[29_990:29_995]
        first = [message.value for message in await subscription.get_many(5)]
        rest = [message.value async for message in subscription.messages(timeout_s=0)]
        assert first + rest == values


@on_event_loop
async def test_a_message_is_acked_when_the_next_one_is_requested(url: str, topic: str) -> None:
    async with oncemq.aio.connect(url) as client:
        async with await client.subscribe(topic, "s") as subscription:
            await client.put_many(topic, ["a", "b", "c", "d"])
            async for message in subscription:
                if message.text == "c":
                    break
        assert (await client.subscriptions(topic))[0].acked == 3
        other = await client.subscription(topic, "s", auto_ack=False)
        last = await other.get()
        assert last is not None
        await other.ack(last, wait=True)
        assert (await client.subscriptions(topic))[0].lag == 0


@on_event_loop
async def test_administration_works(url: str, topic: str) -> None:
    client = await oncemq.aio.connect(url, label="operator")
    assert await client.create_topic(topic, retain_ms=60_000)
    assert not await client.create_topic(topic, retain_ms=60_000)
    assert topic in [info.name for info in await client.topics()]
    assert client.name in [session.name for session in await client.sessions()]
    assert await client.stage(f"stage {topic}", topic, f"writer {topic}", 1, ["a", "b"]) == 2
    assert (await client.commit(f"writer {topic}", 1, topic, [(f"stage {topic}", 2)])).count == 2
    assert await client.registry_set(topic, "key", b"value") == 1
    assert [entry.key for entry in await client.registry_list(topic)] == ["key"]
    assert (await client.health()).topics >= 1
    assert client.batch_bytes_max > 0
    await client.delete_topic(topic)
    with pytest.raises(errors.TopicUnknown):
        await client.put(topic, b"x")
    await client.close()
    with pytest.raises(errors.ClientClosed):
        await client.put(topic, b"x")
    await client.close()


# Handles.


@on_event_loop
async def test_a_handle_has_the_offset_of_its_message(url: str, topic: str) -> None:
    async with oncemq.aio.connect(url, batch_messages=10, linger_ms=60_000) as client:
        await client.create_topic(topic, retain_ms=60_000)
        handles = [client.put_nowait(topic, b"%d" % index) for index in range(25)]
        assert not handles[-1].done()
        assert [(await handle.result()).offset for handle in handles] == list(range(25))
        assert all(handle.done() for handle in handles)


@on_event_loop
async def test_a_lingering_batch_is_sent_automatically(url: str, topic: str) -> None:
    async with oncemq.aio.connect(url, linger_ms=1) as client:
        await client.create_topic(topic)
        for _ in range(3):
            await wait_until(client.put_nowait(topic, b"alone").done)


@on_event_loop
async def test_flush_raises_the_first_error_that_no_handle_has_raised(url: str, topic: str) -> None:
    async with oncemq.aio.connect(url) as client:
        told = client.put_nowait(topic, b"x")
        with pytest.raises(errors.TopicUnknown):
            await told.result()
        await client.flush()
        client.put_nowait(topic, b"x")
        with pytest.raises(errors.TopicUnknown):
            await client.flush()
        await client.flush()


@on_event_loop
async def test_a_flush_waits_for_what_another_task_puts_at_its_last_moment(process: BrokerProcess, topic: str) -> None:
    async with oncemq.aio.connect(process.url, batch_messages=1) as client:
        await client.create_topic(topic, retain_ms=10**9)
        await client.put(topic, b"0")
        handle = client.put_nowait(topic, b"1")

        async def follow() -> None:
            await handle.result()
            client.put_nowait(topic, b"2")

        await asyncio.gather(follow(), client.flush())
        assert [message.value async for message in client.read(topic)] == [b"0", b"1", b"2"]


@on_event_loop
async def test_a_full_buffer_refuses_a_message_and_accepts_it_later(process: BrokerProcess, topic: str) -> None:
    values = [b"%4d" % index * 100 for index in range(1000)]
    async with oncemq.aio.connect(process.url, batch_messages=3, buffer_bytes=5000) as client:
        await client.create_topic(topic, retain_ms=60_000)
        refusals = 0
        for value in values:
            try:
                client.put_nowait(topic, value)
            except errors.Overloaded:
                refusals += 1
                await client.flush()
                client.put_nowait(topic, value)
        await client.flush()
        assert refusals
        assert [message.value async for message in client.read(topic)] == values


# Many tasks.


@on_event_loop
async def test_tasks_share_a_client_and_each_gets_its_own_reply(url: str, topic: str) -> None:
    async with oncemq.aio.connect(url) as client:
        await client.create_topic(topic, retain_ms=60_000)
        receipts = await asyncio.gather(*(client.put(topic, b"%d" % index) for index in range(300)))
        stored = {message.offset: message.value async for message in client.read(topic)}
        assert [stored[receipt.offset] for receipt in receipts] == [b"%d" % index for index in range(300)]


@on_event_loop
async def test_commands_of_one_loop_iteration_share_requests(url: str, topic: str) -> None:
    async with oncemq.aio.connect(url) as client:
        await client.create_topic(topic)
        sent: list[object] = []
        real = client._driver.transport.send
        client._driver.transport.send = lambda frames: (sent.append(frames), real(frames))[1]  # type: ignore[func-returns-value, method-assign]
        await asyncio.gather(*(client.put(topic, b"x") for _ in range(64)))
        assert len(sent) <= 8


@on_event_loop
async def test_a_consumer_is_woken_by_another_task(url: str, topic: str) -> None:
    async with oncemq.aio.connect(url) as client:
        subscription = await client.subscribe(topic, "s")
        waiting = asyncio.create_task(subscription.get(timeout_s=None))
        await wait_until(lambda: subscription.consumer.session.get_pending is not None)
        await client.put(topic, b"at last")
        message = await waiting
        assert message is not None
        assert message.value == b"at last"


@on_event_loop
async def test_an_embedded_broker_serves_threads_and_the_loop(tmp_path: Path) -> None:
    url = f"memory:{tmp_path.name}"
    async with oncemq.aio.connect(url) as client:
        subscription = await client.subscribe("t", "s")
        waiting = asyncio.create_task(subscription.get(timeout_s=None))
        await wait_until(lambda: subscription.consumer.session.get_pending is not None)

        def put() -> None:
            with oncemq.connect(url) as other:
                other.put("t", b"from a thread")

        thread = threading.Thread(target=put)
        thread.start()
        message = await waiting
        assert message is not None
        assert message.value == b"from a thread"
        await wait_until(lambda: not thread.is_alive())


@on_event_loop
async def test_an_embedded_broker_is_polled_often_while_a_task_waits(tmp_path: Path) -> None:
    async with oncemq.aio.connect(f"memory:{tmp_path.name}") as client:
        subscription = await client.subscribe("t", "s")
        looks = 0
        real = client._driver.transport.receive

        def look() -> Any:
            nonlocal looks
            looks += 1
            return real()

        client._driver.transport.receive = look  # type: ignore[method-assign]
        waiting = asyncio.create_task(subscription.get(timeout_s=None))
        await wait_until(lambda: looks > 100)
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize("work", ["iterate", "put_many", "get", "put"])
@on_event_loop
async def test_busy_tasks_let_others_run(url: str, topic: str, work: str) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with oncemq.aio.connect(url) as client:
        subscription = await client.subscribe(topic, "s")
        await client.put_many(topic, [b"x" * 100] * 20_000)
        other = asyncio.create_task(count())
        if work == "iterate":
            assert len([None async for _ in subscription.messages(timeout_s=0)]) == 20_000
        elif work == "get":
            for _ in range(20_000):
                await subscription.get()
        elif work == "put_many":
            await client.put_many(topic, [b"x" * 100] * 20_000)
        else:
            for _ in range(10):
                await client.put(topic, b"x")
        assert turns >= 4
        other.cancel()
        await asyncio.wait([other])


@on_event_loop
async def test_overlapping_calls_of_two_tasks_are_an_error(url: str, topic: str) -> None:
    async with oncemq.aio.connect(url) as client:
        subscription = await client.subscribe(topic, "s")
        waiting = asyncio.create_task(subscription.get(timeout_s=20))
        await wait_until(lambda: subscription.consumer.session.get_pending is not None)
        for call in (subscription.get, subscription.get_many, subscription.ack, subscription.messages().__anext__):
            with pytest.raises(RuntimeError, match="another task"):
                await call()
        await client.put(topic, "at last")
        message = await waiting
        assert message is not None
        assert message.text == "at last"
