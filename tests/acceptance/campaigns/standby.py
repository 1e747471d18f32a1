"""Brokers on PostgreSQL: one that is killed again and again, and two that take over from each other under load.

    python -m tests.acceptance --only crash-postgres --kills 50
    python -m tests.acceptance --only standby --kills 10

The active broker is alternately killed, and restarted as the next standby; or stopped, and continued after the other
one has taken over: it must then neither write nor answer. The time without service is measured, from the kill to the
first put that was answered after it.
"""

from __future__ import annotations

import json
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
from oncemq.tools.faults.event_log import EventLog, read_events
from oncemq.tools.faults.processes import ForkedServer, StopRequest
from tests.acceptance.campaigns import broker
from tests.acceptance.campaigns.addresses import Turns
from tests.acceptance.campaigns.report import CampaignFailed
from tests.acceptance.faults.broker import settings_for
from tests.acceptance.processes import DEADLINE_S
from tests.transports import TRANSPORTS

LEASE_MS = 3000
#: The shortest lease that is allowed: each restart waits for the end of a lease.
LEASE_MS_ALONE = 500
PROBED = "probed"
#: The topic that only a replaced broker is asked to write to.
DIRECT = "direct"
#: Time under load before each kill.
_UP_S = (0.3, 0.8)


@contextmanager
def database() -> Iterator[str]:
    """The URL of an empty database."""
    with PostgresServer() as server, server.database() as dsn:
        yield url_of(dsn)


def _on_database(settings: ServeSettings, database_url: str, lease_ms: int) -> ServeSettings:
    return msgspec.structs.replace(settings, journal=database_url, lease_ms=lease_ms, http="none")


def _start(settings: ServeSettings, log_path: Path) -> ForkedServer:
    """Start a broker, which reports "ready" each time that it becomes active."""
    return ForkedServer(lambda ready: serve(settings, lambda _: ready(), lambda _: None), log_path)


class PostgresCampaign(broker.BrokerCampaign):
    """One broker with a journal in a database. A restarted broker waits until the lease of the killed one is over."""

    def __init__(self, folder: Path, seed: int, database_url: str, lease_ms: int = LEASE_MS_ALONE) -> None:
        super().__init__(folder, seed, "crash-postgres")
        self._settings = _on_database(self._settings, database_url, lease_ms)

    def _start_broker(self, kind: str) -> ForkedServer:
        self._broker = _start(self._settings, self._folder / "broker.log")
        return self._broker

    def _choose_kind(self) -> str:
        return "postgres"


class StandbyCampaign(broker.BrokerCampaign):
    """Two brokers that take over from each other."""

    def __init__(self, folder: Path, seed: int, database_url: str, lease_ms: int = LEASE_MS) -> None:
        super().__init__(folder, seed, "standby")
        #: What was done to the active broker, and the seconds without service after it.
        self.gaps_s: list[tuple[str, float]] = []
        streams, zeromqs = ([free_url(transport) for _ in range(2)] for transport in TRANSPORTS)
        self._urls = Turns([",".join(streams), ",".join(zeromqs)], self._random)
        #: Of each broker, over the stream transport.
        self._each_url = streams
        self._each = [
            _on_database(settings_for(str(folder), *urls), database_url, lease_ms)
            for urls in zip(streams, zeromqs, strict=True)
        ]
        self._lease_s = lease_ms / 1000
        self._pair: list[ForkedServer] = []
        self._faults_s: list[tuple[str, float]] = []

    def _brokers(self) -> list[ForkedServer]:
        return self._pair

    def _set_up(self) -> None:
        self._pair = [_start(self._each[number], self._log_path(number)) for number in range(2)]
        self._find_active()
        self._subscribe_and_start()
        url = self._urls.next()
        self._clients["prober"] = self._fork(lambda: self._probe(url))

    def _log_path(self, number: int) -> Path:
        return self._folder / f"broker-{number}.log"

    def _kill_once(self) -> None:
        former = self._find_active()
        time.sleep(self._random.uniform(*_UP_S))
        how = ("killed", "stopped")[len(self._faults_s) % 2]
        self._faults_s.append((how, time.monotonic()))
        if how == "killed":
            self._kill(self._pair[former])
            self._await_role("served", 1 - former)
            self._pair[former] = _start(self._each[former], self._log_path(former))
        else:
            self._pair[former].signal(signal.SIGSTOP)
            self._await_role("served", 1 - former)
            self._continue_replaced(former)
        self._broker_kills[f"{how} while active"] += 1

    def _continue_replaced(self, number: int) -> None:
        """Continue a stopped broker that was replaced. A put waits for it, and requests from before the stop."""
        replaced = self._pair[number]
        log_bytes = self._log_path(number).stat().st_size
        while replaced.wait_ready(0):
            pass
        direct = self._fork(lambda: self._put_directly(number))
        replaced.signal(signal.SIGCONT)
        # On a machine that stalls for the time of a lease, the other one may have lost its lease since.
        if direct.wait(2 * DEADLINE_S) != 0 and not replaced.wait_ready(0):
            direct.kill()
            raise CampaignFailed(f"broker {number} was replaced, and answered")
        with self._log_path(number).open("rb") as log:
            log.seek(log_bytes)
            if b"stopped before replying" not in log.read():
                raise CampaignFailed(f"broker {number} was replaced, and did not log it")

    def _put_directly(self, number: int) -> int:
        try:
            with oncemq.connect(self._each_url[number], timeout_s=0.5, tries=4) as client:
                client.put(DIRECT, "by a broker that was replaced", create=True)
        except (BrokerAway, Standby):
            return 0
        return 1

    # Which broker is active is asked by child processes: this process has no sockets.

    def _find_active(self) -> int:
        """Wait until one broker is active and the other one waits. Returns the number of the active one."""

        def look() -> int:
            while True:
                found = [_role(url) for url in self._each_url]
                if found in (["served", Standby.code], [Standby.code, "served"]):
                    return found.index("served")

        return self._look(look, "one broker is active, and the other one waits")

    def _await_role(self, role: str, number: int) -> None:
        def look() -> int:
            while _role(self._each_url[number]) != role:
                pass
            return 0

        self._look(look, f"broker {number} is {role}")

    def _look(self, look: Callable[[], int], what: str) -> int:
        process = self._fork(look)
        code = process.wait(2 * DEADLINE_S)
        if code not in (0, 1):
            process.kill()
            raise CampaignFailed(f"this did not happen: {what}")
        return code

    def _finish(self) -> None:
        """Without further kills. A clean stop of the active broker hands over, and changes nothing."""
        self._clients["prober"].terminate()
        if self._clients["prober"].wait(2 * DEADLINE_S) != 0:
            raise CampaignFailed("the prober did not end")
        self._end_clients(broker.PUBLISHERS)
        ends = self._ask(broker._ends, "ends")
        self._end_clients(broker.CONSUMERS)
        acked = self._ask(broker._acked, "acked")
        self._stop_cleanly(self._pair[self._find_active()])
        self._check(ends, acked)
        self._check_probes(ends[PROBED])

    # The prober measures how long no broker is active.

    def _probe(self, url: str) -> int:
        stop = StopRequest()
        answers = EventLog(self._folder / "probes.events")
        with oncemq.connect(url, timeout_s=1.0, tries=60) as client:
            while not stop.is_set:
                offset = client.put(PROBED, "is a broker active?", create=True).offset
                answers.write((json.dumps([offset, time.monotonic()]),))
                time.sleep(0.01)
        return 0

    def _check_probes(self, end: int) -> None:
        probes = [json.loads(entry[0]) for entry in read_events(self._folder / "probes.events")]
        if [offset for offset, _ in probes] != list(range(end)):
            self.report.problems.append(f"{len(probes)} probes were answered, {end} are stored, or out of order")
        for how, fault_s in self._faults_s:
            # No broker takes over before half of the lease: earlier answers were already being sent.
            after_s = [at_s for _, at_s in probes if at_s > fault_s + self._lease_s / 2]
            self.gaps_s.append((how, round(min(after_s, default=fault_s) - fault_s, 2)))


def _role(url: str) -> str:
    try:
        oncemq.connect(url, timeout_s=0.25, tries=1).close()
    except OnceMQError as error:
        return error.code
    return "served"
