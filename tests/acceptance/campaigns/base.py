"""The base of campaigns against clients: a broker, processes around it, and how they die.

A client process dies at a named point (kill_points.py), at a system call (system_calls.py) or at a random moment. The
broker dies too, sometimes, and runs on a plain disk or on one that loses unsynced data (lossy_disk.py). Dead processes
are restarted with the files that they left. At the end nothing is killed any more, and everything is checked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import oncemq.client.sync
from oncemq.tools.faults.processes import ForkedProcess, ForkedServer, StopRequest
from tests.acceptance.campaigns.addresses import Turns, listen_everywhere
from tests.acceptance.campaigns.progress import Progress
from tests.acceptance.campaigns.report import CampaignFailed, CampaignReport
from tests.acceptance.faults import system_calls
from tests.acceptance.faults.broker import run_broker, settings_for
from tests.acceptance.faults.kill_points import BROKER, KillPoint, Step, points_of
from tests.acceptance.processes import DEADLINE_S

#: The exit code of a process that was fenced.
FENCED = 3
#: Options of clients that retry quickly and never give up.
PATIENT: dict[str, Any] = {"timeout_s": 0.1, "tries": 600}
#: Options of clients that give up at once: it is then unknown whether the operation happened.
IMPATIENT: dict[str, Any] = {"timeout_s": 0.04, "tries": 1}
AUDITOR = "auditor"
AT_ANY_MOMENT = "at any moment"

#: Shares of deaths at a named point and at a system call.
_POINT_SHARE = 0.55
_CALL_SHARE = 0.1
#: Maximum lifetime of a client that dies at a random moment, at a point, at a system call.
_LIFE_S = 0.15
_POINT_S = 0.4
_CALL_S = 0.8
_NTH_MAX = 40
_BROKER_KILL_SHARE = 0.15
_BROKER_STOP_SHARE = 0.2
_STOP_S = 0.12
_BROKER_POINT_SHARE = 0.4
_POLL_S = 0.002


class Death(msgspec.Struct, frozen=True):
    """How a client process dies."""

    point: KillPoint
    #: After this time it is killed in any case.
    limit_s: float
    #: A system call, and which call of a thread.
    call: str = ""
    nth: int = 0


class Campaign(ABC):
    """Kills client processes. Subclasses define the clients and what is checked."""

    def __init__(
        self,
        name: str,
        folder: Path,
        seed: int,
        *,
        steps: tuple[Step, ...] = (),
        own_points: tuple[str, ...] = (),
        calls: tuple[str, ...] = system_calls.CLIENT,
    ) -> None:
        """`steps`, `own_points`, `calls`: where clients die: functions of the product, points in test code, calls."""
        self.name = name
        self.own_points = own_points
        self._steps = steps
        self._call_names = calls
        self.folder = folder
        self.random = Random(seed)
        self.report = CampaignReport(campaign=name)
        self.kills: Counter[str] = Counter()
        self.broker_kills: Counter[str] = Counter()
        self.processes: dict[str, ForkedProcess] = {}
        listen = listen_everywhere(folder)
        self.urls = Turns(listen, self.random)
        self._settings = settings_for(str(folder / "data"), *listen)
        self._tracers: dict[str, subprocess.Popen[bytes]] = {}
        self._broker_point = KillPoint()
        self._points: list[str] = []
        self._calls: list[str] = []
        self._nth = self.random.randrange(_NTH_MAX)
        self._broker_points: list[str] = []

    def run(self, kills: int, progress: Progress) -> CampaignReport:
        """Kill clients, then check everything."""
        began_s = time.monotonic()
        try:
            self.start_broker(mortal=False)
            self.set_up()
            while self.kills.total() < kills:
                self.kill_once()
                progress.show(min(kills, self.kills.total()), f"{self.name}, {self.broker_kills.total()} brokers too")
            self.restart_broker_for_good()
            self.finish()
        except CampaignFailed as failure:
            self.report.problems.append(str(failure))
        finally:
            for process in self.processes.values():
                process.kill()
            for tracer in self._tracers.values():
                tracer.wait()
        self.report.kills = dict(sorted(self.kills.items()))
        self.report.broker_kills = dict(sorted(self.broker_kills.items()))
        self.report.more |= self.urls.counts
        self.report.seconds = round(time.monotonic() - began_s, 1)
        return self.report

    @abstractmethod
    def set_up(self) -> None:
        """Create topics and start processes."""

    @abstractmethod
    def kill_once(self) -> None:
        """Start a client and kill it."""

    @abstractmethod
    def finish(self) -> None:
        """Without further kills: finish the work, and check it."""

    # The broker.

    def start_broker(self, *, mortal: bool = True) -> None:
        """Start the broker. If it is mortal, it may die at a named point."""
        seed = self.random.randrange(2**32) if self.random.random() < 0.5 else None
        point = KillPoint()
        if mortal and self.random.random() < _BROKER_POINT_SHARE:
            point = KillPoint(self._next_point(self._broker_points, points_of(*BROKER)), self.random.randint(1, 40))

        def body(ready: Callable[[], None]) -> int:
            point.arm(BROKER)
            return run_broker(self._settings, seed, lambda _: ready())

        self._broker_point = point
        broker = self.processes["broker"] = ForkedServer(body, self.folder / "broker.log")
        if not mortal and not broker.wait_ready(DEADLINE_S):
            raise CampaignFailed(f"the broker did not start (exit code {broker.poll()})")

    def restart_dead_broker(self) -> None:
        """Start the broker again if it has died at its point."""
        code = self.processes["broker"].poll()
        if code is None:
            return
        if code != -signal.SIGKILL or not self._broker_point.was_reached:
            raise CampaignFailed(f"the broker ended unexpectedly with exit code {code}")
        self.broker_kills[self._broker_point.point] += 1
        self.start_broker()

    def kill_broker(self, *, mortal: bool = True) -> None:
        """Kill the broker now, and start it again."""
        self.processes["broker"].kill()
        self.broker_kills[AT_ANY_MOMENT] += 1
        self.start_broker(mortal=mortal)

    def disturb_broker(self) -> None:
        """Sometimes kill the broker, or stop it for a while: it then executes commands that nobody waits for."""
        self.restart_dead_broker()
        draw = self.random.random()
        if draw < _BROKER_KILL_SHARE:
            self.kill_broker()
        elif draw < _BROKER_KILL_SHARE + _BROKER_STOP_SHARE:
            time.sleep(self.random.uniform(0.0, _LIFE_S))
            self.processes["broker"].signal(signal.SIGSTOP)
            time.sleep(self.random.uniform(_STOP_S / 2, _STOP_S))
            self.processes["broker"].signal(signal.SIGCONT)

    def restart_broker_for_good(self) -> None:
        """Restart the broker so that it does not die any more."""
        self.restart_dead_broker()
        self.processes["broker"].kill()
        self.start_broker(mortal=False)

    # Clients.

    def choose_death(self, *, traced: bool = True) -> Death:
        """Choose the next named point, a system call, or a random moment."""
        draw = self.random.random()
        if draw < _POINT_SHARE:
            point = self._next_point(self._points, (*points_of(*self._steps), *self.own_points))
            once = {point for step in self._steps if step.is_once for point in step.points}
            countdown = 1 if point in once else self.random.choice((1, 1, 2, 3, 5, 8))
            return Death(KillPoint(point, countdown), _POINT_S)
        if traced and draw < _POINT_SHARE + _CALL_SHARE and not system_calls.problem():
            return Death(KillPoint(), _CALL_S, *self._next_call())
        return Death(KillPoint(), self.random.uniform(0, _LIFE_S))

    def _next_point(self, left: list[str], points: tuple[str, ...]) -> str:
        """Return points in random order, each of them before any is repeated."""
        if not left:
            left += self.random.sample(points, len(points))
        return left.pop()

    def _next_call(self) -> tuple[str, int]:
        """Return all system calls, then all of them one call later."""
        if not self._calls:
            self._nth = self._nth % _NTH_MAX + 1
        return self._next_point(self._calls, self._call_names), self._nth

    def start(self, name: str, body: Callable[[], int], death: Death | None = None) -> ForkedProcess:
        """Start a client process that dies as planned."""

        def run() -> int:
            if death is not None:
                if death.call:
                    system_calls.wait_until_traced(os.getpid())
                death.point.arm(self._steps)
            return body()

        process = self.processes[name] = ForkedProcess(run, self.folder / "clients.log")
        if death is not None and death.call:
            self._tracers[name] = system_calls.attach(process.pid, death.call, death.nth)
        return process

    def await_death(self, name: str, death: Death) -> None:
        """Wait until a client is dead, and count how it died."""
        self.wait(self.processes[name], death.limit_s)
        self.kill(name, death)

    def kill(self, name: str, death: Death) -> None:
        """Kill a client if it is not dead yet, and count how it died."""
        process = self.processes[name]
        was_dead = process.poll() == -signal.SIGKILL
        code = process.kill()
        if name in self._tracers:
            self._tracers.pop(name).wait()
        if code == FENCED:
            # The open request of a dead process arrived later: this is documented.
            self.report.fenced += 1
        elif code != -signal.SIGKILL:
            raise CampaignFailed(f"{name} ended unexpectedly with exit code {code}")
        else:
            self.kills[self.cause_of(death, was_dead)] += 1

    def cause_of(self, death: Death, was_dead: bool) -> str:
        """Return the cause of a death for the report."""
        if death.point.was_reached:
            return death.point.point
        return f"at a system call: {death.call}" if was_dead and death.call else AT_ANY_MOMENT

    def wait(self, process: ForkedProcess, limit_s: float) -> int | None:
        """Wait until a process ends or the time is over. The broker is restarted meanwhile."""
        until_s = time.monotonic() + limit_s
        while process.poll() is None and time.monotonic() < until_s:
            self.restart_dead_broker()
            time.sleep(_POLL_S)
        return process.poll()

    def expect_fenced(self, name: str) -> None:
        """Check that a process notices that it was fenced, and ends."""
        code = self.wait(self.processes[name], DEADLINE_S)
        if code != FENCED:
            raise CampaignFailed(f"{name} has a successor, and ended with {code} instead of being fenced")
        self.report.fenced += 1

    def complete(self, name: str, body: Callable[[], int]) -> None:
        """Run a process that must succeed. If the open request of a dead process fences it, it starts again."""
        code: int | None = FENCED
        while code == FENCED:
            code = self.wait(self.start(name, body), 4 * DEADLINE_S)
        if code != 0:
            raise CampaignFailed(f"{name} ended with exit code {code}")

    # Questions to the broker are asked by child processes: this process has no sockets.

    def ask(self, name: str, body: Callable[[oncemq.Client], Any]) -> Any:
        """Run `body` with a client in a child process, and return its result."""
        answer, url = self.folder / f"{name}.json", self.urls.next()

        def child() -> int:
            with oncemq.connect(url, **PATIENT) as client:
                found = body(client)
            answer.write_text(json.dumps(found))
            return 0

        self.complete(name, child)
        return json.loads(answer.read_text())

    def make_topics(self, *topics: str) -> None:
        """Create topics with a subscription that never acks, so that all messages are kept."""

        def subscribe(client: oncemq.Client) -> None:
            for topic in topics:
                client.subscribe(topic, AUDITOR, start="earliest")

        self.ask("topics", subscribe)

    def subscribe(self, topic: str, subscriber: str) -> None:
        def subscribe(client: oncemq.Client) -> None:
            client.subscribe(topic, subscriber)

        self.ask("subscribed", subscribe)

    def texts_of(self, topic: str) -> list[str]:
        """Return all messages of a topic, in order."""
        return list(self.ask(f"texts of {topic}", lambda client: [message.text for message in client.read(topic)]))

    # A publisher that is not killed.

    def start_publisher(self, topic: str, *, batch: int, pause_s: float, keys: int = 0) -> None:
        """Start a process that puts the numbers from 0 on."""
        url = self.urls.next()
        self.start("publisher", lambda: self._publish(url, topic, batch, pause_s, keys))

    def _publish(self, url: str, topic: str, batch: int, pause_s: float, keys_count: int) -> int:
        stop, count = StopRequest(), 0
        with oncemq.connect(url, **PATIENT) as client:
            while not stop.is_set:
                numbers = range(count, count + batch)
                keys = [str(number % keys_count) for number in numbers] if keys_count else None
                client.put_many(topic, map(str, numbers), keys=keys)
                count += batch
                time.sleep(pause_s)
        (self.folder / "count").write_text(str(count))
        return 0

    def stop_publisher(self) -> int:
        """Stop the publisher, and return how many numbers it has put."""
        self.processes["publisher"].terminate()
        self.report.expect("the publisher's exit code", self.wait(self.processes["publisher"], DEADLINE_S), 0)
        return int((self.folder / "count").read_text())


class Interrupted(Exception):
    """A failure in the middle of a transaction: nothing of it may happen."""
