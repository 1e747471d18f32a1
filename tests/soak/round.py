"""One round: prepare topics, run clients under faults, let them finish in stages, and gather the evidence.

This process only forks, kills and watches: it has no threads, no sockets and no client.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

import oncemq
from oncemq.protocol.errors import TopicUnknown
from oncemq.tools.faults.checker import Verdict, judge
from oncemq.tools.faults.event_log import EventLog, id_of
from oncemq.tools.faults.processes import ForkedProcess
from tests.soak import hostile
from tests.soak.clients import native, push, text, udp, web, workers
from tests.soak.clients.client import ENDS, PATIENT, RoundContext, SoakClient
from tests.soak.evidence import AUDITOR, gather
from tests.soak.plan import AUDITED, BRIEF, CLIENTS, QUEUE, STAGES, TASKS, TEXT, ClientPlan, Fault, Phase, Stage
from tests.soak.resources import Watch
from tests.soak.server import Server

BODIES: dict[str, Callable[[SoakClient], None]] = {
    "put-blocking": native.put_blocking,
    "put-asyncio": native.put_asyncio,
    "outbox-1": native.put_through_outbox,
    "put-tasks": native.put_singly,
    "put-brief": native.put_brief,
    "put-later": native.put_later,
    "post-v1": web.post,
    "enqueue": web.enqueue,
    "text-put": text.put,
    "push-publish": push.publish,
    "udp-put": udp.put,
    "copier": native.copy,
    "worker-1": workers.work,
    "worker-2": workers.work,
    "get-blocking": native.get_blocking,
    "get-asyncio": native.get_asyncio,
    "get-outbox": native.get_blocking,
    "get-brief": native.get_brief,
    "get-later": native.get_blocking,
    "get-v1": web.get,
    "dequeue": web.dequeue,
    "text-get": text.get,
    "push-acks": push.subscribe,
    "push-client": native.get_from_push,
    "udp-get": udp.get,
}
#: Consumers that make or continue their subscription through a gateway.
_OWN_SUBSCRIPTION = ("push-acks", "udp-get", "dequeue")
_POLL_S = 0.05
_SAMPLE_S = 1.0
#: Timeout of each step at the end: more than any restart and any backlog takes.
_FINISH_S = 90.0
_ATTACK_S = 6.0
_RETAIN_MS = 1500


class Round:
    """A round in a folder of its own."""

    def __init__(self, context: RoundContext, server: Server, watch: Watch, phase: Phase) -> None:
        self._context = context
        self._server = server
        self._watch = watch
        self._is_steady = phase == "steady"
        self._processes: dict[str, ForkedProcess] = {}
        self._incarnations: Counter[str] = Counter()
        #: Name → when it starts again.
        self._returning: dict[str, float] = {}
        self._sampled_s = 0.0
        #: Clients that end are not started again.
        self._is_finishing = False
        self._attack: ForkedProcess | None = None
        self._attack_kind = ""
        self.problems: list[str] = []
        self.kills: Counter[str] = Counter()
        self.attacks: Counter[str] = Counter()

    def run(self, faults: Iterator[Fault], attacks: Iterator[str], load_s: float) -> Verdict:
        """Run, and return the verdict. No process of the round is left, however it ends."""
        self._context.folder.mkdir(parents=True)
        try:
            self._do("prepare", lambda: prepare(self._context))
            for stage in reversed(STAGES):
                self._start_all(stage)
            self._load([*faults], attacks, load_s)
            self._finish()
        finally:
            for process in [*self._processes.values(), *([self._attack] if self._attack else [])]:
                process.kill()
        evidence = gather(self._context)
        evidence.errors += self.problems
        return judge(evidence)

    # The load.

    def _start_all(self, stage: Stage) -> None:
        for client in CLIENTS:
            if client.stage == stage:
                self._start(client)

    def _start(self, client: ClientPlan) -> None:
        self._incarnations[client.name] += 1
        context, incarnation = self._context, self._incarnations[client.name]
        body = BODIES[client.name]
        self._processes[client.name] = self._fork(lambda: SoakClient(context, client, incarnation).run(body))

    def _fork(self, body: Callable[[], int]) -> ForkedProcess:
        return ForkedProcess(body, self._context.run_folder / "clients.log")

    def _load(self, faults: list[Fault], attacks: Iterator[str], load_s: float) -> None:
        began_s = time.monotonic()
        attack_s = min(_ATTACK_S, load_s / 2)
        while (elapsed_s := time.monotonic() - began_s) < load_s:
            while faults and faults[0].at_s <= elapsed_s:
                self._apply(faults.pop(0))
            if self._attack is None or self._attack.poll() is not None:
                self._end_attack()
                self._start_attack(next(attacks), min(attack_s, load_s - elapsed_s))
            self._look()
            time.sleep(_POLL_S)

    def _start_attack(self, kind: str, seconds: float) -> None:
        self._attack = self._fork(lambda: hostile.attack(kind, self._context.addresses, seconds))
        self._attack_kind = kind
        self.attacks[kind] += 1

    def _end_attack(self) -> None:
        """End the attack if it is still running. One that has failed before has attacked nothing."""
        if self._attack is not None and (code := self._attack.kill()) > 0:
            self.problems.append(f"the attack '{self._attack_kind}' ended with exit code {code}")

    def _apply(self, fault: Fault) -> None:
        if fault.victim == "client":
            self._kill_client(fault)
        elif self._server.kill(fault.victim):
            self.kills[fault.victim] += 1
            if fault.victim != "gateway":
                self._returning["broker"] = time.monotonic() + fault.pause_s

    def _kill_client(self, fault: Fault) -> None:
        process = self._processes[fault.client]
        if process.poll() is None:
            process.kill()
            self._returning[fault.client] = time.monotonic() + fault.pause_s
            self.kills["client"] += 1

    def _look(self) -> None:
        """Take samples, restart what was killed, and note what ended by itself."""
        now_s = time.monotonic()
        if now_s >= self._sampled_s + _SAMPLE_S:
            self._sampled_s = now_s
            self._watch.look(is_steady=self._is_steady)
        for name in [name for name, at_s in self._returning.items() if now_s >= at_s]:
            self._restart(name)
        if self._server.has_died():
            self.problems.append(f"the broker ended by itself: {self._server.broker.log_tail(3)}")
            self._server.start()
        for client in CLIENTS if not self._is_finishing else ():
            code = self._processes[client.name].poll()
            if code is not None and code > 0:
                self.problems.append(f"{client.name} ended with exit code {code}")
                self._start(client)

    def _restart(self, name: str) -> None:
        del self._returning[name]
        if name == "broker":
            self._server.start()
        else:
            self._start(next(client for client in CLIENTS if client.name == name))

    # The end.

    def _finish(self) -> None:
        for name in [*self._returning]:
            self._restart(name)
        self._end_attack()
        self._is_finishing = True
        for stage in STAGES:
            self._finish_clients([client for client in CLIENTS if client.stage == stage])
            self._do("ends", lambda: note_ends(self._context))
        self._do("audit", lambda: read_all(self._context))
        self._do("clean up", lambda: clean_up(self._context))

    def _finish_clients(self, clients: list[ClientPlan]) -> None:
        for client in clients:
            self._processes[client.name].terminate()
        until_s = time.monotonic() + _FINISH_S
        for client in clients:
            while (code := self._processes[client.name].poll()) is None and time.monotonic() < until_s:
                self._look()
                time.sleep(_POLL_S)
            if code != 0:
                self.problems.append(f"{client.name} did not finish (exit code {code})")
                self._processes[client.name].kill()

    def _do(self, what: str, body: Callable[[], int]) -> None:
        """Run a step in a process of its own."""
        process = self._fork(body)
        code = process.wait(_FINISH_S)
        if code != 0:
            process.kill()
            raise RoundFailed(f"{what} failed (exit code {code})")


class RoundFailed(Exception):
    """A step of the soak itself did not succeed, so that there is nothing to judge."""


# Steps, each in a process of its own.


@contextmanager
def _connected(context: RoundContext) -> Iterator[oncemq.Client]:
    with oncemq.connect(context.addresses.stream, label=AUDITOR, **PATIENT) as client:
        yield client


def prepare(context: RoundContext) -> int:
    """Create the topics, a subscription that keeps everything, and those of the consumers."""
    with _connected(context) as client:
        client.create_topic(context.topic(BRIEF), retain_ms=_RETAIN_MS)
        for topic in AUDITED:
            client.create_topic(context.topic(topic))
            client.subscribe(context.topic(topic), AUDITOR)
        for plan in CLIENTS:
            if plan.stage != "producer" and plan.topic != TASKS and plan.name not in _OWN_SUBSCRIPTION:
                client.subscribe(context.topic(plan.topic), plan.name)
        client.subscribe_shared(
            context.topic(TASKS), workers.SUBSCRIBER, lease_s=workers.LEASE_S, tries_max=workers.TRIES_MAX
        ).close()
    web.register_consumer(context.addresses.http, context.topic(QUEUE), "dequeue")
    return 0


def note_ends(context: RoundContext) -> int:
    """Write down where all topics end."""
    with _connected(context) as client:
        ends = {topic.name: topic.end_offset for topic in client.topics()}
    _write(context.folder / ENDS, msgspec.json.encode(ends))
    return 0


def _write(path: Path, data: bytes) -> None:
    # Clients look for the file while it is written.
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(data)
    unfinished.rename(path)


def read_all(context: RoundContext) -> int:
    """Log what is stored."""
    log = EventLog(context.log_path(AUDITOR))
    with _connected(context) as client:
        for name in AUDITED:
            topic = context.topic(name)
            id_in = text.id_in if name == TEXT else id_of
            for message in client.read(topic):
                log.write(("stored", topic, message.offset, id_in(message.value)))
            log.write(("end", topic, 0))
    return 0


def clean_up(context: RoundContext) -> int:
    """Delete the topics of the round."""
    with _connected(context) as client:
        for topic in (*AUDITED, BRIEF):
            with suppress(TopicUnknown):
                client.delete_topic(context.topic(topic))
    return 0
