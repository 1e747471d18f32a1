"""What the campaigns against clients share: a broker, processes around it, and how they die.

A client's process dies at a named point (steps.py), at a system call (tracing.py) or at any moment. The broker dies
too, now and then, and lives on a plain disk or on one that forgets what was not synced (shim_disk.py). Whoever is
dead is started again on what it left. In the end nothing is killed any more, and everything is counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import msgspec

import oncemq.client.sync
from oncemq.client.runtime.transport import ZmqTransport  # noqa: F401 - imported before the first fork
from oncemq.testing.broker_process import free_url
from tests.acceptance import tracing
from tests.acceptance.account import Account
from tests.acceptance.crash import CampaignFailed
from tests.acceptance.nursery import Child
from tests.acceptance.processes import DEADLINE_S
from tests.acceptance.progress import Progress
from tests.acceptance.shim_broker import live, settings_for
from tests.acceptance.steps import BROKER, Doom, Step, points_of

#: An exit code: another process has taken this one's place.
FENCED = 3
#: Retries come soon, and never end.
PATIENT: dict[str, Any] = {"timeout_s": 0.1, "tries": 600}
#: These end at once, again and again, and leave open whether it happened.
IMPATIENT: dict[str, Any] = {"timeout_s": 0.04, "tries": 1}
AUDITOR = "auditor"

#: Of the deaths, those at a named point; and at a system call.
_POINT_SHARE = 0.55
_CALL_SHARE = 0.1
#: How long a client lives: at the most, at a random moment; and at its point.
_LIFE_S = 0.15
_POINT_S = 0.4
_CALL_S = 0.8
_NTH_MAX = 40
_BROKER_KILL_SHARE = 0.15
_BROKER_STOP_SHARE = 0.2
_STOP_S = 0.12
_BROKER_POINT_SHARE = 0.4
_LOOK_S = 0.002


class Death(msgspec.Struct, frozen=True):
    """How a client's life ends."""

    doom: Doom
    #: After this in any case.
    limit_s: float
    #: A system call, and which one of a thread.
    call: str = ""
    nth: int = 0


class Campaign:
    name: ClassVar[str] = ""
    #: Whose points a client dies at, and those that its own code in the tests reaches.
    steps: ClassVar[tuple[Step, ...]] = ()
    own_points: ClassVar[tuple[str, ...]] = ()
    calls: ClassVar[tuple[str, ...]] = tracing.CLIENT

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = Random(seed)
        self.account = Account(campaign=self.name)
        self.url = free_url()
        self._kills: Counter[str] = Counter()
        self._broker_kills: Counter[str] = Counter()
        self._settings = settings_for(str(folder / "data"), self.url)
        self._children: dict[str, Child] = {}
        self._tracers: dict[str, subprocess.Popen[bytes]] = {}
        self._broker_doom = Doom()
        self._points: list[str] = []
        self._calls: list[str] = []
        self._nth = self.random.randrange(_NTH_MAX)
        self._broker_points: list[str] = []

    # The course of it.

    def run(self, kills: int, progress: Progress) -> Account:
        began_s = time.monotonic()
        try:
            self.start_broker(mortal=False)
            self.set_up()
            while sum(self._kills.values()) < kills:
                self.kill_once()
                progress.show(min(kills, sum(self._kills.values())), f"{self.name}, {self._deaths()} brokers too")
            self.settle_broker()
            self.finish()
        except CampaignFailed as failure:
            self.account.problems.append(str(failure))
        finally:
            self._end_all()
        self.account.kills = dict(sorted(self._kills.items()))
        self.account.broker_kills = dict(sorted(self._broker_kills.items()))
        self.account.seconds = round(time.monotonic() - began_s, 1)
        return self.account

    def _end_all(self) -> None:
        for child in self._children.values():
            child.kill()
        for tracer in self._tracers.values():
            tracer.wait()

    def _deaths(self) -> int:
        return sum(self._broker_kills.values())

    def set_up(self) -> None:
        raise NotImplementedError

    def kill_once(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Nobody is killed any more: do what is left, and count."""
        raise NotImplementedError

    # The broker.

    def start_broker(self, *, mortal: bool = True) -> None:
        seed = self.random.randrange(2**32) if self.random.random() < 0.5 else None
        doom = Doom()
        if mortal and self.random.random() < _BROKER_POINT_SHARE:
            doom = Doom(self._next_point(self._broker_points, points_of(*BROKER)), self.random.randint(1, 40))

        def body(ready: Callable[[], None]) -> int:
            doom.arm(BROKER)
            return live(self._settings, seed, lambda _: ready())

        self._broker_doom = doom
        self._children["broker"] = Child(body, self.folder / "broker.log")
        if not mortal and not self._children["broker"].wait_ready(DEADLINE_S):
            raise CampaignFailed(f"the broker did not start (exit code {self._children['broker'].poll()})")

    def tend_broker(self) -> None:
        """Start it again if it has died at its point."""
        code = self._children["broker"].poll()
        if code is None:
            return
        if code != -signal.SIGKILL or not self._broker_doom.was_met:
            raise CampaignFailed(f"the broker ended by itself with exit code {code}")
        self._broker_kills[self._broker_doom.point] += 1
        self.start_broker()

    def trouble_broker(self) -> None:
        """Now and then it is killed, or stopped for a while: then it does later what nobody waits for any more."""
        self.tend_broker()
        draw = self.random.random()
        if draw < _BROKER_KILL_SHARE:
            self._children["broker"].kill()
            self._broker_kills["at any moment"] += 1
            self.start_broker()
        elif draw < _BROKER_KILL_SHARE + _BROKER_STOP_SHARE:
            time.sleep(self.random.uniform(0.0, _LIFE_S))
            self._children["broker"].signal(signal.SIGSTOP)
            time.sleep(self.random.uniform(_STOP_S / 2, _STOP_S))
            self._children["broker"].signal(signal.SIGCONT)

    def settle_broker(self) -> None:
        """From here on it lives."""
        self.tend_broker()
        self._children["broker"].kill()
        self.start_broker(mortal=False)

    # Clients.

    def choose_death(self, *, traced: bool = True) -> Death:
        """At the next named point, at a system call, or at any moment."""
        draw = self.random.random()
        if draw < _POINT_SHARE:
            point = self._next_point(self._points, (*points_of(*self.steps), *self.own_points))
            once = {point for step in self.steps if step.is_once for point in step.points}
            countdown = 1 if point in once else self.random.choice((1, 1, 2, 3, 5, 8))
            return Death(Doom(point, countdown), _POINT_S)
        if traced and draw < _POINT_SHARE + _CALL_SHARE and not tracing.problem():
            return Death(Doom(), _CALL_S, *self._next_call())
        return Death(Doom(), self.random.uniform(0, _LIFE_S))

    def _next_point(self, left: list[str], points: tuple[str, ...]) -> str:
        """Each comes before any comes again."""
        if not left:
            left += self.random.sample(points, len(points))
        return left.pop()

    def _next_call(self) -> tuple[str, int]:
        """All of them in turn, then one call later."""
        if not self._calls:
            self._nth = self._nth % _NTH_MAX + 1
        return self._next_point(self._calls, self.calls), self._nth

    def start(self, name: str, body: Callable[[], int], death: Death | None = None) -> Child:
        def run(_ready: object) -> int:
            if death is not None:
                if death.call:
                    tracing.wait_until_traced(os.getpid())
                death.doom.arm(self.steps)
            return body()

        child = self._children[name] = Child(run, self.folder / "clients.log")
        if death is not None and death.call:
            self._tracers[name] = tracing.attach(child.pid, death.call, death.nth)
        return child

    def die(self, name: str, death: Death) -> None:
        """Wait until this client is dead, and see how it ended."""
        child = self._children[name]
        self.wait(child, death.limit_s)
        self.bury(name, death)

    def bury(self, name: str, death: Death) -> None:
        child = self._children[name]
        died_alone = child.poll() == -signal.SIGKILL
        code = child.kill()
        if name in self._tracers:
            self._tracers.pop(name).wait()
        if code == FENCED:
            # By an opening of one that is dead: documented.
            self.account.fenced += 1
        elif code != -signal.SIGKILL:
            raise CampaignFailed(f"{name} ended by itself with exit code {code}")
        else:
            self._kills[self.cause_of(death, died_alone)] += 1

    def cause_of(self, death: Death, died_alone: bool) -> str:
        if death.doom.was_met:
            return death.doom.point
        return f"at a system call: {death.call}" if died_alone and death.call else "at any moment"

    def wait(self, child: Child, limit_s: float) -> int | None:
        """Until it ends, or this time is over. The broker is tended meanwhile."""
        until_s = time.monotonic() + limit_s
        while child.poll() is None and time.monotonic() < until_s:
            self.tend_broker()
            time.sleep(_LOOK_S)
        return child.poll()

    def expect_fenced(self, name: str) -> None:
        """Another process has taken its place: it must notice, and end."""
        code = self.wait(self._children[name], DEADLINE_S)
        if code != FENCED:
            raise CampaignFailed(f"{name} has a successor, and ended with {code} instead of being fenced")
        self.account.fenced += 1

    def complete(self, name: str, body: Callable[[], int]) -> None:
        """A process that has to come to its end. One that an opening of a dead one has fenced may try again."""
        code: int | None = FENCED
        while code == FENCED:
            code = self.wait(self.start(name, body), 4 * DEADLINE_S)
        if code != 0:
            raise CampaignFailed(f"{name} ended with exit code {code}")

    # Questions to the broker: this process has no sockets.

    def ask(self, name: str, body: Callable[[oncemq.Client], Any]) -> Any:
        answer = self.folder / f"{name}.json"

        def child() -> int:
            with oncemq.connect(self.url, **PATIENT) as client:
                found = body(client)
            answer.write_text(json.dumps(found))
            return 0

        self.complete(name, child)
        return json.loads(answer.read_text())

    def make_topics(self, *topics: str) -> None:
        """With a subscriber that never acks: everything stays."""

        def subscribe(client: oncemq.Client) -> None:
            for topic in topics:
                client.subscribe(topic, AUDITOR, start="earliest")

        self.ask("topics", subscribe)

    def texts_of(self, topic: str) -> list[str]:
        """Everything in a topic, in order."""
        return list(self.ask(f"texts of {topic}", lambda client: [message.text for message in client.read(topic)]))


class Publisher:
    """Puts numbered messages until it is told to stop; nobody kills it."""

    def __init__(self, url: str, topic: str, count_path: Path, *, batch: int, pause_s: float, keys: int = 0) -> None:
        self._url = url
        self._topic = topic
        self._count_path = count_path
        self._batch = batch
        self._pause_s = pause_s
        self._keys = keys
        self._is_stopping = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._stop)
        count = 0
        with oncemq.connect(self._url, **PATIENT) as client:
            while not self._is_stopping:
                numbers = range(count, count + self._batch)
                keys = [str(number % self._keys) for number in numbers] if self._keys else None
                client.put_many(self._topic, map(str, numbers), keys=keys)
                count += self._batch
                time.sleep(self._pause_s)
        self._count_path.write_text(str(count))
        return 0

    def _stop(self, *_: object) -> None:
        self._is_stopping = True


class Interrupted(Exception):
    """A program that fails in the middle of a transaction: nothing of it may happen."""
