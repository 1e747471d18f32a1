"""The cases: put and get, 100 bytes and 1 KB, single and batched, 1 and 8 clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain, repeat

from oncemq.bench import ceilings
from oncemq.bench.ground import Drain, Ground
from oncemq.bench.peers import at_once, put_for
from oncemq.bench.rows import Row, beside, quantile
from oncemq.journal.contract import record_bytes
from oncemq.message import encode_batch

Case = Callable[[Ground], list[Row]]

#: Time for each limit, as a share of a case's time.
_CEILING_SHARE = 0.3
_DRAIN_EVERY = 200_000
_CODEC_COUNT = 1000


def _bytes_per_message(size: int, count: int) -> float:
    return record_bytes(len(encode_batch([b"v" * size] * count))) / count


def _put_ceilings(ground: Ground, size: int, risen: dict[str, int], messages: int) -> dict[str, float]:
    """In messages/s. The disk's is taken at the mean size of the groups that the run really had."""
    seconds = ground.seconds * _CEILING_SHARE
    groups = max(1, risen["groups"])
    group_bytes = risen["record_bytes"] // groups
    each = risen["record_bytes"] / max(1, messages)
    batch = max(1, messages // max(1, risen["commands"]))
    return {
        f"write + sync of {group_bytes / 1000:,.0f} KB": ceilings.disk_bytes_per_s(ground.folder, group_bytes, seconds)
        / each,
        "one-way ZeroMQ": ceilings.one_way_bytes_per_s(int(batch * each), seconds) / each,
        "bare encoder": ceilings.encodes_per_s(size, min(batch, 5000), seconds),
    }


def _put_many(ground: Ground, name: str, size: int) -> list[Row]:
    values = [b"v" * size] * (_DRAIN_EVERY * 100 // max(size, 100))

    def feed(client: object) -> int:
        client.put_many("bench.put", values)  # type: ignore[attr-defined]
        return len(values)

    return _feed(ground, name, size, feed)


def _put_nowait(ground: Ground, name: str, size: int) -> list[Row]:
    value = b"v" * size
    count = _DRAIN_EVERY * 100 // max(size, 100)

    def feed(client: object) -> int:
        put_nowait = client.put_nowait  # type: ignore[attr-defined]
        for _ in repeat(None, count):
            put_nowait("bench.put", value)
        client.flush()  # type: ignore[attr-defined]
        return count

    return _feed(ground, name, size, feed)


def _feed(ground: Ground, name: str, size: int, feed: Callable[[object], int]) -> list[Row]:
    messages = 0
    spent = 0.0
    with ground.connect() as client, Drain(client, "bench.put") as drain, ground.counted() as risen:
        while spent < ground.seconds:
            begin = time.perf_counter()
            messages += feed(client)
            spent += time.perf_counter() - begin
            drain.all()
    limits = _put_ceilings(ground, size, risen, messages)
    return [beside(name, messages / spent, "messages/s", limits)]


def _put_single(ground: Ground, name: str, size: int) -> list[Row]:
    with ground.connect() as client, Drain(client, "bench.single"):
        put_for(client, "bench.single", b"v" * size, 0.2)
        times = put_for(client, "bench.single", b"v" * size, ground.seconds)
    seconds = ground.seconds * _CEILING_SHARE
    sync_ms = quantile(ceilings.sync_times(ground.folder, 4096, seconds), 0.5) * 1000
    echo_ms = quantile(ceilings.echo_times(seconds), 0.5) * 1000
    limit = {f"sync {sync_ms:.2f} + ZeroMQ echo {echo_ms:.2f}": sync_ms + echo_ms}
    return [beside(name, quantile(times, 0.5) * 1000, "ms (median)", limit, times)]


def _put_single_8(ground: Ground, name: str, size: int) -> list[Row]:
    with ground.connect() as client, Drain(client, "bench.single"):
        rates = []
        for count in (1, 8):
            results = at_once("putter", count, ground.url, "bench.single", str(size), str(ground.seconds))
            rates.append(sum(len(result["times_s"]) / result["seconds"] for result in results))
        times = list(chain.from_iterable(result["times_s"] for result in results))
    return [beside(name, rates[1], "messages/s", {"one client": rates[0]}, times)]


def _iterate(ground: Ground, name: str, size: int) -> list[Row]:
    """Reading by iteration, acks included."""
    count = int(min(2_000_000, 200_000_000 // size) * min(1.0, ground.seconds / 3))
    with ground.connect() as client:
        client.subscribe("bench.get", "bench")
        client.put_many("bench.get", [b"v" * size] * count)
        begin = time.perf_counter()
        with client.subscription("bench.get", "bench") as subscription:
            for got, _ in enumerate(subscription, 1):
                if got == count:
                    break
        spent = time.perf_counter() - begin
        client.unsubscribe("bench.get", "bench")
    seconds = ground.seconds * _CEILING_SHARE
    limits = {"bare decoder": ceilings.decodes_per_s(size, _CODEC_COUNT, seconds)}
    limits["one-way ZeroMQ"] = ceilings.one_way_bytes_per_s(_CODEC_COUNT * size, seconds) / size
    return [beside(name, count / spent, "messages/s", limits)]


def _get_single(ground: Ground, name: str, size: int) -> list[Row]:
    """One message put and then got, again and again: the way of one message."""
    times = []
    with ground.connect() as client:
        client.subscribe("bench.turn", "bench")
        with client.subscription("bench.turn", "bench") as subscription:
            until = time.perf_counter() + ground.seconds
            while (begin := time.perf_counter()) < until:
                client.put("bench.turn", b"v" * size)
                assert subscription.get(timeout_s=5.0) is not None
                times.append(time.perf_counter() - begin)
        client.unsubscribe("bench.turn", "bench")
    seconds = ground.seconds * _CEILING_SHARE
    echo_ms = quantile(ceilings.echo_times(seconds), 0.5) * 1000
    sync_ms = quantile(ceilings.sync_times(ground.folder, 4096, seconds), 0.5) * 1000
    limit = {f"sync {sync_ms:.2f} + two ZeroMQ echoes": sync_ms + 2 * echo_ms}
    return [beside(name, quantile(times, 0.5) * 1000, "ms (median)", limit, times)]


def _named(measure: Callable[[Ground, str, int], list[Row]], name: str, size: int) -> Case:
    return lambda ground: measure(ground, name, size)


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    kinds: dict[str, Callable[[Ground, str, int], list[Row]]] = {
        "put_many": _put_many,
        "put_nowait": _put_nowait,
        "put one by one": _put_single,
        "put one by one, 8 clients": _put_single_8,
        "iterate with acks": _iterate,
        "put and get one by one": _get_single,
    }
    for kind, measure in kinds.items():
        for size, label in ((100, "100 B"), (1000, "1 KB")):
            name = f"{kind}, {label}"
            found[name] = _named(measure, name, size)
    return found


CASES: dict[str, Case] = _cases()
