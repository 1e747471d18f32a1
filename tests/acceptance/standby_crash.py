"""Brokers on PostgreSQL: one that is killed again and again, and two that take over from each other under load.

    python -m tests.acceptance --only crash-postgres --kills 50
    python -m tests.acceptance --only standby --kills 10

In turn the active broker is killed, and started again as the next standby; or stopped, and woken up when the other one
has taken over: then it must neither write nor answer. How long nobody served is measured, from the kill to the first
put that was answered after it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import oncemq.client.sync
from oncemq.config.settings import ServeSettings
from oncemq.journal.postgres import standby  # noqa: F401 - imported before the first fork
from oncemq.protocol.errors import BrokerAway, OnceMQError, Standby
from oncemq.server.serve import serve
from oncemq.testing.broker_process import free_url
from oncemq.testing.postgres import PostgresServer, url_of
from tests.acceptance import crash
from tests.acceptance.crash import CONSUMERS, PUBLISHERS, CampaignFailed
from tests.acceptance.evidence import Evidence, Verdict
from tests.acceptance.nursery import Child
from tests.acceptance.processes import DEADLINE_S
from tests.acceptance.shim_broker import settings_for

LEASE_MS = 3000
#: As short as it may be: after each kill a lease is waited for.
LEASE_MS_ALONE = 500
PROBED = "probed"
#: Nothing may come here.
DIRECT = "direct"
#: So much load before each kill.
_UP_S = (0.3, 0.8)


@contextmanager
def database() -> Iterator[str]:
    """The URL of an empty one."""
    with PostgresServer() as server, server.database() as dsn:
        yield url_of(dsn)


class PostgresCampaign(crash.Campaign):
    """One broker, whose journal is a database. Its next life waits until the lease of the last one is over."""

    def __init__(self, folder: Path, seed: int, database_url: str, lease_ms: int = LEASE_MS_ALONE) -> None:
        super().__init__(folder, seed)
        self._settings = on_database(self._settings, database_url, lease_ms)

    def _start_broker(self, kind: str) -> Child:
        self._broker = start(self._settings, self._folder / "broker.log")
        return self._broker

    def _choose(self) -> str:
        return "postgres"


def on_database(settings: ServeSettings, database_url: str, lease_ms: int) -> ServeSettings:
    return msgspec.structs.replace(settings, journal=database_url, lease_ms=lease_ms, http="none")


def start(settings: ServeSettings, log_path: Path) -> Child:
    """A broker that says "ready" with each of its turns."""
    return Child(lambda ready: serve(settings, lambda _: ready(), lambda _: None), log_path)


class StandbyCampaign(crash.Campaign):
    def __init__(self, folder: Path, seed: int, database_url: str, lease_ms: int = LEASE_MS) -> None:
        super().__init__(folder, seed)
        #: Seconds without service, of each round, with what was done.
        self.gaps_s: list[tuple[str, float]] = []
        self._urls = [free_url(), free_url()]
        self._url = ",".join(self._urls)
        self._each = [on_database(settings_for(str(folder), url), database_url, lease_ms) for url in self._urls]
        self._lease_s = lease_ms / 1000
        self._brokers: list[Child] = []
        self._struck_s: list[tuple[str, float]] = []

    # The course of it.

    def _set_up(self) -> None:
        self._brokers = [self._start(number) for number in range(2)]
        self._find_active()
        self._subscribe_and_start()
        self._workers["prober"] = Child(self._probe, self._folder / "workers.log")

    def _start(self, number: int) -> Child:
        return start(self._each[number], self._log(number))

    def _log(self, number: int) -> Path:
        return self._folder / f"broker-{number}.log"

    def _kill_once(self) -> None:
        former = self._find_active()
        time.sleep(self._random.uniform(*_UP_S))
        how = ("killed", "stopped")[len(self._struck_s) % 2]
        self._struck_s.append((how, time.monotonic()))
        if how == "killed":
            self._bury(self._brokers[former])
            self._await("served", 1 - former)
            self._brokers[former] = self._start(former)
        else:
            self._brokers[former].signal(signal.SIGSTOP)
            self._await("served", 1 - former)
            self._wake(former)
        self.kills[f"{how} while active"] += 1

    def _wake(self, number: int) -> None:
        """A put waits for it when it goes on, and what clients had sent to it before."""
        broker = self._brokers[number]
        log_bytes = self._log(number).stat().st_size
        while broker.wait_ready(0):
            pass
        direct = Child(lambda _: self._put_directly(number), self._folder / "workers.log")
        broker.signal(signal.SIGCONT)
        # On a machine that stalls for a lease the other one may have lost its place since.
        if direct.wait(2 * DEADLINE_S) != 0 and not broker.wait_ready(0):
            direct.kill()
            raise CampaignFailed(f"broker {number} was replaced, and answered")
        with self._log(number).open("rb") as log:
            log.seek(log_bytes)
            if b"stopped without an answer" not in log.read():
                raise CampaignFailed(f"broker {number} was replaced, and does not say so")

    def _put_directly(self, number: int) -> int:
        try:
            with oncemq.connect(self._urls[number], timeout_s=0.5, tries=4) as client:
                client.put(DIRECT, "by a broker that was replaced", create=True)
        except (BrokerAway, Standby):
            return 0
        return 1

    # Who serves, asked by children: this process has no sockets.

    def _find_active(self) -> int:
        """When one of them serves and the other one waits."""

        def look(_ready: object) -> int:
            while True:
                found = [_role(url) for url in self._urls]
                if found in (["served", Standby.code], [Standby.code, "served"]):
                    return found.index("served")

        return self._looked(look, "one broker serves, and the other one waits")

    def _await(self, role: str, number: int) -> None:
        def look(_ready: object) -> int:
            while _role(self._urls[number]) != role:
                pass
            return 0

        self._looked(look, f"broker {number} is {role}")

    def _looked(self, look: Callable[[object], int], what: str) -> int:
        asked = Child(look, self._folder / "workers.log")
        code = asked.wait(2 * DEADLINE_S)
        if code not in (0, 1):
            asked.kill()
            raise CampaignFailed(f"it did not come about that {what}")
        return code

    def _finish(self) -> Verdict:
        """Nobody is killed any more. A clean stop of the active one hands over, and changes nothing."""
        self._workers["prober"].signal(signal.SIGTERM)
        if self._workers["prober"].wait(2 * DEADLINE_S) != 0:
            raise CampaignFailed("the prober did not come to its end")
        self._end(PUBLISHERS)
        ends = self._ask(crash._ends, "ends")
        self._end(CONSUMERS)
        acked = self._ask(crash._acked, "acked")
        evidence = Evidence(self._folder, {topic: end for topic, end in ends.items() if topic not in (PROBED, DIRECT)})
        self._stop_cleanly(self._brokers[self._find_active()])
        if self._ask(crash._ends, "ends-again") != ends or self._ask(crash._acked, "acked-again") != acked:
            evidence.problems.append("a clean hand-over changed something")
        for plan in CONSUMERS:
            if acked[plan.name] != ends[plan.topics[0]]:
                evidence.problems.append(f"{plan.name}: acked {acked[plan.name]} of {ends[plan.topics[0]]}")
        self._judge_probes(evidence, ends[PROBED])
        return evidence.judge(PUBLISHERS, CONSUMERS)

    def _end_brokers(self) -> None:
        for broker in self._brokers:
            broker.kill()

    # The prober: who notices how long nobody serves.

    def _probe(self, _ready: object) -> int:
        stopping: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
        answers = os.open(self._folder / "probes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with oncemq.connect(self._url, timeout_s=1.0, tries=60) as client:
            while not stopping:
                offset = client.put(PROBED, "is anybody there?", create=True).offset
                os.write(answers, f"{json.dumps([offset, time.monotonic()])}\n".encode())
                time.sleep(0.01)
        return 0

    def _judge_probes(self, evidence: Evidence, end: int) -> None:
        probes = [json.loads(line) for line in (self._folder / "probes").read_text().splitlines()]
        if [offset for offset, _ in probes] != list(range(end)):
            evidence.problems.append(f"{len(probes)} probes were answered, {end} are stored, or not in their order")
        for how, struck_s in self._struck_s:
            # Nobody takes over before half of the lease: what is answered sooner was on its way.
            after_s = [at_s for _, at_s in probes if at_s > struck_s + self._lease_s / 2]
            self.gaps_s.append((how, round(min(after_s, default=struck_s) - struck_s, 2)))


def _role(url: str) -> str:
    try:
        oncemq.connect(url, timeout_s=0.25, tries=1).close()
    except OnceMQError as error:
        return error.code
    return "served"
