"""The outbox's crash campaign: a producer is killed again and again, at every step between `put` and the broker's
answer; then each message whose put returned is in its topic once and in order, and of the others none twice.

    python -m tests.acceptance --only outbox --kills 500

Now and then a second producer opens the outbox while the first still works, which must be fenced. In the end copies
of the outbox that were made on the way are opened: each must be noticed as rewound, and send nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import ClassVar

import oncemq
from oncemq.client.outbox.producer import Ticket
from oncemq.client.outbox.sync import OutboxClient
from oncemq.protocol.errors import Fenced, OutboxRewound
from tests.acceptance import tracing
from tests.acceptance.campaign import FENCED, PATIENT, Campaign, Death
from tests.acceptance.evidence import entries
from tests.acceptance.processes import DEADLINE_S
from tests.acceptance.steps import CLIENT, OUTBOX, Doom, Step
from tests.acceptance.workers import Diary, id_of, value_of

TOPICS = ("orders", "stock")
_TWIN_SHARE = 0.1
_COPY_SHARE = 0.05
#: What a last producer puts after the last copy was made.
_LAST_PUTS = 30


class Producer:
    """One life of a producer. Its diary says what it began to put, and what has returned."""

    def __init__(self, url: str, folder: Path, life: int, doom: Doom) -> None:
        self._url = url
        self._folder = folder
        self._life = life
        self._doom = doom
        self._random = Random(f"producer/{life}")
        self._next = 0
        self._diary = Diary(folder / "producer.diary")

    def run(self, puts: int | None = None) -> int:
        """Until it is killed; with `puts`, after so many the outbox is emptied."""
        try:
            client = oncemq.connect(self._url, outbox=self._folder / "outbox", batch_messages=10, **PATIENT)
            with client:
                while puts is None or self._next < puts:
                    self._put(client)
                client.flush()
                assert client.pending == 0
        except Fenced:
            return FENCED
        return 0

    def _put(self, client: OutboxClient) -> None:
        topic = self._random.choice(TOPICS)
        draw = self._random.random()
        if draw < 0.7:
            [one] = self._begin(topic, 1)
            self._done(topic, [one], client.put(topic, value_of(one)))
        elif draw < 0.9:
            many = self._begin(topic, self._random.randint(2, 60))
            self._done(topic, many, client.put_many(topic, map(value_of, many)))
        else:
            # Promised to nobody, but in order with the others.
            for one in self._begin(topic, self._random.randint(1, 5)):
                client.put_nowait(topic, value_of(one))

    def _begin(self, topic: str, count: int) -> list[str]:
        ids = [f"{self._life:05}.{number:06}" for number in range(self._next, self._next + count)]
        self._next += count
        self._diary.write(*(f"will {topic} {one}" for one in ids))
        return ids

    def _done(self, topic: str, ids: list[str], ticket: Ticket) -> None:
        self._doom.reach("after put returned")
        numbers = " ".join(map(str, ticket.numbers))
        self._diary.write(f"numbers {self._life} {numbers}", *(f"done {topic} {one}" for one in ids))


class OutboxCampaign(Campaign):
    name = "outbox"
    steps: ClassVar[tuple[Step, ...]] = (*CLIENT, *OUTBOX)
    own_points: ClassVar[tuple[str, ...]] = ("after put returned",)
    calls: ClassVar[tuple[str, ...]] = (*tracing.CLIENT, *tracing.OUTBOX)

    def set_up(self) -> None:
        self._lives = 0
        self._copies: list[Path] = []
        self.make_topics(*TOPICS)

    def kill_once(self) -> None:
        if self.random.random() < _TWIN_SHARE:
            self._kill_with_twins()
            return
        death = self.choose_death()
        self._start("producer", death)
        self.trouble_broker()
        self.die("producer", death)
        if self.random.random() < _COPY_SHARE:
            self._copy()

    def _start(self, name: str, death: Death) -> None:
        self.start(name, self._producer(death.doom).run, death)

    def _producer(self, doom: Doom) -> Producer:
        self._lives += 1
        return Producer(self.url, self.folder, self._lives, doom)

    def _kill_with_twins(self) -> None:
        """The first one works on. The second one may die while it takes over; the third one does not."""
        immortal = Death(Doom(), self.random.uniform(0, 0.15))
        self._start("producer", immortal)
        self.wait(self._children["producer"], immortal.limit_s)
        death = self.choose_death()
        self._start("second producer", death)
        self.trouble_broker()
        self.die("second producer", death)
        self._start("third producer", immortal)
        self.expect_fenced("producer")
        self.die("third producer", immortal)

    def _copy(self) -> None:
        """A backup, made while nobody has the outbox open."""
        copy = self.folder / f"copy {len(self._copies)}"
        copy.mkdir()
        for path in self.folder.glob("outbox*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, copy / path.name)
        self._copies.append(copy)

    # The end.

    def finish(self) -> None:
        self._copy()
        last = self._producer(Doom())
        self.complete("last producer", lambda: last.run(_LAST_PUTS))
        self._judge()
        ends = self._ends()
        self.account.more = {"copies": len(self._copies), "copies_noticed": sum(map(self._is_noticed, self._copies))}
        self.account.expect("copies that were noticed", self.account.more["copies_noticed"], len(self._copies))
        self.account.expect("topics after copies were opened", self._ends(), ends)

    def _ends(self) -> dict[str, int]:
        return dict(self.ask("ends", lambda client: {topic.name: topic.end_offset for topic in client.topics()}))

    def _is_noticed(self, copy: Path) -> bool:
        """The copy says so, whether something is put into it or it only sends what it has."""
        outcome = copy / "outcome"

        def restore() -> int:
            try:
                with oncemq.connect(self.url, outbox=copy / "outbox", **PATIENT) as client:
                    client.put(TOPICS[0], value_of("99999.000000"))
                    client.flush(timeout_s=DEADLINE_S)
                outcome.write_text("not noticed")
            except OutboxRewound:
                outcome.write_text("noticed")
            return 0

        self.complete("a copy", restore)
        return outcome.read_text() == "noticed"

    def _judge(self) -> None:
        begun: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        promised: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        #: By life: twins write into one diary side by side, and who came first may write last.
        by_life: dict[int, list[int]] = {}
        for entry in entries(self.folder / "producer.diary"):
            match entry:
                case ["will", topic, message_id]:
                    begun[topic].append(message_id)
                case ["done", topic, message_id]:
                    promised[topic].append(message_id)
                case ["numbers", life, *found]:
                    by_life.setdefault(int(life), []).extend(map(int, found))
        numbers = [number for life in sorted(by_life) for number in by_life[life]]
        # What was put without waiting takes numbers that nobody is told.
        self.account.expect("tickets' numbers rise", numbers, sorted(set(numbers)))
        for topic in TOPICS:
            # A life's number says who came first.
            self.account.compare(sorted(begun[topic]), promised[topic], self._ids_in(topic), what=topic)

    def _ids_in(self, topic: str) -> list[str]:
        def read(client: oncemq.Client) -> list[str]:
            return [id_of(message.value) for message in client.read(topic)]

        return list(self.ask(f"ids in {topic}", read))
