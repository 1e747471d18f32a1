"""The crash campaign: a real broker is killed again and again while clients work; then everything is counted.

    python -m tests.acceptance.crash --kills 1000

Half of its lives the broker has a disk that loses what was not synced (shim_disk.py). Workers are killed too.
Kills follow `--seed`, but processes run as the machine lets them: a seed repeats a plan, not a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import oncemq.client.sync
from oncemq.client.runtime.transport import ZmqTransport  # noqa: F401 - imported before the first fork
from oncemq.testing.broker_process import free_url
from tests.acceptance.evidence import Evidence, Verdict, entries
from tests.acceptance.nursery import Child
from tests.acceptance.processes import DEADLINE_S, SMALL
from tests.acceptance.progress import Progress
from tests.acceptance.shim_broker import live, settings_for
from tests.acceptance.workers import PATIENT, Plan, Worker

TOPICS = ("orders", "stock.levels", "café")
PUBLISHERS = (
    Plan("single", "singly", TOPICS, is_named=True),
    Plan("bulk", "many", TOPICS),
    Plan("stream", "pipelined", TOPICS, is_named=True),
    Plan("hasty", "threads", TOPICS),
)
CONSUMERS = (
    Plan("kitchen", "iterating", TOPICS[:1], is_named=True),
    Plan("bar", "acking", TOPICS[:1]),
    Plan("shelf", "iterating", TOPICS[1:2]),
    Plan("till", "acking", TOPICS[1:2], is_named=True),
    Plan("waiter", "iterating", TOPICS[2:]),
)
#: Of the kills, those that hit the broker while it starts.
DURING_START_SHARE = 0.15
#: Of the lives, those of the command line's own broker, which starts slowly.
COMMAND_SHARE = 0.03
UP_MEAN_S = 0.08
WORKER_KILL_SHARE = 0.06


class CampaignFailed(Exception):
    """Something ended that should not, or did not come about in time."""


class Campaign:
    def __init__(self, folder: Path, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self.restarts_s: list[float] = []
        self._folder = folder
        self._random = Random(seed)
        self._url = free_url()
        self._settings = settings_for(str(folder / "data"), self._url)
        self._lives: Counter[str] = Counter()
        self._broker: Child | None = None
        self._workers: dict[str, Child] = {}

    # Processes.

    def _start_broker(self, kind: str) -> Child:
        seed = self._random.randrange(2**32)

        def body(ready: Callable[[], None]) -> int:
            if kind == "command":
                self._become_command()
            return live(self._settings, seed if kind == "shim" else None, lambda _: ready())

        self._broker = Child(body, self._folder / "broker.log")
        return self._broker

    def _become_command(self) -> None:
        """`oncemq serve`, which never says that it is ready."""
        command = [sys.executable, "-m", "oncemq", "serve", "--listen", self._url, "--data", self._settings.data]
        os.execv(sys.executable, [*command, "--http", "none", *SMALL])

    def _start_worker(self, plan: Plan) -> None:
        life = self._lives[plan.name]
        self._lives[plan.name] += 1
        work = self._folder
        url = self._url
        self._workers[plan.name] = Child(lambda _: Worker(plan, url, work, life).run(), work / "workers.log")

    def _ask(self, body: Callable[[oncemq.Client], dict[str, int]], name: str) -> dict[str, int]:
        """Something asked of the broker, by a child: this process has no sockets."""
        answer = self._folder / f"{name}.json"

        def child(_ready: object) -> int:
            with oncemq.connect(self._url, timeout_s=PATIENT[0], tries=PATIENT[1]) as client:
                found = body(client)
            answer.with_suffix(".making").write_text(json.dumps(found))
            answer.with_suffix(".making").rename(answer)
            return 0

        asked = Child(child, self._folder / "workers.log")
        if asked.wait(DEADLINE_S * 2) != 0:
            asked.kill()
            raise CampaignFailed(f"the broker did not answer: {name}")
        result: dict[str, int] = json.loads(answer.read_text())
        return result

    # The course of it.

    def run(self, kills: int, progress: Progress) -> Verdict:
        try:
            self._set_up()
            for _ in range(kills):
                self._kill_once()
                self._maybe_kill_worker()
                progress.show(sum(self.kills.values()) - self.kills["worker"], self._status())
            return self._finish()
        finally:
            for child in self._workers.values():
                child.kill()
            self._end_brokers()

    def _end_brokers(self) -> None:
        if self._broker is not None:
            self._broker.kill()

    def _status(self) -> str:
        return f"{self.kills['worker']} workers killed"

    def _set_up(self) -> None:
        self._await_ready(self._start_broker("plain"))
        self._subscribe_and_start()

    def _subscribe_and_start(self) -> None:
        def subscribe(client: oncemq.Client) -> dict[str, int]:
            for plan in CONSUMERS:
                client.subscribe(plan.topics[0], plan.name, start="earliest")
            return {}

        self._ask(subscribe, "subscribed")
        for plan in (*PUBLISHERS, *CONSUMERS):
            self._start_worker(plan)

    def _await_ready(self, broker: Child) -> None:
        if not broker.wait_ready(DEADLINE_S):
            raise CampaignFailed(f"the broker did not start (exit code {broker.poll()})")

    def _kill_once(self) -> None:
        assert self._broker is not None
        self._bury(self._broker)
        kind = self._choose()
        broker = self._start_broker(kind)
        when = "up"
        if kind == "command":
            time.sleep(self._random.uniform(0.3, 1.2))
        elif self._random.random() < DURING_START_SHARE:
            when = "starting"
            time.sleep(self._random.uniform(0.0, 0.04))
        else:
            self._await_ready(broker)
            self.restarts_s.append(time.monotonic() - broker.started_s)
            time.sleep(min(self._random.expovariate(1 / UP_MEAN_S), 6 * UP_MEAN_S))
        self._bury(broker)
        self.kills[f"{kind}, {when}"] += 1

    def _choose(self) -> str:
        if self._random.random() < COMMAND_SHARE:
            return "command"
        return self._random.choice(("plain", "shim"))

    def _bury(self, broker: Child) -> None:
        code = broker.kill()
        if code != -signal.SIGKILL:
            raise CampaignFailed(f"the broker ended by itself with exit code {code}")

    def _maybe_kill_worker(self) -> None:
        for plan in (*PUBLISHERS, *CONSUMERS):
            if self._workers[plan.name].poll() is not None:
                raise CampaignFailed(f"worker {plan.name} ended by itself: {self._last_words(plan)}")
        if self._random.random() < WORKER_KILL_SHARE:
            plan = self._random.choice((*PUBLISHERS, *CONSUMERS))
            self._workers[plan.name].kill()
            self._start_worker(plan)
            self.kills["worker"] += 1

    def _last_words(self, plan: Plan) -> str:
        written = list(entries(self._folder / f"{plan.name}.diary"))
        return " ".join(written[-1]) if written else "it wrote nothing"

    def _finish(self) -> Verdict:
        """No more kills: publishers end, consumers catch up, a clean stop and a last start change nothing."""
        self._await_ready(self._start_broker("shim"))
        self._end(PUBLISHERS)
        ends = self._ask(_ends, "ends")
        self._end(CONSUMERS)
        acked = self._ask(_acked, "acked")
        self._stop_cleanly(self._broker)
        self._await_ready(self._start_broker("plain"))
        evidence = Evidence(self._folder, ends)
        if self._ask(_ends, "ends-again") != ends or self._ask(_acked, "acked-again") != acked:
            evidence.problems.append("a clean stop changed something")
        for plan in CONSUMERS:
            if acked[plan.name] != ends[plan.topics[0]]:
                evidence.problems.append(f"{plan.name}: acked {acked[plan.name]} of {ends[plan.topics[0]]}")
        self._stop_cleanly(self._broker)
        return evidence.judge(PUBLISHERS, CONSUMERS)

    def _end(self, plans: tuple[Plan, ...]) -> None:
        for plan in plans:
            self._workers[plan.name].signal(signal.SIGTERM)
        for plan in plans:
            code = self._workers[plan.name].wait(4 * DEADLINE_S)
            if code is None:
                raise CampaignFailed(f"worker {plan.name} does not come to its end")

    def _stop_cleanly(self, broker: Child | None) -> None:
        assert broker is not None
        broker.signal(signal.SIGTERM)
        code = broker.wait(DEADLINE_S)
        if code != 0:
            raise CampaignFailed(f"a clean stop ended with exit code {code}")


def _ends(client: oncemq.Client) -> dict[str, int]:
    return {topic.name: topic.end_offset for topic in client.topics()}


def _acked(client: oncemq.Client) -> dict[str, int]:
    return {found.subscriber: found.acked for found in client.subscriptions()}


def summary_of(campaign: Campaign, verdict: Verdict, seconds: float, seed: int) -> dict[str, object]:
    restarts_ms = [1000 * one for one in campaign.restarts_s] or [0.0]
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "kills": dict(sorted(campaign.kills.items())),
        "restart_ms_median": round(statistics.median(restarts_ms), 1),
        "restart_ms_max": round(max(restarts_ms), 1),
        "puts_begun": verdict.announced,
        "puts_acknowledged": verdict.acknowledged,
        "messages_stored": verdict.stored,
        "deliveries": verdict.deliveries,
        "redeliveries_after_a_consumer_was_killed": verdict.redeliveries,
        "problems": verdict.problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a real broker again and again, and count what it kept.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folder even if all is well")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 2**32
    folder = Path(tempfile.mkdtemp(prefix="oncemq-crash-"))
    campaign = Campaign(folder, seed)
    began = time.monotonic()
    try:
        verdict = campaign.run(arguments.kills, Progress(arguments.kills))
    except CampaignFailed as failure:
        verdict = Verdict([str(failure)], 0, 0, 0, 0, 0)
    _say(summary_of(campaign, verdict, time.monotonic() - began, seed), arguments.json)
    if verdict.problems:
        _explain(folder, arguments.kills, seed)
        return 1
    if not arguments.keep:
        shutil.rmtree(folder)
    return 0


def _say(summary: dict[str, object], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(summary, indent=2) + "\n")
        return
    for name, value in summary.items():
        if isinstance(value, dict):
            value = ", ".join(f"{count} {kind}" for kind, count in value.items())
        if isinstance(value, list):
            value = "none" if not value else "".join(f"\n  {one}" for one in value)
        sys.stdout.write(f"{name.replace('_', ' ')}: {value}\n")


def _explain(folder: Path, kills: int, seed: int) -> None:
    for name in ("broker.log", "workers.log"):
        log = folder / name
        if log.exists():
            sys.stderr.write(f"--- {name}\n{log.read_text(errors='replace')[-3000:]}\n")
    again = f"python -m tests.acceptance.crash --kills {kills} --seed {seed}"
    sys.stderr.write(f"Evidence is in {folder}. Again: {again}\n")


if __name__ == "__main__":
    sys.exit(main())
