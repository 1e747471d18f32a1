"""Optional processes. Each seed has only some of them, so that a run stays short."""

from __future__ import annotations

from oncemq.protocol import commands
from tests.simulation.processes.consumer import Consumer
from tests.simulation.processes.copier import Copier
from tests.simulation.processes.outbox_producer import OutboxProducer, OutboxUser
from tests.simulation.processes.pattern_consumer import PatternConsumer
from tests.simulation.processes.process import Context, Process
from tests.simulation.processes.producer import Producer
from tests.simulation.processes.quota_consumers import DroppedConsumer, EndedConsumer, SlowConsumer
from tests.simulation.processes.seeker import Seeker
from tests.simulation.processes.timed import JobProducer, TimedConsumer, TimedProducer
from tests.simulation.processes.worker import Worker

#: Maximum number of optional kinds per seed.
KINDS_MAX = 3
_AT_QUOTA = {commands.REFUSE: SlowConsumer, commands.DROP: DroppedConsumer, commands.EXPIRE: EndedConsumer}


class OptionalProcesses:
    def __init__(self, context: Context) -> None:
        self._around = context
        self._random = context.world.random("extras")
        self.churned = "churned"
        self.topics: list[commands.CreateTopic] = []
        self.readable: list[str] = []
        self.producers: list[Producer] = []
        self.others: list[Process] = []
        kinds = [
            self._add_copiers,
            self._add_workers,
            self._add_timed,
            self._add_pattern_consumers,
            self._add_seekers,
            self._add_quota_consumers,
            self._add_outbox_producers,
        ]
        self._random.shuffle(kinds)
        for kind in kinds[: int(self._random.random() * (KINDS_MAX + 1))]:
            kind()

    def _add_copiers(self) -> None:
        rival = self._random.random() < 0.5
        self._archive()
        self.others.append(Copier(self._around, "copier", "orders", "copies", rival=rival))
        if rival:
            self.others.append(Copier(self._around, "copier'", "orders", "copies", rival=True))

    def _archive(self) -> None:
        if "copies" not in self.readable:
            self.topics.append(commands.CreateTopic("copies"))
            self.readable.append("copies")
            self.others.append(Consumer(self._around, "archive", "copies", "archive", commands.START_EARLIEST))

    def _add_workers(self) -> None:
        random = self._random.random
        tries_max = 1 + int(random() * 4) if random() < 0.6 else 0
        sharing = commands.Sharing(100 + int(random() * 200), tries_max, "copies" if tries_max else "", random() < 0.6)
        self._archive()
        self.topics.append(commands.CreateTopic("jobs"))
        self.producers.append(JobProducer(self._around, "foreman", ["jobs"]))
        for number in range(2 + int(random() * 2)):
            self.others.append(Worker(self._around, f"worker {number}", "jobs", "crew", sharing, "copies"))

    def _add_timed(self) -> None:
        self.topics.append(commands.CreateTopic("later"))
        self.readable.append("later")
        self._around.lossy.add("later")
        self.producers.append(TimedProducer(self._around, "clock", ["later"]))
        self.others.append(TimedConsumer(self._around, "sleeper", "later"))

    def _add_pattern_consumers(self) -> None:
        random = self._random.random
        if random() < 0.4:
            self.churned = "p.churned"
        topics = ["p.a", "p.b", "p.c"]
        pattern = "p.*" if random() < 0.5 else "p.#"
        resubscribes = random() < 0.4
        watcher = PatternConsumer(self._around, "watcher", pattern, [*topics, self.churned], resubscribes=resubscribes)
        self.others.append(watcher)
        self.producers.append(Producer(self._around, "maker", topics, anonymous=False, rival=False))
        if not resubscribes and random() < 0.5:
            self.others.append(Seeker(self._around, "seeker of patterns", [(pattern, "watcher")]))

    def _add_seekers(self) -> None:
        self.others.append(Consumer(self._around, "reviewer", "kept", "reviewer", commands.START_EARLIEST))
        self._around.seekable.append(("kept", "reviewer"))
        self.others.append(Seeker(self._around, "seeker", self._around.seekable))

    def _add_outbox_producers(self) -> None:
        user = OutboxUser(self._around, "mailer")
        self.others.append(OutboxProducer(self._around, "mailer", user, ["orders", "kept"]))
        if self._random.random() < 0.4:
            self.others.append(OutboxProducer(self._around, "mailer'", user, ["orders"]))

    def _add_quota_consumers(self) -> None:
        random = self._random.random
        overflow = (commands.REFUSE, commands.DROP, commands.EXPIRE)[int(random() * 3)]
        self.topics.append(commands.CreateTopic("bounded", 0, 0, 1_500 + int(random() * 1_500), overflow))
        self.readable.append("bounded")
        self._around.lossy.add("bounded")
        self.producers.append(Producer(self._around, "filler", ["bounded"], anonymous=False, rival=False))
        for name in ("basin", "drain")[: 1 + int(random() * 2)]:
            self.others.append(_AT_QUOTA[overflow](self._around, name, "bounded"))
