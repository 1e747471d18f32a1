"""The HTTP gateway compared with a bare Starlette route. `make bench-http` runs it.

    python -m benchmarks.http [--seconds S] [--rounds N] [--connections N] [--json]

Messages of 200 bytes, one gateway process, 64 connections. In each round: the route that only reads the body and
answers, single puts, and puts of 1,000 messages as NDJSON; the result is the median of the rounds. Every put is on disk
before it is answered; the route stores nothing. Broker, gateway and load share the cores of this machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oncemq.testing.broker_process import BrokerProcess, free_url
from oncemq.tools.bench.results import quantile

_BATCH = 1000
_VALUE = json.dumps({"order": 7, "text": "x" * 176}).encode()
_PATH = "/v1/topics/bench/messages"


class Load:
    """A kind of request that is sent again as soon as it is answered."""

    def __init__(self, name: str, url: str, media: str, body: bytes, messages: int, folder: Path) -> None:
        self.name = name
        self.rates: list[float] = []
        self.spreads: list[dict[str, float]] = []
        self._messages = messages
        host, _, port = url.removeprefix("http://").partition(":")
        file = folder / f"{media.replace('/', '-')}.body"
        file.write_bytes(body)
        self._arguments = [host, port, _PATH, media, str(file)]

    def run(self, connections: int, seconds: float) -> None:
        command = [sys.executable, "-m", "benchmarks.http_load", *self._arguments, str(connections), str(seconds)]
        found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        self.rates.append(found["requests"] * self._messages / found["seconds"])
        self.spreads.append({key: found[key] for key in ("p50", "p99", "p999")})

    @property
    def rate(self) -> float:
        return quantile(self.rates, 0.5)

    def spread(self) -> str:
        middle = {key: quantile([spread[key] for spread in self.spreads], 0.5) for key in ("p50", "p99", "p999")}
        return " ".join(f"{key} {value:.2f} ms" for key, value in middle.items())


@contextmanager
def process(*arguments: str) -> Iterator[None]:
    running = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        running.terminate()
        running.wait(10)


def wait_for(url: str) -> None:
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"there is no answer at {url}")


def measure(options: argparse.Namespace, folder: Path) -> list[Load]:
    bare, gateway = (free_url("zeromq").replace("tcp:", "http:") for _ in range(2))
    with (
        BrokerProcess(folder / "data") as broker,
        process("benchmarks.http_bare", bare.rpartition(":")[2]),
        process("oncemq", "gateway", "http", "--broker", broker.url, "--http", gateway.removeprefix("http://")),
    ):
        with broker.connect() as client:
            client.subscribe("bench", "reader")
        wait_for(f"{bare}/")
        wait_for(f"{gateway}/v1/health")
        lines = (_VALUE + b"\n") * _BATCH
        loads = [
            Load("bare Starlette route", bare, "application/octet-stream", _VALUE, 1, folder),
            Load("single puts", gateway, "application/octet-stream", _VALUE, 1, folder),
            Load(f"NDJSON puts of {_BATCH}", gateway, "application/x-ndjson", lines, _BATCH, folder),
        ]
        for number in range(options.rounds + 1):
            for load in loads:
                load.run(options.connections, options.seconds if number else 1.0)
                if not number:
                    load.rates.clear()
                    load.spreads.clear()
                print(f"round {number}: {load.name}", file=sys.stderr)
    return loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncemq-bench-", dir=".") as name:
        bare, single, batches = measure(options, Path(name))
    ratios = {"single / bare": single.rate / bare.rate, "NDJSON / single": batches.rate / single.rate}
    if options.json:
        print(json.dumps({load.name: load.rate for load in (bare, single, batches)} | ratios))
        return
    print(f"{len(_VALUE)} bytes a message, {options.connections} connections, puts synced before they are answered")
    for load in (bare, single, batches):
        print(f"  {load.name:24} {load.rate:10,.0f} messages/s   {load.spread()}")
    for what, ratio in ratios.items():
        print(f"  {what:24} {ratio:10.2f}")


if __name__ == "__main__":
    main()
