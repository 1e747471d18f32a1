"""Several processes share a subscription. Each acks its tasks and puts their results in one transaction. They are
killed, or stopped for longer than their leases. At the end there is exactly one result of each message.

    python -m tests.acceptance --only workers --kills 500
    python -m tests.acceptance --only workers-in-order --kills 500     results of a key in the order of its messages
    python -m tests.acceptance --only poison --kills 500               messages that kill every worker that takes them
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

import oncemq
from oncemq.client.worker.dead_letter_sender import DeadLetterSender
from oncemq.protocol.errors import BrokerAway, LeaseLost, NotNow
from oncemq.tools.faults.event_log import EventLog, read_events
from oncemq.tools.faults.processes import StopRequest
from tests.acceptance.campaigns.base import IMPATIENT, PATIENT, Campaign, Death, Interrupted
from tests.acceptance.campaigns.report import CampaignFailed
from tests.acceptance.faults.kill_points import CLIENT, TRANSACTION, KillPoint, Step
from tests.acceptance.processes import DEADLINE_S

TASKS, RESULTS, DEAD = "tasks", "results", "tasks.dead"
SUBSCRIBER = "workers"
WORKERS = 3
KEYS = 7
#: How long a worker is stopped, around the duration of a lease; and how long it may work before and after that.
_STOP_S = (0.2, 0.8)
_WORK_S = 0.3
_IMPATIENT_SHARE = 0.3
_POLL_S = 0.002
#: One message in this many is poisoned.
_POISON_EVERY = 15


class Variant(msgspec.Struct, frozen=True):
    """What distinguishes the three campaigns."""

    name: str
    steps: tuple[Step, ...] = (*CLIENT, *TRANSACTION)
    own_points: tuple[str, ...] = ("tasks are taken", "transaction is filled")
    #: Share of workers that are stopped for a while before they are killed.
    stop_share: float = 0.15
    key_order: bool = False
    tries_max: int = 0
    lease_s: float = 0.3
    pause_s: float = 0.01
    #: Workers take one task at a time, and die of poisoned ones, also at the end of the campaign.
    is_poisoned: bool = False


WORKERS_VARIANT = Variant("workers")
KEY_ORDER = Variant("workers-in-order", key_order=True)
#: A message that kills its worker has no other effect: all other messages are done, and it becomes a dead letter, once.
POISON = Variant(
    "poison",
    steps=(Step("dead-lettering", DeadLetterSender, "_submit"),),
    own_points=(),
    stop_share=0.0,
    tries_max=3,
    lease_s=0.6,
    pause_s=0.05,
    is_poisoned=True,
)


def is_poisoned(text: str) -> bool:
    return int(text) % _POISON_EVERY == _POISON_EVERY // 2


class Worker:
    """One process of a worker. It logs tasks that came too late, and poisoned ones."""

    def __init__(self, url: str, folder: Path, number: int, point: KillPoint, *, dies_of_poison: bool) -> None:
        self._url = url
        self._point = point
        self._dies_of_poison = dies_of_poison
        self._tasks_max = 1 if dies_of_poison else 20
        #: Share of transactions that are interrupted; their tasks are returned. A good message that is returned three
        #: times would be a dead letter, too.
        self._raise_share = 0.0 if dies_of_poison else 0.05
        self._random = Random(f"worker/{number}")
        self._log = EventLog(folder / "workers.events")

    def run(self) -> int:
        """Work until it is killed or stopped."""
        stop = StopRequest()
        options = IMPATIENT if self._random.random() < _IMPATIENT_SHARE else PATIENT
        while not stop.is_set:
            try:
                with oncemq.connect(self._url, **options) as client:
                    self._work(client, stop)
            except (BrokerAway, NotNow):
                continue
        return 0

    def _work(self, client: oncemq.Client, stop: StopRequest) -> None:
        prefetch = None if self._tasks_max > 1 else 1
        with client.shared_subscription(TASKS, SUBSCRIBER, prefetch=prefetch) as workers:
            while not stop.is_set:
                tasks = workers.take_many(self._random.randint(1, self._tasks_max), timeout_s=0.1)
                self._point.reach("tasks are taken")
                self._finish(client, tasks)

    def _finish(self, client: oncemq.Client, tasks: Sequence[oncemq.Task]) -> None:
        """Finish tasks together, until it is known whether it happened."""
        while tasks:
            try:
                self._finish_once(client, tasks)
                return
            except Interrupted:
                for task in tasks:
                    task.nack()
                return
            except LeaseLost:
                if len(tasks) == 1:
                    self._log.write(("late", tasks[0].offset))
                    return
                for task in tasks:
                    self._finish(client, [task])
                return
            except (BrokerAway, NotNow):
                # It may have happened: then the leases are over, and the next attempt is refused.
                continue

    def _finish_once(self, client: oncemq.Client, tasks: Sequence[oncemq.Task]) -> None:
        with client.transaction() as transaction:
            for task in tasks:
                if self._dies_of_poison and is_poisoned(task.text):
                    self._log.write(("poison", task.text))
                    os.kill(os.getpid(), signal.SIGKILL)
                transaction.put(RESULTS, task.value, key=task.key)
                transaction.ack(task)
            self._point.reach("transaction is filled")
            if self._random.random() < self._raise_share:
                raise Interrupted


class WorkerState:
    """A worker process of the campaign, and what happens to it next."""

    def __init__(self, death: Death, stop_s: float) -> None:
        self.death = death
        self.stop_s = stop_s
        self.until_s = time.monotonic() + death.limit_s
        self.is_stopped = False


class WorkersCampaign(Campaign):
    """Kills workers of a shared subscription."""

    def __init__(self, variant: Variant, folder: Path, seed: int) -> None:
        super().__init__(variant.name, folder, seed, steps=variant.steps, own_points=variant.own_points)
        self._variant = variant
        self._started = 0
        self._stops = 0
        self._workers: dict[str, WorkerState] = {}

    def set_up(self) -> None:
        self.make_topics(RESULTS)
        self.ask("subscribed", self._subscribe)
        self.start_publisher(TASKS, batch=5, pause_s=self._variant.pause_s, keys=KEYS)
        for number in range(WORKERS):
            self._start_worker(f"worker {number}")

    def _subscribe(self, client: oncemq.Client) -> None:
        variant = self._variant
        options = {"lease_s": variant.lease_s, "tries_max": variant.tries_max, "key_order": variant.key_order}
        client.subscribe_shared(TASKS, SUBSCRIBER, **options).close()  # type: ignore[arg-type]

    def _start_worker(self, name: str, *, mortal: bool = True) -> None:
        death = self._choose_worker_death() if mortal else Death(KillPoint(), float("inf"))
        stop_s = 0.0
        if mortal and self.random.random() < self._variant.stop_share:
            death = Death(KillPoint(self.random.choice(self.own_points), 1, signal.SIGSTOP), _WORK_S)
            stop_s = self.random.uniform(*_STOP_S)
        self._started += 1
        poison = self._variant.is_poisoned
        worker = Worker(self.urls.next(), self.folder, self._started, death.point, dies_of_poison=poison)
        self.start(name, worker.run, death)
        self._workers[name] = WorkerState(death, stop_s)

    def _choose_worker_death(self) -> Death:
        if not self._variant.is_poisoned:
            return self.choose_death()
        # It dies of poison, or before that while a message is dead-lettered.
        point = self.random.choice(("", "before dead-lettering", "after dead-lettering"))
        return Death(KillPoint(point), float("inf"))

    def cause_of(self, death: Death, was_dead: bool) -> str:
        if self._variant.is_poisoned:
            return death.point.point if death.point.was_reached else "of poison"
        return super().cause_of(death, was_dead)

    # Deaths.

    def kill_once(self) -> None:
        """Wait until one worker has died and was restarted."""
        self.disturb_broker()
        while not self._watch_workers():
            self.restart_dead_broker()
            time.sleep(_POLL_S)

    def _watch_workers(self, *, mortal: bool = True) -> bool:
        for name, worker in list(self._workers.items()):
            has_ended = self.processes[name].poll() is not None
            if worker.stop_s and worker.death.point.was_reached and not worker.is_stopped:
                worker.until_s, worker.is_stopped = time.monotonic() + worker.stop_s, True
                self._stops += 1
            elif worker.is_stopped and time.monotonic() >= worker.until_s:
                self._continue(name, worker)
            elif has_ended or time.monotonic() >= worker.until_s:
                self.kill(name, worker.death)
                self._start_worker(name, mortal=mortal)
                return True
        return False

    def _continue(self, name: str, worker: WorkerState) -> None:
        """Let a stopped worker continue with the tasks that it holds. It is killed some time later."""
        self.processes[name].signal(signal.SIGCONT)
        worker.death = Death(KillPoint(), 0.0)
        worker.until_s, worker.stop_s, worker.is_stopped = time.monotonic() + _WORK_S, 0.0, False

    # The end.

    def finish(self) -> None:
        count = self.stop_publisher()
        for name in list(self._workers):
            self.processes[name].kill()
            self._start_worker(name, mortal=self._variant.is_poisoned)
        self._await_all(count)
        for name in self._workers:
            self.processes[name].terminate()
        for name in self._workers:
            self.report.expect(f"the exit code of {name}", self.wait(self.processes[name], DEADLINE_S), 0)
        logged = Counter(entry[0] for entry in read_events(self.folder / "workers.events"))
        self.report.more = {"stopped": self._stops, "late": logged["late"]}
        self._check_results([str(number) for number in range(count)])

    def _await_all(self, count: int) -> None:
        until_s = time.monotonic() + 4 * DEADLINE_S
        while self.ask("acked", lambda client: client.subscriptions(TASKS)[0].acked) < count:
            if time.monotonic() > until_s:
                raise CampaignFailed("the last workers do not finish")
            self._watch_workers(mortal=self._variant.is_poisoned)
            time.sleep(0.02)

    def _check_results(self, numbers: list[str]) -> None:
        if not self._variant.is_poisoned:
            self.report.compare(numbers, numbers, self.texts_of(RESULTS), self._stream_of)
            return
        good = [number for number in numbers if not is_poisoned(number)]
        poisoned = [number for number in numbers if is_poisoned(number)]
        self.report.compare(good, good, self.texts_of(RESULTS), self._stream_of, "results")
        self.report.compare(poisoned, poisoned, self.texts_of(DEAD), self._stream_of, "dead letters")
        self.report.more["dead_letters"] = len(poisoned)
        events = read_events(self.folder / "workers.events")
        killed = Counter(entry[1] for entry in events if entry[0] == "poison")
        most = max(killed.values(), default=0)
        self.report.expect("the largest number of workers that one message killed", most, self._variant.tries_max)

    def _stream_of(self, text: str) -> str:
        """Without key order, no order is guaranteed: each message is a stream of its own."""
        return str(int(text) % KEYS) if self._variant.key_order else text
