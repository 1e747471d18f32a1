"""Log files are sent over the queue API while the server is killed: every line arrives once and in order.

    python -m tests.acceptance --only queue --kills 20

Five producers send the lines of their files to three topics, in parallel; three consumers write what they get to files.
Broker and gateway are killed together and restarted; in a longer campaign, sometimes only the gateway is killed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from oncemq.http import Consumer, Producer
from oncemq.protocol.errors import NothingNew
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.campaigns.report import CampaignReport
from tests.acceptance.processes import DEADLINE_S, SMALL, wait_until
from tests.forking import ForkedBroker
from tests.transports import TRANSPORTS

#: Topic → its producers, its consumers.
PLAN = {
    "T1": (("P1", "P2", "P3"), ("C1", "C2", "C3")),
    "T2": (("P1", "P4", "P5"), ("C1",)),
    "T3": (("P1", "P2"), ("C1", "C2", "C3")),
}
PRODUCERS = ("P1", "P2", "P3", "P4", "P5")
CONSUMERS = ("C1", "C2", "C3")
#: Lines of each file: a fixed number, and a number for each kill.
_LINES = 4
_LINES_PER_KILL = 4
#: One kill in this many hits only the gateway.
_GATEWAY_EVERY = 3


class QueueCampaign:
    def __init__(self, folder: Path, server: BrokerProcess, kills: int, seed: int) -> None:
        self._folder = folder
        self._server = server
        self._random = random.Random(seed)
        self._kills = kills
        self._lines = {name: _lines_of(name, _LINES + _LINES_PER_KILL * kills) for name in PRODUCERS}
        self._sent = dict.fromkeys(PRODUCERS, 0)
        self._all_sent = threading.Event()
        self._is_over = threading.Event()
        self._registered = threading.Barrier(len(PRODUCERS) + len(CONSUMERS))

    def run(self) -> CampaignReport:
        began_s = time.monotonic()
        report = CampaignReport(campaign="queue")
        for name, lines in self._lines.items():
            (self._folder / f"producer_{name}.txt").write_text("".join(f"{line}\n" for line in lines))
        with ThreadPoolExecutor(len(PRODUCERS) + len(CONSUMERS)) as pool, self._ends_all_on_error():
            consumers = [pool.submit(self._guarded(self._consume), name) for name in CONSUMERS]
            producers = [pool.submit(self._guarded(self._produce), name) for name in PRODUCERS]
            report.broker_kills = self._kill_repeatedly()
            for done in producers:
                done.result()
            self._all_sent.set()
            for done in consumers:
                done.result()
        self._compare(report)
        report.seconds = round(time.monotonic() - began_s, 1)
        return report

    @contextmanager
    def _ends_all_on_error(self) -> Iterator[None]:
        """If the block fails, all others end, too."""
        try:
            yield
        except BaseException:
            self._is_over.set()
            self._registered.abort()
            raise

    def _guarded(self, work: Callable[[str], None]) -> Callable[[str], None]:
        def guarded(name: str) -> None:
            with self._ends_all_on_error():
                work(name)

        return guarded

    # The clients, each in a thread.

    def _produce(self, name: str) -> None:
        topics = [topic for topic, (producers, _) in PLAN.items() if name in producers]
        with Producer(self._server.http_url, timeout_s=5) as producer:
            for topic in topics:
                producer.register(topic)
            self._registered.wait(DEADLINE_S)
            with (self._folder / f"producer_{name}.txt").open() as lines:
                for line in lines:
                    for topic in topics:
                        producer.enqueue(topic, line.rstrip("\n"))
                        self._sent[name] += 1

    def _consume(self, name: str) -> None:
        topics = [topic for topic, (_, consumers) in PLAN.items() if name in consumers]
        with Consumer(self._server.http_url, timeout_s=5) as consumer:
            wait_until(lambda: set(PLAN) <= set(consumer.list_topics()), "the producers have made the topics")
            consumer.register(*topics)
            self._registered.wait(DEADLINE_S)
            while not self._is_over.is_set():
                is_last = self._all_sent.is_set()
                counts = [self._drain(consumer, name, topic) for topic in topics]
                if is_last and not any(counts):
                    return

    def _drain(self, consumer: Consumer, name: str, topic: str) -> int:
        """Write available messages to the file. Returns how many there were."""
        count = 0
        with (self._folder / f"consumer_{name}_{topic}.txt").open("a") as log, suppress(NothingNew):
            while not self._is_over.is_set():
                log.write(f"{consumer.dequeue(topic, wait_s=0.02)!s}\n")
                count += 1
        return count

    # Kills.

    def _kill_repeatedly(self) -> dict[str, int]:
        topics_of = {name: sum(name in producers for producers, _ in PLAN.values()) for name in PRODUCERS}
        total = sum(len(lines) * topics_of[name] for name, lines in self._lines.items())
        counts = {"server": 0, "gateway": 0}
        for number in range(1, self._kills + 1):
            due = total * number // (self._kills + 1)
            wait_until(lambda due=due: self._has_sent(due), f"{due} of {total} messages are sent", 2 * DEADLINE_S)  # type: ignore[misc]
            time.sleep(self._random.uniform(0, 0.03))
            if number % _GATEWAY_EVERY:
                self._server.restart()
                counts["server"] += 1
            else:
                counts["gateway"] += self._kill_gateway()
        return counts

    def _has_sent(self, due: int) -> bool:
        return sum(self._sent.values()) >= due or self._is_over.is_set()

    def _kill_gateway(self) -> int:
        """Kill the gateway process. Returns 0 while it is starting."""
        pid = self._server.pid
        children = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        return len(children)

    # The check.

    def _compare(self, report: CampaignReport) -> None:
        for topic, (producers, consumers) in PLAN.items():
            lines = [line for name in producers for line in self._lines[name]]
            for name in consumers:
                logged = (self._folder / f"consumer_{name}_{topic}.txt").read_text().splitlines()
                report.compare(lines, lines, logged, lambda line: line.split()[0], f"lines of {topic} for {name}")


def _lines_of(name: str, count: int) -> list[str]:
    return [f"{name} line {number:04d}: {'INFO' if number % 3 else 'WARN'} ün café" for number in range(count)]


def run(folder: Path, kills: int, seed: int, *flags: str) -> CampaignReport:
    """Run a campaign with a server of its own."""
    folder.mkdir(exist_ok=True)
    # The gateway's transport.
    transport = random.Random(seed).choice(TRANSPORTS)
    server = ForkedBroker(folder / "data", *SMALL, *flags, http=True, transport=transport)
    server.start()
    try:
        return QueueCampaign(folder, server, kills, seed).run()
    finally:
        server.kill()
