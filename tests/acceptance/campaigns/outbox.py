"""A producer with an outbox is killed at every step between `put` and the broker's answer. At the end each message
whose put returned is in its topic once and in order, and none of the others is there twice.

    python -m tests.acceptance --only outbox --kills 500

Sometimes a second producer opens the outbox while the first one works, which must be fenced. At the end, copies of the
outbox that were made during the campaign are opened: each must be rejected as rewound, and send nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import oncemq
from oncemq.client.outbox.producer import Ticket
from oncemq.client.outbox.sync import OutboxClient
from oncemq.protocol.errors import Fenced, OutboxRewound
from oncemq.tools.faults.checker import Evidence
from oncemq.tools.faults.event_log import EventLog, MessageStream, id_of, read_events, value_of
from tests.acceptance.campaigns.base import FENCED, PATIENT, Campaign, Death
from tests.acceptance.faults import system_calls
from tests.acceptance.faults.kill_points import CLIENT, OUTBOX, KillPoint
from tests.acceptance.processes import DEADLINE_S

TOPICS = ("orders", "stock")
_TAKEOVER_SHARE = 0.1
_COPY_SHARE = 0.05
#: What a last producer puts after the last copy was made.
_LAST_PUTS = 30


class Producer:
    """One process of a producer. Its log says what it began to put, and which puts have returned."""

    def __init__(self, url: str, folder: Path, number: int, point: KillPoint) -> None:
        self._url = url
        self._folder = folder
        self._number = number
        self._point = point
        self._random = Random(f"producer/{number}")
        self._log = EventLog(folder / "producer.events")
        self._stream = MessageStream(self._log, f"{number:05}")

    def run(self, puts: int | None = None) -> int:
        """Put until it is killed. With `puts`: stop after that many, and empty the outbox."""
        try:
            client = oncemq.connect(self._url, outbox=self._folder / "outbox", batch_messages=10, **PATIENT)
            with client:
                while puts is None or self._stream.next_number < puts:
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
            [one] = self._stream.attempt(topic, 1)
            self._acknowledge(topic, [one], client.put(topic, value_of(one)))
        elif draw < 0.9:
            many = self._stream.attempt(topic, self._random.randint(2, 60))
            self._acknowledge(topic, many, client.put_many(topic, map(value_of, many)))
        else:
            # Not acknowledged, but in order with the others.
            for one in self._stream.attempt(topic, self._random.randint(1, 5)):
                client.put_nowait(topic, value_of(one))

    def _acknowledge(self, topic: str, messages: list[str], ticket: Ticket) -> None:
        self._point.reach("after put returned")
        self._log.write(("numbers", self._number, *ticket.numbers))
        self._stream.acknowledge(topic, messages)


class OutboxCampaign(Campaign):
    """Kills a producer with an outbox."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(
            "outbox",
            folder,
            seed,
            steps=(*CLIENT, *OUTBOX),
            own_points=("after put returned",),
            calls=(*system_calls.CLIENT, *system_calls.OUTBOX),
        )
        self._producers = 0
        self._copies: list[Path] = []

    def set_up(self) -> None:
        self.make_topics(*TOPICS)

    def kill_once(self) -> None:
        if self.random.random() < _TAKEOVER_SHARE:
            self._kill_during_takeover()
            return
        death = self.choose_death()
        self._start("producer", death)
        self.disturb_broker()
        self.await_death("producer", death)
        if self.random.random() < _COPY_SHARE:
            self._copy()

    def _start(self, name: str, death: Death) -> None:
        self.start(name, self._producer(death.point).run, death)

    def _producer(self, point: KillPoint) -> Producer:
        self._producers += 1
        return Producer(self.urls.next(), self.folder, self._producers, point)

    def _kill_during_takeover(self) -> None:
        """The first one keeps working. The second one may die while it takes over; the third one does not."""
        no_point = Death(KillPoint(), self.random.uniform(0, 0.15))
        self._start("producer", no_point)
        self.wait(self.processes["producer"], no_point.limit_s)
        death = self.choose_death()
        self._start("second producer", death)
        self.disturb_broker()
        self.await_death("second producer", death)
        self._start("third producer", no_point)
        self.expect_fenced("producer")
        self.await_death("third producer", no_point)

    def _copy(self) -> None:
        """Make a backup while no process has the outbox open. On a busy machine the first producers may die before they
        create it. A copy of nothing would be a new outbox, which is rightly accepted."""
        if not any(read_events(self.folder / "producer.events")):
            return
        copy = self.folder / f"copy {len(self._copies)}"
        copy.mkdir()
        for path in self.folder.glob("outbox*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, copy / path.name)
        self._copies.append(copy)

    # The end.

    def finish(self) -> None:
        self._copy()
        last = self._producer(KillPoint())
        self.complete("last producer", lambda: last.run(_LAST_PUTS))
        self._check_messages()
        ends = self._ends()
        rejected = sum(map(self._is_rejected, self._copies))
        self.report.more = {"copies": len(self._copies), "copies_rejected": rejected}
        self.report.expect("rejected copies", rejected, len(self._copies))
        self.report.expect("topics after copies were opened", self._ends(), ends)

    def _ends(self) -> dict[str, int]:
        return dict(self.ask("ends", lambda client: {topic.name: topic.end_offset for topic in client.topics()}))

    def _is_rejected(self, copy: Path) -> bool:
        """Whether the client refuses a copy, when a message is put or when it only sends what the copy contains."""
        outcome, url = copy / "outcome", self.urls.next()

        def restore() -> int:
            try:
                with oncemq.connect(url, outbox=copy / "outbox", **PATIENT) as client:
                    client.put(TOPICS[0], value_of("99999.000000"))
                    client.flush(timeout_s=DEADLINE_S)
                outcome.write_text("accepted")
            except OutboxRewound:
                outcome.write_text("rejected")
            return 0

        self.complete("a copy", restore)
        return outcome.read_text() == "rejected"

    def _check_messages(self) -> None:
        evidence = Evidence(stored={topic: self._messages_in(topic) for topic in TOPICS})
        #: By process: concurrent processes write into one log, and the first one may write last.
        numbers: dict[int, list[int]] = {}
        for entry in read_events(self.folder / "producer.events"):
            match entry:
                case ["attempted", topic, message]:
                    evidence.attempted.setdefault(topic, []).append(message)
                case ["acknowledged", topic, message, _]:
                    evidence.acknowledged.setdefault(topic, {})[message] = -1
                case ["numbers", process, *found]:
                    numbers.setdefault(int(process), []).extend(map(int, found))
        # The number of the process says which message came first.
        evidence.attempted = {topic: sorted(messages) for topic, messages in evidence.attempted.items()}
        self.report.add(evidence)
        in_order = [number for process in sorted(numbers) for number in numbers[process]]
        # Messages that were put without waiting have numbers that no ticket shows.
        self.report.expect("the numbers of tickets rise", in_order, sorted(set(in_order)))

    def _messages_in(self, topic: str) -> list[str]:
        return list(self.ask(f"ids in {topic}", lambda client: [id_of(each.value) for each in client.read(topic)]))
