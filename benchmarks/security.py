"""What users and encryption cost: the same broker with and without them.

    python -m benchmarks.security [--rounds N] [--seconds S] [--json]

Brokers, all on files with a sync before each reply, one client each:

    open        stream transport, no users
    users       stream transport, a token and rules
    TLS         stream transport, users and TLS
    ZeroMQ      no users
    CURVE       ZeroMQ, users and CURVE

Each round measures all brokers in turn, in many short slices, so that what else happens on the machine affects all of
them alike. The result is the median of the rounds. `open` is measured twice in each round: the difference between two
measurements of the same broker shows how exact the figures are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from oncemq.auth import certificates
from oncemq.auth.tokens import new_token, stored
from oncemq.client.sync import Client
from oncemq.net import curve
from oncemq.testing.broker_process import WITHOUT_CREDENTIALS, BrokerProcess, Transport

#: Users may cost this much of single puts and of put_many.
COST_MAX = 0.03
_SLICE_S = 0.1
_RULES = 'allow = ["all bench.#", "describe #", "read other.*", "write other.*"]'


class Case(msgspec.Struct, frozen=True):
    name: str
    #: Of the rate of "open" for stream connections, and of "ZeroMQ" for the others.
    baseline: str
    transport: Transport
    has_users: bool = False
    is_encrypted: bool = False


CASES = (
    Case("open", "open", "stream"),
    Case("users", "open", "stream", True),
    Case("TLS", "open", "stream", True, True),
    Case("ZeroMQ", "ZeroMQ", "zeromq"),
    Case("CURVE", "ZeroMQ", "zeromq", True, True),
)


@contextmanager
def running(case: Case, folder: Path) -> Iterator[Client]:
    """Run a broker, and connect a client."""
    data = folder / case.name
    (data / "keys").mkdir(parents=True)
    options: dict[str, Any] = dict(WITHOUT_CREDENTIALS)
    if case.is_encrypted and case.transport == "stream":
        certificates.create_authority(data / "keys")
        certificates.create_server(data / "keys", ["127.0.0.1"])
        options["tls"] = str(data / "keys" / "ca.pem")
    if case.is_encrypted and case.transport == "zeromq":
        server, own = curve.generate(), curve.generate()
        curve.save(server, data / "keys")
        options |= {"curve_server": server.public, "curve_public": own.public, "curve_secret": own.secret}
        _write_users(data / "auth.toml", f'curve = "{own.public}"')
    elif case.has_users:
        token = new_token()
        options["token"] = token
        _write_users(data / "auth.toml", f'tokens = ["{stored(token)}"]')
    broker = BrokerProcess(data, transport=case.transport, client_options=options)
    broker.start()
    try:
        with broker.connect() as client:
            yield client
    finally:
        broker.stop()


def _write_users(path: Path, credential: str) -> None:
    path.touch(mode=0o600)
    path.write_text(f"[user.bench]\n{credential}\n{_RULES}\n")


class Load(msgspec.Struct, frozen=True):
    name: str
    value_bytes: int
    #: Messages per call.
    batch: int

    def run(self, client: Client, seconds: float) -> tuple[int, float]:
        """Return how many messages were put, and how many seconds it took."""
        topic = f"bench.{self.batch}.{self.value_bytes}"
        value = b"x" * self.value_bytes
        put: Callable[[], object]
        if self.batch == 1:
            put = lambda: client.put(topic, value)  # noqa: E731
        else:
            values = [value] * self.batch
            put = lambda: client.put_many(topic, values)  # noqa: E731
        count, began_s = 0, time.perf_counter()
        until_s = began_s + seconds
        while time.perf_counter() < until_s:
            put()
            count += self.batch
        return count, time.perf_counter() - began_s


LOADS = (
    Load("put one by one, 100 B", 100, 1),
    Load("put_many, 100 B", 100, 10_000),
    Load("put_many, 100 KB", 100_000, 20),
)


def measure(rounds: int, seconds: float, say: Callable[[str], None]) -> dict[str, dict[str, list[float]]]:
    """Return load → case → messages per second of each round."""
    found: dict[str, dict[str, list[float]]] = {load.name: {} for load in LOADS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".")))
        clients = {case.name: stack.enter_context(running(case, folder)) for case in CASES}
        for client in clients.values():
            for load in LOADS:
                # Retention by size: everything is stored, and the disk does not fill.
                client.create_topic(f"bench.{load.batch}.{load.value_bytes}", retain_bytes=64 * 2**20)
                load.run(client, seconds / 4)
        for number in range(rounds):
            for load in LOADS:
                for name, rate in _rates(load, clients, seconds).items():
                    found[load.name].setdefault(name, []).append(rate)
            say(f"round {number + 1} of {rounds}")
    return found


def _rates(load: Load, clients: dict[str, Client], seconds: float) -> dict[str, float]:
    """Return the rate of each broker, measured in turns."""
    names = ["open", "users", "TLS", "open again", "ZeroMQ", "CURVE"]
    counts, spent_s = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    for turn in range(max(1, round(seconds / _SLICE_S))):
        # Each of them follows each other one equally often.
        for name in names if turn % 2 else reversed(names):
            count, took_s = load.run(clients[name.removesuffix(" again")], _SLICE_S)
            counts[name] += count
            spent_s[name] += took_s
    return {name: counts[name] / spent_s[name] for name in names}


def report(found: dict[str, dict[str, list[float]]]) -> list[str]:
    lines = ["| load | open | users | TLS | ZeroMQ | CURVE |", "| --- | --- | --- | --- | --- | --- |"]
    for load, cases in found.items():
        cells = []
        for case in CASES:
            ratio = ratio_of(cases, case)
            text = f"{statistics.median(cases[case.name]):,.0f}/s"
            cells.append(text if case.name == case.baseline else f"{text} ({ratio:.2f} of {case.baseline})")
        lines.append(f"| {load} | {' | '.join(cells)} |")
    return lines


def ratio_of(cases: dict[str, list[float]], case: Case) -> float:
    """Return the median of the ratios within the same round."""
    return statistics.median(own / base for own, base in zip(cases[case.name], cases[case.baseline], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.rounds, arguments.seconds, lambda text: print(text, file=sys.stderr))
    if arguments.json:
        print(json.dumps(found))
        return
    print("\n".join(report(found)))
    for load, cases in found.items():
        noise = ratio_of({"a": cases["open"], "b": cases["open again"]}, Case("b", "a", "stream"))
        cost = 1 - ratio_of(cases, CASES[1])
        verdict = "within" if cost <= COST_MAX else "above"
        print(f"{load}: users cost {cost:.1%}, {verdict} {COST_MAX:.0%}; the same broker again: {1 - noise:+.1%}")


if __name__ == "__main__":
    main()
