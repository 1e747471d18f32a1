"""The command line of the fuzzers: many random inputs for a process of its own, with reports.

A failure prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from oncemq.testing.broker_process import BrokerProcess
from tests.gateways.hosts import ProcessHost


class Fuzzer(Protocol):
    def run(self, count: int) -> None:
        """Send inputs, and check that the process still answers."""

    def close(self) -> None:
        """Close the sockets."""


G = TypeVar("G", bound=ProcessHost)


def main(
    module: str, description: str, make_gateway: Callable[[str], G], make_fuzzer: Callable[[G, int], Fuzzer]
) -> None:
    """Run a campaign against a gateway. `make_gateway` takes the broker's address, `make_fuzzer` the gateway and the
    seed."""
    options = options_of(description)
    with temporary_folder() as folder, BrokerProcess(folder / "data") as broker:
        gateway = make_gateway(broker.url)
        gateway.start()
        try:
            run(module, options, make_fuzzer(gateway, options.seed), lambda: gateway.memory_bytes)
        finally:
            gateway.kill()


def options_of(description: str) -> argparse.Namespace:
    """Return `inputs` and `seed` of the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    return parser.parse_args()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="oncemq-fuzz-") as folder:
        yield Path(folder)


def run(module: str, options: argparse.Namespace, fuzzer: Fuzzer, memory_bytes: Callable[[], int]) -> None:
    """Send all inputs. `memory_bytes` returns the memory of the process that gets them."""
    try:
        began_s = time.monotonic()
        for tenth in range(1, 11):
            fuzzer.run(options.inputs // 10)
            rate = tenth * options.inputs / 10 / (time.monotonic() - began_s)
            sys.stdout.write(f"{tenth * 10} %: {memory_bytes() >> 10} KiB, {rate:.0f} inputs/s\n")
            sys.stdout.flush()
    except BaseException:
        sys.stderr.write(f"python -m {module} --inputs {options.inputs} --seed {options.seed}\n")
        raise
    finally:
        fuzzer.close()
