"""The cases: put and get, 100 bytes and 1 KB, single and batched, 1, 8 and 64 clients; the rest is in other_cases.py
and idle_connections.py.

A case alternates with the measurement of its upper bounds, so that all are measured under the same conditions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import NamedTuple

from oncemq.client.sync import Client
from oncemq.protocol.batch import encode_batch
from oncemq.tools.bench import idle_connections, other_cases
from oncemq.tools.bench.environment import Drain, Environment
from oncemq.tools.bench.peers import put_for, run_clients
from oncemq.tools.bench.results import Rates, Row, make_row, quantile, with_cpu
from oncemq.tools.bench.upper_bounds import decode, encode, repeat_for

Case = Callable[[Environment], list[Row]]

_ROUNDS = 10
#: Bytes that one round puts before they are acked.
_ROUND_BYTES = 20_000_000
_CODEC_COUNT = 1000
#: The bytes that a subscription fetches at once.
_REPLY_BYTES = 1024 * 1024


# Throughput of puts.


def _many(client: Client, size: int) -> int:
    count = _ROUND_BYTES // size
    client.put_many("bench.put", repeat(b"v" * size, count))
    return count


def _nowait(client: Client, size: int) -> int:
    value = b"v" * size
    count = _ROUND_BYTES // size
    put_nowait = client.put_nowait
    for _ in repeat(None, count):
        put_nowait("bench.put", value)
    client.flush()
    return count


class _PutBounds:
    """Upper bounds in messages/s; for the disk, with the mean size of the groups of the run."""

    def __init__(self, environment: Environment, size: int) -> None:
        self._environment = environment
        self._size = size
        self._disk, self._wire, self._codec = Rates(), Rates(), Rates()
        self._group_bytes: list[int] = []

    def measure(self, before: dict[str, int], after: dict[str, int], messages: int, seconds: float) -> None:
        increase = {name: after[name] - before.get(name, 0) for name in after}
        stored_bytes = increase["record_bytes"]
        group_bytes = stored_bytes // max(1, increase["groups"])
        batch = max(1, messages // max(1, increase["commands"]))
        each_bytes = stored_bytes / messages
        self._group_bytes.append(group_bytes)
        times = self._environment.disk.times(group_bytes, seconds)
        self._disk.add(len(times) * group_bytes / each_bytes, sum(times))
        sent, spent = self._environment.sink.one_way(int(batch * each_bytes), seconds)
        self._wire.add(sent * batch, spent)
        self._codec.add(*repeat_for(encode(self._size, batch), seconds))

    def rates(self) -> dict[str, float]:
        group_kb = quantile(self._group_bytes, 0.5) / 1000
        return {
            f"write + sync of {group_kb:,.0f} KB": self._disk.rate,
            f"one-way {self._environment.transport.value}": self._wire.rate,
            "bare encoder": self._codec.rate,
        }


def _put_rate(feed: Callable[[Client, int], int]) -> Callable[[Environment, str, int], list[Row]]:
    def measure(environment: Environment, name: str, size: int) -> list[Row]:
        puts, limits = Rates(), _PutBounds(environment, size)
        until = time.perf_counter() + environment.seconds
        rounds = 0
        with environment.connect() as client, Drain(client, "bench.put") as drain:
            while time.perf_counter() < until or rounds < _ROUNDS:
                rounds += 1
                before = client.health().counters
                begin = time.perf_counter()
                messages = feed(client, size)
                puts.add(messages, time.perf_counter() - begin)
                limits.measure(before, client.health().counters, messages, environment.seconds / 30)
                drain.all()
        return [make_row(name, puts.rate, "messages/s", limits.rates())]

    return measure


# One by one.


_Round = Callable[[Client, bytes, float], list[float]]


def _one_by_one(run_round: _Round, echoes: int) -> Callable[[Environment, str, int], list[Row]]:
    """Measure the median of single calls. The bound is a sync plus this many round trips."""

    def measure(environment: Environment, name: str, size: int) -> list[Row]:
        times: list[float] = []
        syncs: list[float] = []
        trips: list[float] = []
        value = b"v" * size
        broker_s = client_s = 0.0
        with environment.connect() as client, Drain(client, "bench.single") as drain:
            run_round(client, value, 0.2)
            for _ in range(_ROUNDS):
                drain.all()
                broker_before_s, client_before_s = environment.broker_cpu_s(), time.process_time()
                times += run_round(client, value, environment.seconds / _ROUNDS)
                client_s += time.process_time() - client_before_s
                broker_s += environment.broker_cpu_s() - broker_before_s
                syncs += environment.disk.times(1, environment.seconds / 30)
                trips += environment.echo.echo_times(environment.seconds / 30)
        sync_ms, echo_ms = quantile(syncs, 0.5) * 1000, quantile(trips, 0.5) * 1000
        limit_name = f"sync {sync_ms:.2f} + {echoes} {environment.transport.value} echo {echo_ms:.2f}"
        limit = {limit_name: sync_ms + echoes * echo_ms}
        row = make_row(name, quantile(times, 0.5) * 1000, "ms (median)", limit, times)
        return [with_cpu(row, len(times), broker_s, client_s)]

    return measure


def _put_round(client: Client, value: bytes, seconds: float) -> list[float]:
    return put_for(client, "bench.single", value, seconds)


def _put_get_round(client: Client, value: bytes, seconds: float) -> list[float]:
    """Put one message and get it, repeatedly: the latency from end to end."""
    times = []
    client.subscribe("bench.turn", "bench")
    with client.subscription("bench.turn", "bench") as subscription:
        until = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < until:
            client.put("bench.turn", value)
            assert subscription.get(timeout_s=5.0) is not None
            times.append(time.perf_counter() - begin)
    client.unsubscribe("bench.turn", "bench")
    return times


#: Number of clients → processes, and connections of each. An interpreter for each of 64 clients would measure the
#: scheduler.
_SPREAD = {1: (1, 1), 8: (8, 1), 64: (8, 8)}


def _clients(count: int) -> Callable[[Environment, str, int], list[Row]]:
    """Single puts of many clients at the same time, compared with one client."""

    def measure(environment: Environment, name: str, size: int) -> list[Row]:
        one, many = Rates(), Rates()
        times: list[float] = []
        broker_s = client_s = 0.0
        with environment.connect() as client, Drain(client, "bench.single") as drain:
            for _ in range(3):
                drain.all()
                one.add(_put_at_once(environment, 1, size).rate, 1.0)
                drain.all()
                found = _put_at_once(environment, count, size)
                many.add(found.rate, 1.0)
                times += found.times_s
                broker_s += found.broker_s
                client_s += found.client_s
        row = make_row(name, many.rate, "messages/s", {"one client": one.rate}, times)
        return [with_cpu(row, len(times), broker_s, client_s)]

    return measure


class _Puts(NamedTuple):
    """What several clients did at the same time."""

    rate: float
    times_s: list[float]
    broker_s: float
    client_s: float


def _put_at_once(environment: Environment, clients: int, size: int) -> _Puts:
    processes, connections = _SPREAD[clients]
    before_s = 0.0

    def on_go() -> None:
        nonlocal before_s
        before_s = environment.broker_cpu_s()

    arguments = (environment.url, "bench.single", str(size), str(environment.seconds / 3), str(connections))
    results = run_clients("putter", processes, *arguments, on_go=on_go)
    return _Puts(
        rate=sum(len(result["times_s"]) / result["seconds"] for result in results),
        times_s=list(chain.from_iterable(result["times_s"] for result in results)),
        broker_s=environment.broker_cpu_s() - before_s,
        client_s=sum(result["cpu_s"] for result in results),
    )


# Reading.


def _iterate(environment: Environment, name: str, size: int) -> list[Row]:
    """Read by iteration, including acks."""
    reads, decoder, wire, cache = Rates(), Rates(), Rates(), Rates()
    count = 5 * _ROUND_BYTES // size
    # Headers of messages are a part of the bytes.
    each_bytes = len(encode_batch([b"v" * size] * _CODEC_COUNT)) / _CODEC_COUNT
    bound_s = environment.seconds / 20
    with environment.connect() as client:
        for _ in range(max(3, int(environment.seconds))):
            client.subscribe("bench.get", "bench")
            client.put_many("bench.get", repeat(b"v" * size, count))
            begin = time.perf_counter()
            with client.subscription("bench.get", "bench") as subscription:
                for got, _ in enumerate(subscription, 1):
                    if got == count:
                        break
            reads.add(count, time.perf_counter() - begin)
            client.unsubscribe("bench.get", "bench")
            decoder.add(*repeat_for(decode(size, _CODEC_COUNT), bound_s))
            sent, spent_s = environment.sink.one_way(_REPLY_BYTES, bound_s)
            wire.add(sent * _REPLY_BYTES / each_bytes, spent_s)
            read_bytes, spent_s = environment.disk.read_cached(_REPLY_BYTES, bound_s)
            cache.add(read_bytes / each_bytes, spent_s)
    limits = {
        "bare decoder": decoder.rate,
        f"one-way {environment.transport.value}": wire.rate,
        "page cache": cache.rate,
    }
    return [make_row(name, reads.rate, "messages/s", limits)]


_KINDS: dict[str, Callable[[Environment, str, int], list[Row]]] = {
    "put_many": _put_rate(_many),
    "put_nowait": _put_rate(_nowait),
    "put one by one": _one_by_one(_put_round, echoes=1),
    "put one by one, 8 clients": _clients(8),
    "put one by one, 64 clients": _clients(64),
    "iterate with acks": _iterate,
    "put and get one by one": _one_by_one(_put_get_round, echoes=2),
    **other_cases.KINDS,
}


def _named(measure: Callable[[Environment, str, int], list[Row]], name: str, size: int) -> Case:
    return lambda environment: measure(environment, name, size)


CASES: dict[str, Case] = {
    f"{kind}, {label}": _named(measure, f"{kind}, {label}", size)
    for kind, measure in _KINDS.items()
    for size, label in ((100, "100 B"), (1000, "1 KB"))
} | {idle_connections.NAME: idle_connections.measure}
