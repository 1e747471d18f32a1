"""Processes that put single messages and batches, pipelined, and sometimes to topics that do not exist."""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.client.producer.encoding import make_put
from oncemq.protocol import commands, errors
from oncemq.protocol.replies import PutReply
from tests.simulation.checks.history import Attempt
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Context, Process

IN_FLIGHT_MAX = 12


class Producer(Process):
    def __init__(self, context: Context, name: str, topics: list[str], *, anonymous: bool, rival: bool) -> None:
        super().__init__(context, name)
        self.anonymous = anonymous
        self.topics = topics
        self.rival = rival
        self.made: list[Attempt] = []
        self._in_flight = 0
        self._count = 0

    def session(self) -> str:
        return self.name.rstrip("'") if self.rival else super().session()

    def rules(self) -> list[str]:
        # It has no right to `nowhere`: in a run with users, a put there is forbidden.
        return [f"{verb} {topic}" for topic in self.topics for verb in ("write", "create")]

    def begin(self) -> None:
        self._in_flight = 0
        if self.rival or self.anonymous:
            # There is no order between concurrent incarnations, or between several sessions.
            self.made = []
        self._pause()

    @property
    def is_settled(self) -> bool:
        return self.core is None or self._in_flight == 0

    def _pause(self) -> None:
        self.later(int(self.random.random() * 2 * self.world.faults.think_ms), self._act)

    def _act(self) -> None:
        if self.world.healed or self.core is None or self.core.finished is not None:
            return
        chance = self.random.random()
        if self.anonymous and chance < 0.04 and self._in_flight == 0:
            self.ask_bye()
            return
        for _ in range(1 if chance < 0.7 else 4):
            if self._in_flight < IN_FLIGHT_MAX:
                self._put()
        self._pause()

    def ask_bye(self) -> None:
        assert self.core is not None
        self._watch(self.core.bye(), lambda _pending: self._said_bye())

    def _said_bye(self) -> None:
        self.world.note(f"{self.name} said goodbye")
        self.stop()
        self.world.after(30, self._start_again)

    def values(self, count: int) -> list[bytes]:
        values = []
        for _ in range(count):
            self._count += 1
            size = int(self.random.random() ** 4 * 900)
            values.append(f"{self.name}.{self._count}".encode() + b"." * size)
        return values

    def _put(self) -> None:
        random = self.random.random
        topic = self.topics[int(random() * len(self.topics))]
        create = random() < 0.3
        count = 1 if random() < 0.6 else 1 + int(random() * 5)
        values = self.values(count)
        if random() < 0.02:
            topic, create = "nowhere", False
        elif random() < 0.02:
            values[0] += bytes(2_500)
        operation, payload = make_put(topic, create, values)
        label = f"put {values[0][:12]!r}+{count - 1} to '{topic}' by {self.session()}"
        attempt = self.context.history.attempt(label, topic, values)
        self.context.attempts[operation.envelope.checksum] = attempt
        operation = self._made(operation, attempt)
        subscriptions = len(self.context.subscriptions.certain.get(topic, ()))
        self._in_flight += 1
        self.submit(operation, payload, lambda pending: self._put_done(pending, attempt, subscriptions))

    def _made(self, operation: commands.Put, attempt: Attempt) -> commands.Put:
        """Hook for producers that change their puts."""
        self.made.append(attempt)
        return operation

    def _put_done(self, pending: Pending, attempt: Attempt, subscriptions: int) -> None:
        self._in_flight -= 1
        reply = pending.reply
        if isinstance(reply, PutReply):
            self.world.note(f"{attempt.label} → {reply.topic_id:x}:{reply.first_offset} for {reply.subscriptions}")
            self.context.subscriptions.check_count(attempt.topic, subscriptions, reply.subscriptions)
            if attempt.acked is None:
                raise AssertionError(f"{attempt.label} was not overheard")
            return
        if pending.error is None:
            raise Violation(f"lost: {attempt.label} was answered by {reply}")
        self.world.note(f"{attempt.label} → {pending.error.code}")
        if isinstance(pending.error, errors.BrokerAway):
            self.world.tally["client: broker away"] += 1
        self.is_over(pending)
