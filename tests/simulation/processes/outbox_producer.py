"""Processes that put through an outbox: whenever they are killed, what they kept is stored once and in order."""

from __future__ import annotations

from collections.abc import Callable

from oncemq.client.core.core import Core
from oncemq.client.core.pending import Pending
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.producer.encoding import make_put
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from tests.simulation.checks.history import Attempt
from tests.simulation.environment.world import Violation
from tests.simulation.processes.outbox_storage import Killed, Mailbox
from tests.simulation.processes.process import OPTIONS, Process, Surroundings


class PostOffice:
    """Where the processes of one user find their outbox; they begin another when it was rewound."""

    def __init__(self, around: Surroundings, name: str) -> None:
        self._around = around
        self.name = name
        self.mailboxes: list[Mailbox] = []
        self.begin_another()

    def begin_another(self) -> None:
        self.mailboxes.append(Mailbox(self._around.world, f"outbox {len(self.mailboxes)} of {self.name}"))

    @property
    def mailbox(self) -> Mailbox:
        return self.mailboxes[-1]

    # At the end.

    def check(self) -> None:
        for mailbox in self.mailboxes:
            attempts = [attempt for _, attempt in sorted(mailbox.kept.items())]
            self._around.ledger.check_order(mailbox.session, attempts)
            refused = mailbox.refused()
            for number, attempt in mailbox.kept.items():
                if attempt.place is not None and number in refused:
                    raise Violation(f"unexpected: {attempt.label} was stored, and {mailbox.session} calls it refused")
                if attempt.place is None and number not in refused and not mailbox.was_restored:
                    raise Violation(f"lost: {attempt.label}, number {number} of {mailbox.session}")


class Mailer(Process):
    def __init__(self, around: Surroundings, name: str, office: PostOffice, topics: list[str]) -> None:
        super().__init__(around, name)
        self.office = office
        self.topics = topics
        self.outbox: OutboxFile | None = None
        self._mailbox = office.mailbox
        self._values = 0

    # Its life.

    def start(self) -> None:
        self.lives += 1
        self._mailbox = self.office.mailbox
        self._guarded(self._start)

    def _start(self) -> None:
        try:
            self.outbox = self._mailbox.open(f"{self.name}~{self.lives}")
            nonce = self.random.getrandbits(62) + 1
            self.core = Core(self.outbox.session, False, nonce, OPTIONS, outbox=self.outbox)
        except errors.OutboxFull:
            self._die()
            return
        self.world.note(f"{self.name} opened {self.outbox.session}: {self.outbox.pending_count} are kept")
        self._connect()
        if self.random.random() < 0.5:
            # Before the broker has said anything.
            self._act()
        else:
            self._think()
        self.pump()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Killed:
            self._die()

    def _die(self) -> None:
        self.world.note(f"{self.name} was killed at its outbox")
        self.stop()
        self._restore()
        self.world.after(20 + int(self.random.random() * 200), self._start_again)

    def stop(self) -> None:
        super().stop()
        self.outbox = None

    def crash(self) -> None:
        was_there = self.core is not None
        super().crash()
        if was_there:
            self._restore()

    def _restore(self) -> None:
        """A backup is put back, sometimes, by somebody who does not know better."""
        if self.world.healed or self._mailbox is not self.office.mailbox or self.random.random() < 0.7:
            return
        if self._mailbox.restore():
            self.world.note(f"{self._mailbox.session} was restored from a copy")
            self.world.tally["outbox: restored from a copy"] += 1

    def pump(self) -> None:
        self._guarded(super().pump)

    def receive(self, frames: list[Frame]) -> None:
        self._guarded(lambda: super(Mailer, self).receive(frames))

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        super().later(delay_ms, lambda: self._guarded(action))

    @property
    def is_settled(self) -> bool:
        if self.core is None or self.outbox is None:
            return self.yields
        mailbox = self._mailbox
        # In the file may be more, where another process has had it since.
        is_all = mailbox.was_restored or mailbox.undecided() <= len(self.outbox._unmarked)
        return is_all and self.outbox.pending_count == 0

    def trouble(self) -> str:
        return f"{super().trouble()}: {self._mailbox.undecided()} in the outbox"

    # Putting.

    def _think(self) -> None:
        self.later(int(self.random.random() * 2 * self.world.weather.think_ms), self._act)

    def _act(self) -> None:
        if self._is_finished():
            return
        if not self.world.healed:
            random = self.random.random
            if random() < 0.2:
                self._mailbox.back_up()
            for _ in range(1 if random() < 0.7 else 4):
                self._put()
        self._look_at_refusals()
        if self.world.healed:
            self._look_at_owner()
        self._think()

    def _put(self) -> None:
        random = self.random.random
        self._values += 1
        topic = self.topics[int(random() * len(self.topics))] if random() < 0.9 else "nowhere"
        value = f"{self.name}.{self._values}".encode() + b"." * int(random() ** 4 * 900)
        if random() < 0.03:
            value += bytes(2_500)
        operation, payload = make_put(topic, False, [value])
        attempt = self.around.ledger.attempt(f"put {value[:12]!r} to '{topic}' by {self.name}", topic, [value])
        self.around.attempts[operation.envelope.checksum] = attempt
        if self.outbox is None:
            return
        number = self.outbox.next_number
        try:
            self.submit(operation, payload, lambda pending: self._put_done(pending, attempt))
        except errors.OnceMQError as error:
            self.world.note(f"{attempt.label} was not kept: {error.code}")
            is_expected = isinstance(error, errors.OutboxFull | errors.Fenced) or self._is_about_copy(error)
            if not is_expected:
                raise Violation(f"{self.name}: {attempt.label} was not kept: {error}") from error
        finally:
            # Whatever became of the process.
            if self._mailbox.holds(number, payload):
                self._mailbox.kept[number] = attempt

    def _put_done(self, pending: Pending, attempt: Attempt) -> None:
        outcome = pending.error.code if pending.error is not None else pending.reply
        self.world.note(f"{attempt.label} → {outcome}")
        if pending.error is None and attempt.acked is None:
            raise Violation(f"lost: {attempt.label} is said to be done, and was not answered so")
        self._is_finished()

    def _is_finished(self) -> bool:
        core = self.core
        if core is None or core.finished is None:
            return core is None
        error = core.finished
        self.world.note(f"{self.name} is finished: {error.code}")
        self.world.tally["client: " + error.code] += 1
        if not isinstance(error, errors.Fenced) and not self._is_about_copy(error):
            raise Violation(f"{self.name} got {error.code}: {error}")
        if isinstance(error, errors.OutboxRewound) and self._mailbox is self.office.mailbox:
            self.office.begin_another()
        self.stop()
        if not (self.world.healed and self.yields):
            self.world.after(50 + int(self.random.random() * 300), self._start_again)
        return True

    def _is_about_copy(self, error: errors.OnceMQError) -> bool:
        return isinstance(error, errors.OutboxError) and self._mailbox.was_restored

    def _look_at_owner(self) -> None:
        """Who has nothing to write would not notice that it was fenced."""
        if self.outbox is None:
            return
        try:
            self.outbox.entries(1, 1, 0)
        except errors.OnceMQError as error:
            self.world.note(f"{self.name} finds itself fenced: {error.code}")
            self.stop()
            self.world.after(50, self._start_again)

    def _look_at_refusals(self) -> None:
        """As a user does, now and then."""
        if self.outbox is None or self.random.random() < 0.7:
            return
        try:
            for refusal in list(self.outbox.refusals()):
                self._mailbox.seen.add(refusal.number)
                self.outbox.seen(refusal.number)
        except errors.OnceMQError as error:
            if not isinstance(error, errors.Fenced | errors.OutboxFull) and not self._is_about_copy(error):
                raise Violation(f"{self.name} got {error.code}: {error}") from error
