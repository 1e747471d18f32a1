"""One run, in its order: everything starts, the schedule strikes, the weather turns calm, all finish, the verdict.

This process only forks, kills and looks: it has no threads, no sockets and no client of its own.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess, free_url
from oncemq.tools.chaos import auditor, packet_proxy
from oncemq.tools.chaos.checker import Evidence, judge
from oncemq.tools.chaos.counters import Counters
from oncemq.tools.chaos.evidence import gather
from oncemq.tools.chaos.plan import ACTORS, BROKER, CALM, NETWORK, Act, Actor, Plan
from oncemq.tools.chaos.processes import Child, Nursery
from oncemq.tools.chaos.publishers import publish_plainly, publish_through_outbox
from oncemq.tools.chaos.report import Actors, Numbers, Result, Survived
from oncemq.tools.chaos.sabotage import Sabotage, middle_for
from oncemq.tools.chaos.screen import Silent
from oncemq.tools.chaos.subscribers import consume_into_inbox, consume_plainly
from oncemq.tools.chaos.worker import ACKNOWLEDGED, ATTEMPTED, DELIVERED, Scene, Worker

#: What workers would import, each for itself.
_PRELOADED = ("oncemq.client.sync", "oncemq.client.inbox.sqlite", "oncemq.client.recording.recorder")
_LOOK_S = 0.05
#: For each step of the end; more than any restart takes.
_FINISH_S = 30.0
_FLAGS = ("--segment-bytes=4MiB", "--snapshot-bytes=4MiB", "--batch-bytes-max=1MiB", "--log-level=info")
_BODIES: dict[str, Callable[[Worker], None]] = {
    "outbox": publish_through_outbox,
    "plain publisher": publish_plainly,
    "inbox": consume_into_inbox,
    "plain subscriber": consume_plainly,
}
_WHAT = {
    "outbox": "publishes through an outbox",
    "plain publisher": "publishes",
    "inbox": "stores in SQLite, with an inbox",
    "plain subscriber": "subscribes, comes and goes",
}


class Run:
    def __init__(
        self, plan: Plan, folder: Path, screen: Silent, *, sabotage: Sabotage | None = None, record: str = ""
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._screen = screen
        self._sabotage = sabotage
        names = [actor.name for actor in ACTORS]
        what = [
            ATTEMPTED,
            ACKNOWLEDGED,
            DELIVERED,
            packet_proxy.PASSED,
            packet_proxy.LOST,
            packet_proxy.DOUBLED,
            packet_proxy.DELAYED,
        ]
        self._counters = Counters([*names, NETWORK], what)
        self._broker = BrokerProcess(folder / BROKER, *_FLAGS)
        self._scene = Scene(folder, plan.seed, free_url(), self._broker.url, self._counters, record)
        self._nursery = Nursery(folder / "workers.log")
        self._children: dict[str, Child] = {}
        self._lives: dict[str, int] = {}
        #: Who was asked to leave and has not come back, and who shall as soon as he has left.
        self._leaving: set[str] = set()
        self._returning: set[str] = set()
        self._survived = Survived()
        self._problems: list[str] = []
        self._began_s = time.monotonic()
        self._is_interrupted = False
        #: It was started, and not killed since.
        self._is_broker_up = False

    def run(self) -> Result:
        """Whatever happens, no process is left."""
        try:
            with self._screen, self._interruptible():
                self._begin()
                self._storm()
                self._finish()
        finally:
            self._end_all()
        return self._conclude()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C ends the storm, the second one everything."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        former = [signal.signal(number, self._interrupt) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, former, strict=True):
                signal.signal(number, handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True

    # The beginning.

    def _begin(self) -> None:
        seconds = f"{self._plan.seconds:g} s of faults"
        self._log("chaos", f"seed {self._plan.seed}: {seconds} for {len(ACTORS)} clients and a broker")
        self._start_broker()
        for module in _PRELOADED:
            import_module(module)
        middle, counters = self._sabotage, self._counters
        url, broker_url, seed = self._scene.url, self._broker.url, self._plan.seed
        self._children[NETWORK] = self._nursery.start(
            lambda: packet_proxy.Proxy(url, broker_url, seed, counters, middle_for(middle, broker_url)).run()
        )
        self._prepare()
        for actor in sorted(ACTORS, key=lambda actor: actor.publishes):
            self._start(actor)
        self._wait_until_it_flows()

    def _prepare(self) -> None:
        """Raises BrokerAway: nothing works without one."""
        child = self._nursery.start(lambda: auditor.begin(self._scene))
        until_s = time.monotonic() + _FINISH_S
        while child.poll() is None and self._broker.is_running() and time.monotonic() < until_s:
            time.sleep(_LOOK_S / 5)
        code = child.poll()
        child.kill()
        if code != 0:
            raise errors.BrokerAway(f"the broker of this run did not start:\n{self._broker.log_tail()}")

    def _wait_until_it_flows(self) -> None:
        """Or there would be nothing to lose."""
        until_s = time.monotonic() + _FINISH_S
        publishers = [actor.name for actor in ACTORS if actor.publishes]
        while not self._is_interrupted and time.monotonic() < until_s:
            if self._counters.sum(DELIVERED) and all(self._counters.get(name, ACKNOWLEDGED) for name in publishers):
                return
            time.sleep(_LOOK_S / 5)

    def _start_broker(self) -> None:
        self._broker.start(wait=False)
        self._is_broker_up = True

    def _start(self, actor: Actor) -> None:
        life = self._lives[actor.name] = self._lives.get(actor.name, 0) + 1
        self._leaving.discard(actor.name)
        self._returning.discard(actor.name)
        scene, body = self._scene, _BODIES[actor.kind]
        self._children[actor.name] = self._nursery.start(lambda: Worker(scene, actor, life).run(body))

    def _do(self, body: Callable[[], int], what_not: str) -> None:
        """A child that does one thing."""
        child = self._nursery.start(body)
        if (code := child.wait(_FINISH_S)) != 0:
            child.kill()
            self._problems.append(f"{what_not} (exit code {code})")

    # The storm.

    def _storm(self) -> None:
        self._began_s = time.monotonic()
        acts = list(self._plan.acts)
        while not self._is_interrupted and (elapsed_s := self._elapsed_s()) < self._plan.seconds:
            while acts and acts[0].at_s <= elapsed_s:
                self._perform(acts.pop(0))
            self._look()
            time.sleep(_LOOK_S)

    def _perform(self, act: Act) -> None:
        if act.weather is not None:
            self._counters.set_weather(act.weather)
            self._log(NETWORK, str(act.weather))
        elif act.whom == BROKER:
            self._perform_on_broker(act)
        else:
            self._perform_on(next(actor for actor in ACTORS if actor.name == act.whom), act)

    def _perform_on_broker(self, act: Act) -> None:
        if act.what == "kill" and self._broker.is_running():
            self._broker.kill()
            self._is_broker_up = False
            self._survived.broker_kills += 1
            self._log(BROKER, f"killed with SIGKILL; {self._counters.sum(ACKNOWLEDGED):,} messages are acknowledged")
        elif act.what == "start" and not self._broker.is_running():
            self._start_broker()
            self._log(BROKER, "restarts, and recovers from its journal")

    def _perform_on(self, actor: Actor, act: Act) -> None:
        is_up = self._children[actor.name].poll() is None
        if act.what == "start":
            self._returning.add(actor.name)
        elif is_up and act.what == "leave" and actor.name not in self._leaving:
            self._leaving.add(actor.name)
            self._children[actor.name].end()
            self._survived.departures += 1
            self._log(actor.name, "leaves, and comes back for other topics")
        elif is_up and act.what == "kill":
            self._kill(actor)

    def _kill(self, actor: Actor) -> None:
        self._children[actor.name].kill()
        if actor.publishes:
            self._survived.publisher_kills += 1
        else:
            self._survived.subscriber_kills += 1
        self._log(actor.name, "killed with SIGKILL")

    def _look(self) -> None:
        """Nobody may end by himself."""
        for actor in ACTORS:
            code = self._children[actor.name].poll()
            if code is not None and code > 0:
                self._problems.append(f"{actor.name} ended with exit code {code}")
                self._start(actor)
            elif code is not None and actor.name in self._returning:
                self._start(actor)
                self._log(actor.name, f"is back: life {self._lives[actor.name]}")
        if self._is_broker_up and not self._broker.is_running():
            self._problems.append(f"the broker ended by itself: {self._broker.log_tail(3)}")
            self._start_broker()
        if self._children[NETWORK].poll() is not None:
            raise RuntimeError(f"the proxy has ended:\n{(self._folder / 'workers.log').read_text()[-2000:]}")
        self._screen.show(self._numbers())

    def _numbers(self) -> Numbers:
        counters, survived = self._counters, self._survived
        survived.packets_lost = counters.get(NETWORK, packet_proxy.LOST)
        survived.packets_doubled = counters.get(NETWORK, packet_proxy.DOUBLED)
        survived.packets_delayed = counters.get(NETWORK, packet_proxy.DELAYED)
        return Numbers(
            self._elapsed_s(),
            self._plan.seconds,
            counters.sum(ATTEMPTED),
            counters.sum(ACKNOWLEDGED),
            counters.sum(DELIVERED),
            survived,
            (self._row_of_broker(), *map(self._row, ACTORS)),
        )

    def _row_of_broker(self) -> Actors:
        state = "up" if self._broker.is_running() else "down"
        return Actors(BROKER, "stores and delivers", state, self._counters.sum(ACKNOWLEDGED))

    def _row(self, actor: Actor) -> Actors:
        state = "up" if self._children[actor.name].poll() is None else "down"
        messages = self._counters.get(actor.name, ACKNOWLEDGED if actor.publishes else DELIVERED)
        return Actors(actor.name, _WHAT[actor.kind], state, messages)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _log(self, who: str, text: str) -> None:
        self._screen.log(self._elapsed_s(), who, text)

    # The end.

    def _finish(self) -> None:
        self._log("chaos", "the storm is over: everybody finishes what he has in hand")
        self._counters.set_weather(CALM)
        if not self._broker.is_running():
            self._start_broker()
        self._finish_all([actor for actor in ACTORS if actor.publishes])
        self._do(lambda: auditor.read_all(self._scene), "what was stored could not be read")
        self._finish_all([actor for actor in ACTORS if not actor.publishes])

    def _finish_all(self, actors: list[Actor]) -> None:
        """Whoever is away comes back for it: an outbox has to be emptied, an inbox filled."""
        until_s = time.monotonic() + _FINISH_S
        for actor in actors:
            child = self._children[actor.name]
            if actor.name in self._leaving:
                child.wait(_FINISH_S)
            if child.poll() is not None:
                self._start(actor)
            self._children[actor.name].end()
        for actor in actors:
            while (code := self._children[actor.name].poll()) is None and time.monotonic() < until_s:
                self._screen.show(self._numbers())
                time.sleep(_LOOK_S)
            if code != 0:
                self._problems.append(f"{actor.name} did not finish (exit code {code})")

    def _end_all(self) -> None:
        for child in self._children.values():
            child.kill()
        self._broker.kill()
        self._nursery.close()

    def _conclude(self) -> Result:
        evidence: Evidence = gather(self._folder)
        evidence.errors += self._problems
        is_empty = not evidence.acknowledged or not any(delivery.got for delivery in evidence.deliveries)
        if is_empty and not self._is_interrupted:
            evidence.errors.append("nothing was put, or nothing delivered: there is nothing to judge")
        self._numbers()
        plan, sabotage = self._plan, self._sabotage or ""
        return Result(plan.seed, plan.seconds, self._is_interrupted, sabotage, judge(evidence), self._survived)
