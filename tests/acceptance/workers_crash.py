"""The workers' crash campaigns: several processes share a subscription, and each acks its tasks and puts their results
in one transaction. They are killed, or stalled beyond their leases; then there is one result of each message.

    python -m tests.acceptance --only workers --kills 500
    python -m tests.acceptance --only workers-in-order --kills 500     results of a key in the order of its messages
    python -m tests.acceptance --only poison --kills 500               messages that kill whoever works on them
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import ClassVar

import oncemq
from oncemq.client.worker.dead_letter_sender import DeadLetterSender
from oncemq.protocol.errors import BrokerAway, LeaseLost, NotNow
from tests.acceptance.campaign import IMPATIENT, PATIENT, Campaign, Death, Interrupted, Publisher
from tests.acceptance.crash import CampaignFailed
from tests.acceptance.evidence import entries
from tests.acceptance.processes import DEADLINE_S
from tests.acceptance.steps import CLIENT, TRANSACTION, Doom, Step
from tests.acceptance.workers import Diary

TASKS, RESULTS, DEAD = "tasks", "results", "tasks.dead"
SUBSCRIBER = "workers"
WORKERS = 3
KEYS = 7
LEASE_S = 0.3
#: Stopped for so long, around the time of a lease; and worked on before and after that for so long at the most.
_STALL_S = (0.2, 0.8)
_STALLED_WITHIN_S = 0.3
_IMPATIENT_SHARE = 0.3
_LOOK_S = 0.002
#: A poisoned message comes among so many.
_POISON_EVERY = 15
_POISON_TRIES = 3
_POISON_LEASE_S = 0.6


class Worker:
    """One life of a worker. Its diary says what came too late."""

    #: Of its transactions, those that it breaks off: then it gives the tasks back.
    raise_share = 0.05

    def __init__(self, url: str, folder: Path, life: int, doom: Doom, tasks_max: int = 20) -> None:
        self._url = url
        self._doom = doom
        self._tasks_max = tasks_max
        self._random = Random(f"worker/{life}")
        self._diary = Diary(folder / "workers.diary")
        self._is_stopping = False

    def run(self) -> int:
        """Until it is killed, or told to stop."""
        signal.signal(signal.SIGTERM, self._stop)
        patience = IMPATIENT if self._random.random() < _IMPATIENT_SHARE else PATIENT
        while not self._is_stopping:
            try:
                with oncemq.connect(self._url, **patience) as client:
                    self._work_on(client)
            except (BrokerAway, NotNow):
                continue
        return 0

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._is_stopping = True

    def _work_on(self, client: oncemq.Client) -> None:
        prefetch = None if self._tasks_max > 1 else 1
        with client.shared_subscription(TASKS, SUBSCRIBER, prefetch=prefetch) as workers:
            while not self._is_stopping:
                tasks = workers.take_many(self._random.randint(1, self._tasks_max), timeout_s=0.1)
                self._doom.reach("tasks are taken")
                self._finish(client, tasks)

    def _finish(self, client: oncemq.Client, tasks: Sequence[oncemq.Task]) -> None:
        """All together, until it is known whether it happened."""
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
                    self._diary.write(f"late {tasks[0].offset}")
                    return
                for task in tasks:
                    self._finish(client, [task])
                return
            except (BrokerAway, NotNow):
                # It may have happened: then the leases are over, and the next try is refused.
                continue

    def _finish_once(self, client: oncemq.Client, tasks: Sequence[oncemq.Task]) -> None:
        with client.transaction() as transaction:
            for task in tasks:
                self.work(task)
                transaction.put(RESULTS, task.value, key=task.key)
                transaction.ack(task)
            self._doom.reach("transaction is filled")
            if self._random.random() < self.raise_share:
                raise Interrupted

    def work(self, task: oncemq.Task) -> None:
        """What there is to do, beyond the result."""


class Mortal:
    """A worker of the campaign, and what is to become of it."""

    def __init__(self, death: Death, stall_s: float) -> None:
        self.death = death
        self.stall_s = stall_s
        self.until_s = time.monotonic() + death.limit_s
        self.is_stalled = False


class WorkersCampaign(Campaign):
    name = "workers"
    steps: ClassVar[tuple[Step, ...]] = (*CLIENT, *TRANSACTION)
    own_points: ClassVar[tuple[str, ...]] = ("tasks are taken", "transaction is filled")
    #: Of the workers, those that are stopped for a while before they are killed.
    stall_share = 0.15
    key_order = False
    tries_max = 0
    lease_s = LEASE_S
    #: Workers die until the end.
    stays_mortal = False
    batch, pause_s = 5, 0.01

    def set_up(self) -> None:
        self._lives = 0
        self._stalls = 0
        self._mortals: dict[str, Mortal] = {}
        self.make_topics(RESULTS)
        self.ask("subscribed", self._subscribe)
        count_path = self.folder / "count"
        publisher = Publisher(self.url, TASKS, count_path, batch=self.batch, pause_s=self.pause_s, keys=KEYS)
        self.start("publisher", publisher.run)
        for number in range(WORKERS):
            self._start_worker(f"worker {number}")

    def _subscribe(self, client: oncemq.Client) -> None:
        client.subscribe_shared(
            TASKS, SUBSCRIBER, lease_s=self.lease_s, tries_max=self.tries_max, key_order=self.key_order
        ).close()

    def _start_worker(self, name: str, *, mortal: bool = True) -> None:
        death = self.choose_death() if mortal else Death(Doom(), float("inf"))
        stall_s = 0.0
        if mortal and self.random.random() < self.stall_share:
            death = Death(Doom(self.random.choice(self.own_points), 1, signal.SIGSTOP), _STALLED_WITHIN_S)
            stall_s = self.random.uniform(*_STALL_S)
        self._lives += 1
        self.start(name, self.make_worker(self._lives, death.doom).run, death)
        self._mortals[name] = Mortal(death, stall_s)

    def make_worker(self, life: int, doom: Doom) -> Worker:
        return Worker(self.url, self.folder, life, doom)

    # Deaths.

    def kill_once(self) -> None:
        """Until one of them is dead, and lives again."""
        self.trouble_broker()
        while not self._tend_workers():
            self.tend_broker()
            time.sleep(_LOOK_S)

    def _tend_workers(self, *, mortal: bool = True) -> bool:
        for name, one in list(self._mortals.items()):
            ended = self._children[name].poll() is not None
            if one.stall_s and one.death.doom.was_met and not one.is_stalled:
                one.until_s, one.is_stalled = time.monotonic() + one.stall_s, True
                self._stalls += 1
            elif one.is_stalled and time.monotonic() >= one.until_s:
                self._go_on(name, one)
            elif ended or time.monotonic() >= one.until_s:
                self.bury(name, one.death)
                self._start_worker(name, mortal=mortal)
                return True
        return False

    def _go_on(self, name: str, one: Mortal) -> None:
        """It comes back with what it had in hand, works on, and is killed some time later."""
        self._children[name].signal(signal.SIGCONT)
        one.death = Death(Doom(), 0.0)
        one.until_s, one.stall_s, one.is_stalled = time.monotonic() + _STALLED_WITHIN_S, 0.0, False

    # The end.

    def finish(self) -> None:
        publisher = self._children["publisher"]
        publisher.signal(signal.SIGTERM)
        self.account.expect("the publisher's exit code", self.wait(publisher, DEADLINE_S), 0)
        count = int((self.folder / "count").read_text())
        for name in list(self._mortals):
            self._children[name].kill()
            self._start_worker(name, mortal=self.stays_mortal)
        self._await_all(count)
        for name in self._mortals:
            self._children[name].signal(signal.SIGTERM)
        for name in self._mortals:
            self.account.expect(f"the exit code of {name}", self.wait(self._children[name], DEADLINE_S), 0)
        late = [entry for entry in entries(self.folder / "workers.diary") if entry[0] == "late"]
        self.account.more = {"stalled": self._stalls, "late": len(late)}
        self.judge([str(number) for number in range(count)])

    def _await_all(self, count: int) -> None:
        until_s = time.monotonic() + 4 * DEADLINE_S
        while self.ask("acked", lambda client: client.subscriptions(TASKS)[0].acked) < count:
            if time.monotonic() > until_s:
                raise CampaignFailed("the last workers do not come to an end")
            self._tend_workers(mortal=self.stays_mortal)
            time.sleep(0.02)

    def judge(self, numbers: list[str]) -> None:
        self.account.compare(numbers, numbers, self.texts_of(RESULTS), self.stream_of)

    def stream_of(self, text: str) -> str:
        """Nobody promises an order: each message is a stream of its own."""
        return text


class KeyOrderCampaign(WorkersCampaign):
    name = "workers-in-order"
    key_order = True

    def stream_of(self, text: str) -> str:
        return str(int(text) % KEYS)


# Poison.


def is_poisoned(number: int) -> bool:
    return number % _POISON_EVERY == _POISON_EVERY // 2


class Victim(Worker):
    """A worker that takes one task at a time, and dies of the poisoned ones."""

    #: Given back three times, a sound message would be a dead letter too.
    raise_share = 0.0

    def work(self, task: oncemq.Task) -> None:
        if is_poisoned(int(task.text)):
            self._diary.write(f"poison {task.text}")
            os.kill(os.getpid(), signal.SIGKILL)


class PoisonCampaign(WorkersCampaign):
    """Who dies of a message takes nothing else with him: all others are done, and it ends as a dead letter, once."""

    name = "poison"
    steps: ClassVar[tuple[Step, ...]] = (Step("dead-letter", DeadLetterSender, "_submit"),)
    own_points: ClassVar[tuple[str, ...]] = ()
    stall_share = 0.0
    tries_max = _POISON_TRIES
    lease_s = _POISON_LEASE_S
    stays_mortal = True
    batch, pause_s = 5, 0.05

    def choose_death(self, *, traced: bool = True) -> Death:
        """Of poison, or before that while a message is given up."""
        return Death(Doom(self.random.choice(("", "before dead-letter", "after dead-letter"))), float("inf"))

    def cause_of(self, death: Death, died_alone: bool) -> str:
        return death.doom.point if death.doom.was_met else "of poison"

    def make_worker(self, life: int, doom: Doom) -> Worker:
        return Victim(self.url, self.folder, life, doom, tasks_max=1)

    def judge(self, numbers: list[str]) -> None:
        sound = [number for number in numbers if not is_poisoned(int(number))]
        poisoned = [number for number in numbers if is_poisoned(int(number))]
        self.account.compare(sound, sound, self.texts_of(RESULTS), self.stream_of, "results")
        self.account.compare(poisoned, poisoned, self.texts_of(DEAD), self.stream_of, "dead letters")
        self.account.more["dead_letters"] = len(poisoned)
        killed = Counter(entry[1] for entry in entries(self.folder / "workers.diary") if entry[0] == "poison")
        self.account.expect("the most that one message killed", max(killed.values(), default=0), self.tries_max)
