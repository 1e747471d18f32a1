"""Who else is there: each seed has some of the more special processes, so that a run stays short."""

from __future__ import annotations

from oncemq.protocol import commands
from tests.simulation.processes.consumer import Consumer
from tests.simulation.processes.copier import Copier
from tests.simulation.processes.outbox_producer import Mailer, PostOffice
from tests.simulation.processes.pattern_consumer import Watcher
from tests.simulation.processes.process import Process, Surroundings
from tests.simulation.processes.producer import Producer
from tests.simulation.processes.quota_consumers import DroppedConsumer, EndedConsumer, SlowConsumer
from tests.simulation.processes.seeker import Seeker
from tests.simulation.processes.timed import JobProducer, TimedConsumer, TimedProducer
from tests.simulation.processes.worker import Worker

#: How many of the kinds below a seed has, at the most.
KINDS_MAX = 3
_AT_QUOTA = {commands.REFUSE: SlowConsumer, commands.DROP: DroppedConsumer, commands.EXPIRE: EndedConsumer}


class Extras:
    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._random = around.world.random("extras")
        self.churned = "churned"
        self.topics: list[commands.CreateTopic] = []
        self.readable: list[str] = []
        self.producers: list[Producer] = []
        self.others: list[Process] = []
        kinds = [
            self._copying,
            self._sharing,
            self._timing,
            self._watching,
            self._seeking,
            self._filling,
            self._mailing,
        ]
        self._random.shuffle(kinds)
        for kind in kinds[: int(self._random.random() * (KINDS_MAX + 1))]:
            kind()

    def _copying(self) -> None:
        twin = self._random.random() < 0.5
        self._archive()
        self.others.append(Copier(self._around, "copier", "orders", "copies", twin=twin))
        if twin:
            self.others.append(Copier(self._around, "copier'", "orders", "copies", twin=True))

    def _archive(self) -> None:
        if "copies" not in self.readable:
            self.topics.append(commands.CreateTopic("copies"))
            self.readable.append("copies")
            self.others.append(Consumer(self._around, "archive", "copies", "archive", commands.START_EARLIEST))

    def _sharing(self) -> None:
        random = self._random.random
        tries_max = 1 + int(random() * 4) if random() < 0.6 else 0
        sharing = commands.Sharing(100 + int(random() * 200), tries_max, "copies" if tries_max else "", random() < 0.6)
        self._archive()
        self.topics.append(commands.CreateTopic("jobs"))
        self.producers.append(JobProducer(self._around, "foreman", ["jobs"]))
        for number in range(2 + int(random() * 2)):
            self.others.append(Worker(self._around, f"worker {number}", "jobs", "crew", sharing, "copies"))

    def _timing(self) -> None:
        self.topics.append(commands.CreateTopic("later"))
        self.readable.append("later")
        self._around.fading.add("later")
        self.producers.append(TimedProducer(self._around, "clock", ["later"]))
        self.others.append(TimedConsumer(self._around, "sleeper", "later"))

    def _watching(self) -> None:
        random = self._random.random
        if random() < 0.4:
            self.churned = "p.churned"
        topics = ["p.a", "p.b", "p.c"]
        pattern = "p.*" if random() < 0.5 else "p.#"
        churns = random() < 0.4
        watcher = Watcher(self._around, "watcher", pattern, [*topics, self.churned], churns=churns)
        self.others.append(watcher)
        self.producers.append(Producer(self._around, "maker", topics, anonymous=False, twin=False))
        if not churns and random() < 0.5:
            self.others.append(Seeker(self._around, "seeker of patterns", [(pattern, "watcher")]))

    def _seeking(self) -> None:
        self.others.append(Consumer(self._around, "reviewer", "kept", "reviewer", commands.START_EARLIEST))
        self._around.seekable.append(("kept", "reviewer"))
        self.others.append(Seeker(self._around, "seeker", self._around.seekable))

    def _mailing(self) -> None:
        office = PostOffice(self._around, "mailer")
        self.others.append(Mailer(self._around, "mailer", office, ["orders", "kept"]))
        if self._random.random() < 0.4:
            self.others.append(Mailer(self._around, "mailer'", office, ["orders"]))

    def _filling(self) -> None:
        random = self._random.random
        overflow = (commands.REFUSE, commands.DROP, commands.EXPIRE)[int(random() * 3)]
        self.topics.append(commands.CreateTopic("bounded", 0, 0, 1_500 + int(random() * 1_500), overflow))
        self.readable.append("bounded")
        self._around.fading.add("bounded")
        self.producers.append(Producer(self._around, "filler", ["bounded"], anonymous=False, twin=False))
        for name in ("basin", "drain")[: 1 + int(random() * 2)]:
            self.others.append(_AT_QUOTA[overflow](self._around, name, "bounded"))
