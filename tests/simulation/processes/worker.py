"""Processes that share a subscription: take, ack, nack, extend and leave; some are too slow, or crash."""

from __future__ import annotations

import msgspec

from oncemq.client.core.commands.pending import Pending
from oncemq.client.producer.encoding import make_put
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.batch import checksum, decode_batch
from tests.simulation.checks.leases import LeaseModel
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Context, Process

_PASSING = errors.BrokerAway | errors.NotNow
#: Maximum delay of a nack.
DELAY_MS_MAX = 300


class Task(msgspec.Struct, frozen=True):
    offset: int
    token: int
    tries: int
    value: bytes


class Worker(Process):
    """One member of a shared subscription, with a new member name after each start."""

    def __init__(
        self, context: Context, name: str, topic: str, subscriber: str, sharing: commands.Sharing, results: str
    ) -> None:
        super().__init__(context, name)
        self.topic = topic
        self.subscriber = subscriber
        self.sharing = sharing
        self.results = results
        self.model: LeaseModel | None = None
        self._opened: replies.OpenReply | None = None
        self._takes = 0
        self._tasks: list[Task] = []
        self._effects = 0
        #: When the last empty take was sent.
        self._empty_ms = 0
        context.subscriptions.requested.setdefault(topic, set()).add(subscriber)

    @property
    def user(self) -> str:
        return self.subscriber

    def rules(self) -> list[str]:
        return [f"consume {self.topic}", f"create {self.topic}", f"write {self.results}", f"create {self.results}"]

    def begin(self) -> None:
        self._takes = 0
        self._tasks = []
        self._empty_ms = 0
        self._subscribe()

    @property
    def member(self) -> str:
        return f"{self.name}~{self.incarnation}"

    @property
    def is_settled(self) -> bool:
        calm_ms = self.world.calm_ms
        # Messages of lost replies come back when their lease or delay has ended.
        lost_ms = self.sharing.lease_ms + DELAY_MS_MAX
        return calm_ms is not None and not self._tasks and self._empty_ms > calm_ms + lost_ms

    def problem(self) -> str:
        return f"{super().problem()}: {len(self._tasks)} in hand"

    def _subscribe(self) -> None:
        operation = commands.Subscribe(self.topic, self.subscriber, commands.START_EARLIEST, self.sharing)
        self.submit(operation, None, self._subscribed)

    def _handle_error(self, pending: Pending) -> bool:
        """Start over after a temporary error. Return False if there was no error."""
        if self.is_over(pending):
            return True
        error = pending.error
        if error is None:
            return False
        if not isinstance(error, _PASSING):
            raise Violation(f"{self.name} got {error.code}: {error}")
        self.later(20 + int(self.random.random() * 60), self._subscribe)
        return True

    def _subscribed(self, pending: Pending) -> None:
        if self._handle_error(pending):
            return
        reply = pending.reply
        assert isinstance(reply, replies.SubscribeReply)
        self.context.subscriptions.subscribed(self.topic, self.subscriber, reply)
        label = f"'{self.subscriber}' on '{self.topic}'"
        self.model = self.context.leases.subscribed(label, self.subscriber, reply, self.sharing)
        self.submit(commands.Open(self.topic, self.subscriber), None, self._open_done)

    def _open_done(self, pending: Pending) -> None:
        if self._handle_error(pending):
            return
        reply = pending.reply
        assert isinstance(reply, replies.OpenReply)
        if reply.sharing != self.sharing:
            raise Violation(f"{self.name} opened {reply}")
        self._opened = reply
        self._pause()

    def _pause(self) -> None:
        self.later(int(self.random.random() * self.world.faults.think_ms), self._take)

    # Takes.

    def _take(self) -> None:
        opened = self._opened
        assert opened is not None
        random = self.random.random
        self._takes += 1
        count_max = 1 if random() < 0.3 else 1 + int(random() * 6)
        bytes_max = 200 if random() < 0.2 else 5_000
        wait_ms = 0 if random() < 0.5 else int(random() * 300)
        command = commands.Take(
            opened.topic_id, self.subscriber, opened.epoch, self.member, self._takes, count_max, bytes_max, wait_ms
        )
        now_ms = self.world.now_ms
        self.ask(command, lambda pending: self._taken(pending, command, now_ms))

    def _taken(self, pending: Pending, command: commands.Take, sent_ms: int) -> None:
        if isinstance(pending.error, _PASSING):
            self._pause()
            return
        if self._handle_error(pending):
            return
        reply = pending.reply
        assert isinstance(reply, replies.TakeReply)
        if not reply.heads:
            self._empty_ms = sent_ms
            self._pause()
            return
        if not self._receive(reply, pending, sent_ms + self.sharing.lease_ms):
            # The payload was damaged: a retry with the same number returns the same lease.
            self.ask(command, lambda pending: self._taken(pending, command, sent_ms))
            return
        self.world.note(f"{self.name} took {[task.offset for task in self._tasks]} under {reply.token}")
        self._work()

    def _receive(self, reply: replies.TakeReply, pending: Pending, until_ms: int) -> bool:
        assert self.model is not None
        received: list[Task] = []
        for head in reply.heads:
            payload = bytes(pending.payloads[head.payload])
            if checksum(payload) != head.checksum:
                return False
            messages = decode_batch(
                payload, self.topic, reply.topic_id, head.first_offset, head.time_ms, head.skip, head.skip + head.count
            )
            for message in messages:
                self.context.history.observe_message(message, self.name)
                received.append(Task(message.offset, reply.token, head.tries, message.value))
        for task in received:
            self.model.taken(task.offset, task.token, self.member, task.tries, until_ms, task.value)
        self.world.tally["messages delivered"] += len(received)
        self._tasks = received
        return True

    # Work.

    def _work(self) -> None:
        random = self.random.random
        lease_ms = self.sharing.lease_ms
        if self.world.healed:
            self.later(int(random() * 20), self._finish)
            return
        chance = random()
        if chance < 0.12:
            self.later(lease_ms + int(random() * lease_ms), self._finish)
        elif chance < 0.25:
            self.later(int(random() * lease_ms), self._extend)
        elif chance < 0.32:
            self.later(int(random() * 40), self._leave)
        else:
            self.later(int(random() ** 2 * lease_ms), self._finish)

    def _extend(self) -> None:
        assert self._opened is not None
        tokens = tuple(dict.fromkeys(task.token for task in self._tasks))
        command = commands.Extend(self._opened.topic_id, self.subscriber, self._opened.epoch, tokens)
        until_ms = self.world.now_ms + self.sharing.lease_ms
        self.ask(command, lambda pending: self._extended(pending, tokens, until_ms))

    def _extended(self, pending: Pending, tokens: tuple[int, ...], until_ms: int) -> None:
        assert self.model is not None
        reply = pending.reply
        if isinstance(reply, replies.ExtendReply):
            self.model.extended(tuple(token for token in tokens if token not in reply.lost), until_ms)
        elif not isinstance(pending.error, _PASSING):
            self._handle_error(pending)
            return
        self._work()

    def _leave(self) -> None:
        assert self._opened is not None
        assert self.model is not None
        self.model.left(self.member)
        self._tasks = []
        command = commands.Leave(self._opened.topic_id, self.subscriber, self._opened.epoch, self.member)
        self.ask(command, self._left)

    def _left(self, pending: Pending) -> None:
        if isinstance(pending.error, _PASSING) or not self._handle_error(pending):
            # The command, or a late duplicate of it, may arrive at any time: from now on it is a new member.
            self.world.note(f"{self.name} left")
            self.stop()
            self.world.after(30, self._start_again)

    # Settles.

    def _finish(self) -> None:
        """Settle some of its messages in a random way, then the rest."""
        if not self._tasks:
            self._pause()
            return
        random = self.random.random
        count = len(self._tasks) if random() < 0.6 else 1 + int(random() * len(self._tasks))
        tasks, self._tasks = self._tasks[:count], self._tasks[count:]
        exhausted = [task for task in tasks if self.sharing.tries_max and task.tries >= self.sharing.tries_max]
        if exhausted:
            self._tasks = [task for task in tasks if task not in exhausted] + self._tasks
            self._transact(exhausted[:3], self.sharing.dead_topic)
        elif random() < 0.25:
            self._tasks = tasks[3:] + self._tasks
            self._transact(tasks[:3], self.results)
        elif random() < 0.25 and not self.world.healed:
            self._submit(self._settle((), self._returns(tasks)))
        else:
            self._submit(self._settle(self._ranges(tasks), ()))

    def _settle(
        self, done: tuple[tuple[int, int, int], ...], returned: tuple[tuple[int, int, int, int], ...]
    ) -> commands.Settle:
        assert self._opened is not None
        return commands.Settle(self._opened.topic_id, self.subscriber, self._opened.epoch, done, returned)

    @staticmethod
    def _ranges(tasks: list[Task]) -> tuple[tuple[int, int, int], ...]:
        ranges: list[tuple[int, int, int]] = []
        for task in tasks:
            if ranges and ranges[-1][0] == task.token and ranges[-1][1] + ranges[-1][2] == task.offset:
                token, first, count = ranges.pop()
                ranges.append((token, first, count + 1))
            else:
                ranges.append((task.token, task.offset, 1))
        return tuple(ranges)

    def _returns(self, tasks: list[Task]) -> tuple[tuple[int, int, int, int], ...]:
        random = self.random.random
        delay_ms = 0 if random() < 0.4 else 1 + int(random() * DELAY_MS_MAX)
        return tuple((*entry, delay_ms) for entry in self._ranges(tasks))

    def _transact(self, tasks: list[Task], topic: str) -> None:
        """Put the results of messages and ack them in one transaction."""
        puts, payloads = [], []
        for task in tasks:
            self._effects += 1
            value = f"{topic} of {task.offset} by {self.name}.{self._effects}".encode()
            put, payload = make_put(topic, True, [value])
            label = f"{value.decode()} ({self.subscriber})"
            attempt = self.context.history.attempt(label, topic, [value], (self.subscriber, task.offset))
            self.context.attempts[put.envelope.checksum] = attempt
            puts.append(put)
            payloads.append(payload)
        settle = self._settle(self._ranges(tasks), ())
        self._submit(commands.Transact((), (settle,), tuple(puts)), tuple(payloads))

    def _submit(self, operation: commands.Settle | commands.Transact, payloads: tuple[bytes, ...] = ()) -> None:
        self.submit(operation, payloads or None, lambda pending: self._settled(pending, operation))

    def _settled(self, pending: Pending, operation: commands.Settle | commands.Transact) -> None:
        error = pending.error
        outcome = error.code if error is not None else pending.reply
        self.world.note(f"{self.name}: {_in_short(operation)} → {outcome}")
        if error is None or isinstance(error, errors.LeaseLost | _PASSING):
            if isinstance(pending.reply, replies.SettleReply) and pending.reply.lost:
                self.world.tally["client: settle came too late"] += 1
            # Messages that are not settled are delivered again automatically.
            self.later(int(self.random.random() * 30), self._finish)
        else:
            self._handle_error(pending)

    # At the end.

    def check(self, info: replies.SubscriptionInfo) -> None:
        """Check that exactly the messages that were acked in a transaction have their effect."""
        assert self.model is not None
        for offset in range(self.model.start, info.end_offset):
            effect = self.context.history.effect((self.subscriber, offset))
            transacted = isinstance(self.model.done.get(offset), commands.Transact)
            if transacted and effect is None:
                raise Violation(f"lost: {self.model.label}: {offset} was done, and what came of it is not there")
            if effect is not None and not transacted:
                raise Violation(f"unexpected: {effect.label} is there, and {offset} was not done with it")


def _in_short(operation: commands.Settle | commands.Transact) -> str:
    if isinstance(operation, commands.Transact):
        return f"done with {len(operation.puts)} effects: {operation.settles[0].done}"
    return f"done {operation.done}" if operation.done else f"returned {operation.returned}"
