"""Further cases in the same run: transactions, shared subscriptions, asyncio and the outbox."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import repeat
from pathlib import Path

import oncemq
import oncemq.aio
from oncemq.tools.bench import peers
from oncemq.tools.bench.environment import Environment
from oncemq.tools.bench.results import Rates, Row, make_row, with_cpu

_BATCH = 1000
_WORKERS = 4
_ROUNDS = 5
#: Bytes that one round moves.
_ROUND_BYTES = 10_000_000


def _put(client: oncemq.Client, topic: str, size: int, count: int, batch: int) -> float:
    """Return the seconds to put `count` messages, `batch` in each call."""
    begin = time.perf_counter()
    for _ in range(count // batch):
        client.put_many(topic, repeat(b"v" * size, batch))
    return time.perf_counter() - begin


def _get(client: oncemq.Client, topic: str, count: int) -> float:
    """Return the seconds to get `count` messages in batches, including acks."""
    begin = time.perf_counter()
    with client.subscription(topic, "bench") as subscription:
        left = count
        while left:
            left -= len(subscription.get_many(_BATCH, timeout_s=30))
    return time.perf_counter() - begin


def _copy(client: oncemq.Client, count: int, *, wait: bool) -> float:
    begin = time.perf_counter()
    with client.subscription("bench.source", "bench", auto_ack=False) as source:
        left = count
        while left:
            with client.transaction(wait=wait) as transaction:
                messages = source.get_many(_BATCH, timeout_s=30)
                transaction.put_many("bench.target", [message.value for message in messages])
                transaction.ack(source)
            left -= len(messages)
        client.flush()
    return time.perf_counter() - begin


def copy(environment: Environment, name: str, size: int) -> list[Row]:
    """Copy from topic to topic in transactions: each committed before the next one, and without waiting. The bounds put
    and get as much without transactions: in batches of the same size, each acknowledged before the next, and as a
    stream."""
    copies, unwaited, in_batches, at_once = Rates(), Rates(), Rates(), Rates()
    count = _ROUND_BYTES // size // _BATCH * _BATCH
    with environment.connect() as client:
        for _ in range(_ROUNDS):
            for topic in ("bench.source", "bench.target"):
                client.subscribe(topic, "bench")
            streamed_s = _put(client, "bench.source", size, count, count)
            copies.add(count, _copy(client, count, wait=True))
            get_s = _get(client, "bench.target", count)
            streamed_s = (streamed_s + _put(client, "bench.source", size, count, count)) / 2
            unwaited.add(count, _copy(client, count, wait=False))
            get_s = (get_s + _get(client, "bench.target", count)) / 2
            at_once.add(count, streamed_s + get_s)
            in_batches.add(count, _put(client, "bench.target", size, count, _BATCH) + get_s)
            for topic in ("bench.source", "bench.target"):
                client.unsubscribe(topic, "bench")
    return [
        make_row(name, copies.rate, "messages/s", {"put + get, same batches": in_batches.rate}),
        make_row(name, copies.rate, "messages/s", {"put + get, streamed": at_once.rate}),
        make_row(f"{name}, no waits", unwaited.rate, "messages/s", {"put + get, streamed": at_once.rate}),
    ]


def share(environment: Environment, name: str, size: int) -> list[Row]:
    """Four worker processes that ack each message individually, compared with one plain iteration."""
    shared, plain = Rates(), Rates()
    count = 2 * _ROUND_BYTES // size
    broker_s = 0.0
    with environment.connect() as client:
        for _ in range(3):
            client.subscribe_shared("bench.tasks", "workers")
            client.subscribe("bench.tasks", "bench")
            client.put_many("bench.tasks", repeat(b"v" * size, count))
            before_s = environment.broker_cpu_s()
            results = peers.run_clients("worker", _WORKERS, environment.url, "bench.tasks", "workers")
            broker_s += environment.broker_cpu_s() - before_s
            done = sum(result["count"] for result in results)
            assert done == count, f"{done} of {count} tasks"
            begin_s, end_s = (f(r[k] for r in results) for f, k in ((min, "begin_s"), (max, "end_s")))
            shared.add(count, end_s - begin_s)
            plain.add(count, _iterate(client, count))
            for subscriber in ("workers", "bench"):
                client.unsubscribe("bench.tasks", subscriber)
    row = make_row(name, shared.rate, "messages/s", {"plain iteration": plain.rate})
    return [with_cpu(row, 3 * count, broker_s, 0.0)]


def _iterate(client: oncemq.Client, count: int) -> float:
    begin = time.perf_counter()
    with client.subscription("bench.tasks", "bench") as subscription:
        for got, _ in enumerate(subscription, 1):
            if got == count:
                break
    return time.perf_counter() - begin


# asyncio.

_AsyncWork = Callable[[oncemq.aio.Client, int, int], Awaitable[None]]
_Work = Callable[[oncemq.Client, int, int], None]


async def _async_put_many(client: oncemq.aio.Client, size: int, count: int) -> None:
    await client.put_many("bench.aio", repeat(b"v" * size, count))


def _put_many(client: oncemq.Client, size: int, count: int) -> None:
    client.put_many("bench.aio", repeat(b"v" * size, count))


async def _async_iterate(client: oncemq.aio.Client, _: int, count: int) -> None:
    async with await client.subscription("bench.aio", "bench") as subscription:
        got = 0
        async for _message in subscription:
            got += 1
            if got == count:
                break


def _block_iterate(client: oncemq.Client, _: int, count: int) -> None:
    with client.subscription("bench.aio", "bench") as subscription:
        for got, _message in enumerate(subscription, 1):
            if got == count:
                break


_AIO: dict[str, tuple[_Work, _AsyncWork]] = {
    "asyncio put_many": (_put_many, _async_put_many),
    "asyncio iterate with acks": (_block_iterate, _async_iterate),
}


def aio(environment: Environment, name: str, size: int) -> list[Row]:
    """Compare the asyncio client with the blocking one, in alternating rounds."""
    block, work = next(found for start, found in _AIO.items() if name.startswith(start))
    return asyncio.run(_aio(environment, name, size, block, work))


async def _aio(environment: Environment, name: str, size: int, block: _Work, work: _AsyncWork) -> list[Row]:
    awaited, blocking = Rates(), Rates()
    count = 2 * _ROUND_BYTES // size
    with environment.connect() as client:
        async with oncemq.aio.connect(environment.url, tries=20) as aio_client:
            for _ in range(_ROUNDS):
                for turn in (blocking, awaited):
                    client.subscribe("bench.aio", "bench")
                    if "iterate" in name:
                        _put_many(client, size, count)
                    begin = time.perf_counter()
                    if turn is blocking:
                        block(client, size, count)
                    else:
                        await work(aio_client, size, count)
                    turn.add(count, time.perf_counter() - begin)
                    client.unsubscribe("bench.aio", "bench")
    return [make_row(name, awaited.rate, "messages/s", {"blocking client": blocking.rate})]


# The outbox.


def outbox(environment: Environment, name: str, size: int) -> list[Row]:
    """Single puts into an outbox. The bound is a sync of the same disk."""
    times: list[float] = []
    syncs: list[float] = []
    value = b"v" * size
    with tempfile.TemporaryDirectory(prefix="oncemq-bench-", dir=".") as folder:
        with environment.connect() as plain:
            plain.subscribe("bench.outbox", "bench")
        with oncemq.connect(environment.url, outbox=Path(folder) / "outbox", tries=20) as client:
            for _ in range(_ROUNDS):
                until = time.perf_counter() + environment.seconds / _ROUNDS
                while (begin := time.perf_counter()) < until:
                    client.put("bench.outbox", value)
                    times.append(time.perf_counter() - begin)
                client.flush()
                syncs += environment.disk.times(1, environment.seconds / 30)
            client.unsubscribe("bench.outbox", "bench")
    times.sort()
    syncs.sort()
    sync_ms = syncs[len(syncs) // 2] * 1000
    limit = {f"sync {sync_ms:.2f}": sync_ms}
    return [make_row(name, times[len(times) // 2] * 1000, "ms (median)", limit, times)]


KINDS: dict[str, Callable[[Environment, str, int], list[Row]]] = {
    "copy in transactions of 1,000": copy,
    "shared, 4 workers, ack each": share,
    **dict.fromkeys(_AIO, aio),
    "put into an outbox one by one": outbox,
}
