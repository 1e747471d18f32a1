"""A real broker is killed again and again while clients work. At the end everything is checked.

    python -m tests.acceptance --only broker --kills 1000

In half of its processes the broker has a disk that loses unsynced data (lossy_disk.py). Clients are killed, too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median

import oncemq.client.sync
from oncemq.tools.faults.checker import Delivery, Evidence
from oncemq.tools.faults.event_log import read_events
from oncemq.tools.faults.evidence import read_log
from oncemq.tools.faults.processes import ForkedProcess, ForkedServer
from tests.acceptance.campaigns.addresses import Turns, listen_everywhere
from tests.acceptance.campaigns.base import AT_ANY_MOMENT
from tests.acceptance.campaigns.broker_clients import PATIENT, BrokerClient, ClientPlan
from tests.acceptance.campaigns.progress import Progress
from tests.acceptance.campaigns.report import CampaignFailed, CampaignReport
from tests.acceptance.faults.broker import run_broker, settings_for
from tests.acceptance.processes import DEADLINE_S, SMALL

TOPICS = ("orders", "stock.levels", "café")
PUBLISHERS = (
    ClientPlan("single", "singly", TOPICS, is_named=True),
    ClientPlan("bulk", "many", TOPICS),
    ClientPlan("stream", "pipelined", TOPICS, is_named=True),
    ClientPlan("hasty", "threads", TOPICS),
)
CONSUMERS = (
    ClientPlan("kitchen", "iterating", TOPICS[:1], is_named=True),
    ClientPlan("bar", "acking", TOPICS[:1]),
    ClientPlan("shelf", "iterating", TOPICS[1:2]),
    ClientPlan("till", "acking", TOPICS[1:2], is_named=True),
    ClientPlan("waiter", "iterating", TOPICS[2:]),
)
#: Share of kills that hit the broker while it starts.
_DURING_START_SHARE = 0.15
#: Share of processes in which the broker is `oncemq serve`, which starts slowly.
_COMMAND_SHARE = 0.03
_UP_MEAN_S = 0.08
_CLIENT_KILL_SHARE = 0.06


class BrokerCampaign:
    """Kills the broker."""

    def __init__(self, folder: Path, seed: int, name: str = "broker") -> None:
        self.report = CampaignReport(campaign=name)
        self._broker_kills: Counter[str] = Counter()
        self._client_kills = 0
        self._restarts_s: list[float] = []
        self._folder = folder
        self._random = Random(seed)
        listen = listen_everywhere(folder)
        self._urls = Turns(listen, self._random)
        self._settings = settings_for(str(folder / "data"), *listen)
        self._incarnations: Counter[str] = Counter()
        self._broker: ForkedServer | None = None
        self._clients: dict[str, ForkedProcess] = {}

    def run(self, kills: int, progress: Progress) -> CampaignReport:
        """Kill the broker, then check everything."""
        began_s = time.monotonic()
        try:
            self._set_up()
            for _ in range(kills):
                self._kill_once()
                self._maybe_kill_client()
                progress.show(self._broker_kills.total(), f"{self._client_kills} clients killed")
            self._finish()
        except CampaignFailed as failure:
            self.report.problems.append(str(failure))
        finally:
            for process in (*self._clients.values(), *self._brokers()):
                process.kill()
        self.report.kills = {AT_ANY_MOMENT: self._client_kills}
        self.report.broker_kills = dict(sorted(self._broker_kills.items()))
        self.report.more |= self._urls.counts
        if self._restarts_s:
            self.report.more["restart_ms_median"] = round(1000 * median(self._restarts_s))
            self.report.more["restart_ms_max"] = round(1000 * max(self._restarts_s))
        self.report.seconds = round(time.monotonic() - began_s, 1)
        return self.report

    def _brokers(self) -> list[ForkedServer]:
        return [] if self._broker is None else [self._broker]

    # Processes.

    def _start_broker(self, kind: str) -> ForkedServer:
        seed = self._random.randrange(2**32)

        def body(ready: Callable[[], None]) -> int:
            if kind == "command":
                self._exec_command()
            return run_broker(self._settings, seed if kind == "lossy" else None, lambda _: ready())

        self._broker = ForkedServer(body, self._folder / "broker.log")
        return self._broker

    def _exec_command(self) -> None:
        """Become `oncemq serve`, which does not report that it is ready."""
        command = [sys.executable, "-m", "oncemq", "serve", "--data", self._settings.data, "--http", "none", *SMALL]
        os.execv(sys.executable, [*command, *(f"--listen={url}" for url in self._settings.listen)])

    def _fork(self, body: Callable[[], int]) -> ForkedProcess:
        return ForkedProcess(body, self._folder / "clients.log")

    def _start_client(self, plan: ClientPlan) -> None:
        incarnation = self._incarnations[plan.name]
        self._incarnations[plan.name] += 1
        url, folder = self._urls.next(), self._folder
        self._clients[plan.name] = self._fork(lambda: BrokerClient(plan, url, folder, incarnation).run())

    def _ask(self, body: Callable[[oncemq.Client], dict[str, int]], name: str) -> dict[str, int]:
        """Ask the broker through a child process: this process has no sockets."""
        answer, url = self._folder / f"{name}.json", self._urls.next()

        def child() -> int:
            with oncemq.connect(url, timeout_s=PATIENT[0], tries=PATIENT[1]) as client:
                found = body(client)
            answer.with_suffix(".tmp").write_text(json.dumps(found))
            answer.with_suffix(".tmp").rename(answer)
            return 0

        process = self._fork(child)
        if process.wait(DEADLINE_S * 2) != 0:
            process.kill()
            raise CampaignFailed(f"the broker did not answer: {name}")
        result: dict[str, int] = json.loads(answer.read_text())
        return result

    # Kills.

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
            self._start_client(plan)

    def _await_ready(self, broker: ForkedServer) -> None:
        if not broker.wait_ready(DEADLINE_S):
            raise CampaignFailed(f"the broker did not start (exit code {broker.poll()})")

    def _kill_once(self) -> None:
        assert self._broker is not None
        self._kill(self._broker)
        kind = self._choose_kind()
        broker = self._start_broker(kind)
        when = "up"
        if kind == "command":
            time.sleep(self._random.uniform(0.3, 1.2))
        elif self._random.random() < _DURING_START_SHARE:
            when = "starting"
            time.sleep(self._random.uniform(0.0, 0.04))
        else:
            self._await_ready(broker)
            self._restarts_s.append(time.monotonic() - broker.started_s)
            time.sleep(min(self._random.expovariate(1 / _UP_MEAN_S), 6 * _UP_MEAN_S))
        self._kill(broker)
        self._broker_kills[f"{kind}, {when}"] += 1

    def _choose_kind(self) -> str:
        if self._random.random() < _COMMAND_SHARE:
            return "command"
        return self._random.choice(("plain", "lossy"))

    def _kill(self, broker: ForkedServer) -> None:
        code = broker.kill()
        if code != -signal.SIGKILL:
            raise CampaignFailed(f"the broker ended unexpectedly with exit code {code}")

    def _maybe_kill_client(self) -> None:
        for plan in (*PUBLISHERS, *CONSUMERS):
            if self._clients[plan.name].poll() is not None:
                *_, last = ["nothing"], *read_events(self._folder / f"{plan.name}.events")
                raise CampaignFailed(f"{plan.name} ended unexpectedly; its last entry is: {' '.join(last)}")
        if self._random.random() < _CLIENT_KILL_SHARE:
            plan = self._random.choice((*PUBLISHERS, *CONSUMERS))
            self._clients[plan.name].kill()
            self._start_client(plan)
            self._client_kills += 1

    # The end.

    def _finish(self) -> None:
        """Without further kills: publishers end, consumers catch up; a clean stop and a restart change nothing."""
        self._await_ready(self._start_broker("lossy"))
        self._end_clients(PUBLISHERS)
        ends = self._ask(_ends, "ends")
        self._end_clients(CONSUMERS)
        acked = self._ask(_acked, "acked")
        self._stop_cleanly(self._broker)
        self._await_ready(self._start_broker("plain"))
        self._check(ends, acked)
        self._stop_cleanly(self._broker)

    def _check(self, ends: dict[str, int], acked: dict[str, int]) -> None:
        """Check positions before and after a restart, and all messages."""
        self.report.expect("the ends of topics after a clean stop", self._ask(_ends, "ends-again"), ends)
        self.report.expect("the positions after a clean stop", self._ask(_acked, "acked-again"), acked)
        for plan in CONSUMERS:
            self.report.expect(f"the position of {plan.name}", acked[plan.name], ends[plan.topics[0]])
        evidence = gather(self._folder, PUBLISHERS, CONSUMERS, {topic: ends[topic] for topic in TOPICS})
        self.report.add(evidence)
        delivered = sum(len(delivery.got) for delivery in evidence.deliveries)
        redelivered = sum(delivery.redelivered for delivery in evidence.deliveries)
        self.report.more |= {"deliveries": delivered, "redeliveries": redelivered}

    def _end_clients(self, plans: Iterable[ClientPlan]) -> None:
        for plan in plans:
            self._clients[plan.name].terminate()
        for plan in plans:
            if self._clients[plan.name].wait(4 * DEADLINE_S) is None:
                raise CampaignFailed(f"{plan.name} does not end")

    def _stop_cleanly(self, broker: ForkedServer | None) -> None:
        assert broker is not None
        broker.terminate()
        code = broker.wait(DEADLINE_S)
        if code != 0:
            raise CampaignFailed(f"a clean stop ended with exit code {code}")


def gather(
    folder: Path, publishers: Sequence[ClientPlan], consumers: Sequence[ClientPlan], ends: Mapping[str, int]
) -> Evidence:
    """Collect what clients logged. What is stored in a topic is what its first consumer saw."""
    evidence = Evidence(stream_of=lambda message: message.rpartition(".")[0])
    for plan in (*publishers, *consumers):
        subscribed = dict.fromkeys(plan.topics, 0) if plan in consumers else {}
        read_log(evidence, plan.name, folder / f"{plan.name}.events", subscribed)
    for topic, end in ends.items():
        first = next(delivery for delivery in evidence.deliveries if delivery.topic == topic)
        stored = evidence.stored[topic] = _first_deliveries(first)
        if len(stored) != end:
            evidence.errors.append(f"{first.subscriber}: {len(stored)} messages; {topic} has {end}")
    return evidence


def _first_deliveries(delivery: Delivery) -> list[str]:
    """Return the messages by offset, up to the first gap."""
    seen: list[str] = []
    for offset, message in delivery.got:
        if offset == len(seen):
            seen.append(message)
    return seen


def _ends(client: oncemq.Client) -> dict[str, int]:
    return {topic.name: topic.end_offset for topic in client.topics()}


def _acked(client: oncemq.Client) -> dict[str, int]:
    return {found.subscriber: found.acked for found in client.subscriptions()}
