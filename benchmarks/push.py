"""The live feed of the push gateway, compared with gets and with a bare XPUB socket.

    python -m benchmarks.push [--messages N] [--subscribers N] [--processes N] [--rounds N] [--json]

Messages of 100 bytes to 50 subscribers. Each round measures:

    plain     SUB sockets at the gateway, one message at a time
    batches   SUB sockets at the gateway, batches as they are stored (as `client.push` does)
    local     the same over a Unix socket (`push.feed_listen`), everything else over TCP
    getters   the native client, one subscription for each, in batches
    puts      no subscribers: the cost of storing alone, per message as if it were delivered
    sends     SUB sockets at an XPUB socket that sends such batches from memory at the same pace: the minimum for a
              feed over TCP
    bare      the same with single messages, as fast as possible

There are three loads: *flood*, 1,000 messages per put, as fast as the broker stores them; *live*, 100 messages per put,
100 puts per second; and *single* messages, 200 per second. CPU is the sum of broker and gateway per delivered message,
including puts. The result is the median of the rounds. All processes share the cores of this machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from benchmarks import push_load
from oncemq.gateways.push.gateway import PushGateway
from oncemq.gateways.push.settings import PushSettings
from oncemq.server.gateway_process import run
from oncemq.testing.broker_process import BrokerProcess, free_url
from oncemq.tools.bench.results import quantile

_VALUE_BYTES = 100
_spawn = multiprocessing.get_context("spawn")

_FEEDS = ("plain", "batches", "local")
#: Targets: CPU of the feed compared with the getters, and its rate compared with the bare socket.
CPU_RATIO_MAX = 0.2
RATE_RATIO_MIN = 0.5


class Load(msgspec.Struct, frozen=True):
    name: str
    messages: int
    #: Messages per put.
    batch: int
    #: Time between two puts.
    pause_s: float


class RoundResult(msgspec.Struct):
    delivered: int
    seconds: float
    cpu_us: float

    @property
    def rate(self) -> float:
        return self.delivered / self.seconds


@contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[tuple[Connection, int]]:
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield ours, process.pid
    finally:
        process.terminate()
        process.join(10)


def serve_gateway(url: str, settings: PushSettings, parent: Connection) -> None:
    run([PushGateway(url, settings)], parent.send)


def cpu_s(*pids: int) -> float:
    """Return user and system time of all their threads."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path, load: Load) -> None:
        self._options = options
        self._folder = folder
        self._load = load

    def feed(self, listen: Callable[..., None], *, local: bool = False) -> RoundResult:
        feed = f"ipc://{self._folder}/feed" if local else free_url("zeromq")
        settings = PushSettings(publish=free_url("zeromq"), feed=feed, acks=free_url("zeromq"))
        with self._broker() as broker, child(serve_gateway, broker.url, settings) as (gateway, gateway_pid):
            gateway.recv()
            arguments = [(settings.feed, count, self._load.messages) for count in self._shares()]
            return self._measure(listen, arguments, lambda: self._put(broker), broker.pid, gateway_pid)

    def getters(self) -> RoundResult:
        first, arguments = 0, []
        with self._broker() as broker:
            for count in self._shares():
                arguments.append((broker.url, range(first, first + count), self._load.messages))
                first += count
            return self._measure(push_load.get_batches, arguments, lambda: self._put(broker), broker.pid)

    def puts(self) -> RoundResult:
        with self._broker() as broker:
            began_cpu_s, began_s = cpu_s(broker.pid), time.monotonic()
            self._put(broker)
            delivered = self._load.messages * self._options.subscribers
            used_us = (cpu_s(broker.pid) - began_cpu_s) * 1e6
            return RoundResult(delivered, time.monotonic() - began_s, used_us / delivered)

    def bare(self) -> RoundResult:
        return self._barely(push_load.feed_barely, push_load.listen_plainly)

    def sends(self) -> RoundResult:
        load = self._load
        return self._barely(push_load.feed_batches_barely, push_load.listen_to_batches, load.batch, load.pause_s)

    def _barely(self, feed: Callable[..., None], listen: Callable[..., None], *options: object) -> RoundResult:
        address = free_url("zeromq")
        with child(feed, address, _VALUE_BYTES, self._load.messages, *options) as (feeder, pid):
            feeder.recv()
            arguments = [(address, count, self._load.messages) for count in self._shares()]
            return self._measure(listen, arguments, lambda: feeder.send("go"), pid)

    @contextmanager
    def _broker(self) -> Iterator[BrokerProcess]:
        with (
            tempfile.TemporaryDirectory(dir=self._folder) as name,
            BrokerProcess(Path(name) / "data", "--log-level=warning") as broker,
        ):
            yield broker

    def _shares(self) -> list[int]:
        whole, rest = divmod(self._options.subscribers, self._options.processes)
        return [whole + (index < rest) for index in range(self._options.processes)]

    def _put(self, broker: BrokerProcess) -> None:
        load = self._load
        values = [b"x" * _VALUE_BYTES] * load.batch
        with broker.connect() as client:
            next_s = time.monotonic()
            for _ in range(load.messages // load.batch):
                client.put_many(push_load.TOPIC, values, create=True)
                next_s += load.pause_s
                time.sleep(max(0.0, next_s - time.monotonic()) if load.pause_s else 0.0)

    def _measure(
        self, target: Callable[..., None], arguments: Sequence[tuple[object, ...]], go: Callable[[], None], *pids: int
    ) -> RoundResult:
        with ExitStack() as stack:
            pipes = [stack.enter_context(child(target, *each))[0] for each in arguments]
            for pipe in pipes:
                pipe.recv()
            began_cpu_s, began_s = cpu_s(*pids), time.monotonic()
            go()
            found: list[tuple[int, float]] = [pipe.recv() for pipe in pipes]
            used_s = cpu_s(*pids) - began_cpu_s
        delivered = sum(count for count, _ in found)
        return RoundResult(delivered, max(at_s for _, at_s in found) - began_s, used_s * 1e6 / max(1, delivered))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000, help="of the flood; live half, single a fiftieth")
    parser.add_argument("--subscribers", type=int, default=50)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loads = [
        Load("flood", options.messages, 1000, 0.0),
        Load("live", options.messages // 2, 100, 0.01),
        Load("single", options.messages // 50, 1, 0.005),
    ]
    with tempfile.TemporaryDirectory(prefix="oncemq-bench-", dir=".") as name:
        found = {load.name: measure(Bench(options, Path(name), load), load, options.rounds) for load in loads}
    if options.json:
        print(json.dumps({name: msgspec.to_builtins(results) | ratios(results) for name, results in found.items()}))
        return
    print(f"{_VALUE_BYTES} bytes a message, {options.subscribers} subscribers in {options.processes} processes")
    for load in loads:
        report(load, options.subscribers, found[load.name])


def measure(bench: Bench, load: Load, rounds: int) -> dict[str, list[RoundResult]]:
    cases: dict[str, Callable[[], RoundResult]] = {
        "plain": lambda: bench.feed(push_load.listen_plainly),
        "batches": lambda: bench.feed(push_load.listen_to_batches),
        "local": lambda: bench.feed(push_load.listen_to_batches, local=True),
        "getters": bench.getters,
        "puts": bench.puts,
        "sends": bench.sends,
    }
    if not load.pause_s:
        cases["bare"] = bench.bare
    results: dict[str, list[RoundResult]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            result = case()
            results[name].append(result)
            print(f"{load.name} {number}: {name} {result.rate:,.0f}/s {result.cpu_us:.3f} us", file=sys.stderr)
    return results


def rate_of(results: list[RoundResult]) -> float:
    return quantile([result.rate for result in results], 0.5)


def cpu_of(results: list[RoundResult]) -> float:
    return quantile([result.cpu_us for result in results], 0.5)


def ratios(results: dict[str, list[RoundResult]]) -> dict[str, float]:
    found = {f"CPU {name} / getters": cpu_of(results[name]) / cpu_of(results["getters"]) for name in _FEEDS}
    puts_us = cpu_of(results["puts"])
    for name in _FEEDS:
        alone = (cpu_of(results[name]) - puts_us) / (cpu_of(results["getters"]) - puts_us)
        found[f"CPU {name} / getters, without puts"] = alone
    found["CPU sends / getters, without puts"] = cpu_of(results["sends"]) / (cpu_of(results["getters"]) - puts_us)
    if "bare" in results:
        for name in _FEEDS:
            found[f"rate {name} / bare"] = rate_of(results[name]) / rate_of(results["bare"])
    return found


def report(load: Load, subscribers: int, results: dict[str, list[RoundResult]]) -> None:
    print(f"{load.name}: {load.messages:,} messages")
    for name, each in results.items():
        share = min(result.delivered for result in each) / (load.messages * subscribers)
        figures = f"{rate_of(each):12,.0f} delivered/s   {cpu_of(each):7.3f} us of CPU each   {share:7.2%} delivered"
        print(f"  {name:8} {figures}")
    for what, ratio in ratios(results).items():
        aim = f"<= {CPU_RATIO_MAX}" if what.startswith("CPU") else f">= {RATE_RATIO_MIN}"
        print(f"  {what:36} {ratio:6.2f}   (aim {aim})")


if __name__ == "__main__":
    main()
