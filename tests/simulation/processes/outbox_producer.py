"""Processes that put with an outbox. Wherever they are killed, everything in the outbox is stored once and in order."""

from __future__ import annotations

from collections.abc import Callable

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.core import Core
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.producer.encoding import make_put
from oncemq.protocol import errors
from tests.simulation.checks.history import Attempt
from tests.simulation.environment.world import Violation
from tests.simulation.processes.outbox_storage import Killed, OutboxDisk
from tests.simulation.processes.process import OPTIONS, Context, Process


class OutboxUser:
    """The outboxes of one user, whose processes share them. A new one is created when the last one was rewound."""

    def __init__(self, context: Context, name: str) -> None:
        self._around = context
        self.name = name
        self.disks: list[OutboxDisk] = []
        self.begin_another()

    def begin_another(self) -> None:
        self.disks.append(OutboxDisk(self._around.world, f"outbox {len(self.disks)} of {self.name}"))

    @property
    def disk(self) -> OutboxDisk:
        return self.disks[-1]

    # At the end.

    def check(self) -> None:
        for disk in self.disks:
            attempts = [attempt for _, attempt in sorted(disk.kept.items())]
            self._around.history.check_order(disk.session, attempts)
            refused = disk.refused()
            for number, attempt in disk.kept.items():
                if attempt.place is not None and number in refused:
                    raise Violation(f"unexpected: {attempt.label} was stored, and {disk.session} calls it refused")
                if attempt.place is None and number not in refused and not disk.was_restored:
                    raise Violation(f"lost: {attempt.label}, number {number} of {disk.session}")


class OutboxProducer(Process):
    def __init__(self, context: Context, name: str, user: OutboxUser, topics: list[str]) -> None:
        super().__init__(context, name)
        self.owner = user
        self.topics = topics
        self.outbox: OutboxFile | None = None
        self._disk = user.disk
        self._values = 0

    def rules(self) -> list[str]:
        return [f"write {topic}" for topic in self.topics]

    # Start and end.

    def start(self) -> None:
        self.incarnation += 1
        self._disk = self.owner.disk
        self._guarded(self._start)

    def _start(self) -> None:
        try:
            self.outbox = self._disk.open(f"{self.name}~{self.incarnation}")
            nonce = self.random.getrandbits(62) + 1
            self.core = Core(self.outbox.session, False, nonce, OPTIONS, outbox=self.outbox)
        except errors.OutboxFull:
            self._die()
            return
        self.world.note(f"{self.name} opened {self.outbox.session}: {self.outbox.pending_count} are kept")
        self._connect(self.core)
        if self.random.random() < 0.5:
            # Put before the session has started.
            self._act()
        else:
            self._pause()
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

    def stop(self, *, is_silent: bool = False) -> None:
        super().stop(is_silent=is_silent)
        self.outbox = None

    def crash(self) -> None:
        was_there = self.core is not None
        super().crash()
        if was_there:
            self._restore()

    def _restore(self) -> None:
        """Sometimes restore an outdated backup."""
        if self.world.healed or self._disk is not self.owner.disk or self.random.random() < 0.7:
            return
        if self._disk.restore():
            self.world.note(f"{self._disk.session} was restored from a copy")
            self.world.tally["outbox: restored from a copy"] += 1

    def pump(self) -> None:
        self._guarded(super().pump)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        super().later(delay_ms, lambda: self._guarded(action))

    @property
    def is_settled(self) -> bool:
        if self.core is None or self.outbox is None:
            return self.gives_way
        disk = self._disk
        # The file can contain more if another process has used it since.
        is_all = disk.was_restored or disk.undecided() <= len(self.outbox._unmarked)
        return is_all and self.outbox.pending_count == 0

    def problem(self) -> str:
        return f"{super().problem()}: {self._disk.undecided()} in the outbox"

    # Puts.

    def _pause(self) -> None:
        self.later(int(self.random.random() * 2 * self.world.faults.think_ms), self._act)

    def _act(self) -> None:
        if self._is_finished():
            return
        if not self.world.healed:
            random = self.random.random
            if random() < 0.2:
                self._disk.back_up()
            for _ in range(1 if random() < 0.7 else 4):
                self._put()
        self._look_at_refusals()
        if self.world.healed:
            self._look_at_owner()
        self._pause()

    def _put(self) -> None:
        random = self.random.random
        self._values += 1
        topic = self.topics[int(random() * len(self.topics))] if random() < 0.9 else "nowhere"
        value = f"{self.name}.{self._values}".encode() + b"." * int(random() ** 4 * 900)
        if random() < 0.03:
            value += bytes(2_500)
        operation, payload = make_put(topic, False, [value])
        attempt = self.context.history.attempt(f"put {value[:12]!r} to '{topic}' by {self.name}", topic, [value])
        self.context.attempts[operation.envelope.checksum] = attempt
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
            # This does not depend on whether the process survived.
            if self._disk.holds(number, payload):
                self._disk.kept[number] = attempt

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
        if isinstance(error, errors.OutboxRewound) and self._disk is self.owner.disk:
            self.owner.begin_another()
        self.stop()
        if not (self.world.healed and self.gives_way):
            self.world.after(50 + int(self.random.random() * 300), self._start_again)
        return True

    def _is_about_copy(self, error: errors.OnceMQError) -> bool:
        return isinstance(error, errors.OutboxError) and self._disk.was_restored

    def _look_at_owner(self) -> None:
        """Check whether the process is fenced. Without a write it would not notice."""
        if self.outbox is None:
            return
        try:
            self.outbox.entries(1, 1, 0)
        except errors.OnceMQError as error:
            self.world.note(f"{self.name} finds itself fenced: {error.code}")
            self.stop()
            self.world.after(50, self._start_again)

    def _look_at_refusals(self) -> None:
        """Sometimes read and confirm refusals, as a user does."""
        if self.outbox is None or self.random.random() < 0.7:
            return
        try:
            for refusal in list(self.outbox.refusals()):
                self._disk.seen.add(refusal.number)
                self.outbox.seen(refusal.number)
        except errors.OnceMQError as error:
            if not isinstance(error, errors.Fenced | errors.OutboxFull) and not self._is_about_copy(error):
                raise Violation(f"{self.name} got {error.code}: {error}") from error
