"""A process with a pattern subscription: it gets from all matching topics, including those that are created later."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.commands import BY_PATTERN
from oncemq.protocol.frames import Frame
from tests.simulation.checks.subscriptions import SubscriptionModel
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Context, Process

_PASSING = errors.BrokerAway | errors.NotNow


class PatternConsumer(Process):
    """`resubscribes`: sometimes unsubscribes. `topics`: the matching topics that have producers."""

    def __init__(self, context: Context, name: str, pattern: str, topics: list[str], *, resubscribes: bool) -> None:
        super().__init__(context, name)
        self.pattern = pattern
        self.resubscribes = resubscribes
        self.key = name + BY_PATTERN + pattern
        #: Since when the subscription certainly exists.
        self._since_ms = 0
        self._may_be_new = True
        self._opened: replies.OpenReply | None = None
        self._buffers: dict[int, FetchBuffer] = {}
        self._acked: dict[int, int] = {}
        self._looked_ms = 0
        #: Number of seek marks when it was opened; and by topic id, at the open after which it first read the topic.
        self._opened_marks = 0
        self._marks: dict[int, int] = {}
        self.owner = self._model(0, f"'{name}' on '{pattern}'", 0)
        for topic in topics:
            context.subscriptions.requested.setdefault(topic, set()).add(self.key)

    def _model(self, topic_id: int, label: str, start: int) -> SubscriptionModel:
        model = SubscriptionModel((self.pattern, self.name), label, start)
        self.context.subscriptions.models[topic_id, self.key] = model
        return model

    def _model_of(self, topic_id: int) -> SubscriptionModel | None:
        return self.context.subscriptions.models.get((topic_id, self.key))

    def rules(self) -> list[str]:
        return [f"consume {self.pattern}"]

    def begin(self) -> None:
        self._looked_ms = 0
        self._subscribe()

    @property
    def is_settled(self) -> bool:
        quiet_ms = self.world.quiet_ms
        return quiet_ms is not None and self._looked_ms > quiet_ms and not self._unacked()

    def problem(self) -> str:
        return f"{super().problem()}: {self._unacked()} to be acked"

    def _unacked(self) -> tuple[tuple[int, int], ...]:
        return tuple(
            (topic_id, buffer.position)
            for topic_id, buffer in self._buffers.items()
            if buffer.position > self._acked[topic_id]
        )

    # Ownership.

    def _subscribe(self) -> None:
        self._opened = None
        start = commands.START_EARLIEST if self.random.random() < 0.5 else commands.START_NEW
        self.submit(commands.Subscribe(self.pattern, self.name, start), None, self._subscribed)

    def _handle_error(self, pending: Pending) -> bool:
        if self.is_over(pending):
            return True
        error = pending.error
        if error is None:
            return False
        if isinstance(error, errors.Fenced) and self.incarnation > 1:
            pass  # An open of an earlier incarnation arrived late.
        elif isinstance(error, errors.Sought):
            if not self.owner.seek_marks:
                raise Violation(f"{self.name} got SOUGHT, but there was no seek")
            self.world.tally["client: sought"] += 1
        elif isinstance(error, errors.NotSubscribed) and self._may_be_new:
            pass
        elif not isinstance(error, _PASSING):
            raise Violation(f"{self.name} got {error.code}: {error}")
        self.later(20 + int(self.random.random() * 60), self._subscribe)
        return True

    def _subscribed(self, pending: Pending) -> None:
        if self._handle_error(pending):
            return
        reply = pending.reply
        assert isinstance(reply, replies.SubscribeReply)
        if reply.created and not self._may_be_new:
            raise Violation(f"lost: {self.owner.label} was created twice, but it was not deleted")
        if self._may_be_new:
            self._forget()
        self._may_be_new = False
        marks = self.owner.seek_marks
        self.submit(commands.Open(self.pattern, self.name), None, lambda done: self._open_done(done, marks))

    def _forget(self) -> None:
        """From now on it is a new subscription."""
        self._since_ms = self.world.now_ms
        models = self.context.subscriptions.models
        for key in [key for key in models if key[1] == self.key and key[0]]:
            del models[key]
        self._marks = {}

    def _open_done(self, pending: Pending, marks: int) -> None:
        if self._handle_error(pending):
            return
        reply = pending.reply
        assert isinstance(reply, replies.OpenReply)
        self.world.note(f"{self.name} opened: {reply}")
        owner = f"{self.name}~{self.incarnation}"
        if self.owner.openers.setdefault(reply.epoch, owner) != owner:
            raise Violation(f"{self.owner.label}: epoch {reply.epoch} was assigned twice")
        self.owner.epoch = max(self.owner.epoch, reply.epoch)
        self._opened = reply
        self._opened_marks = marks
        self._buffers = {}
        self._acked = {}
        self._get()

    # Gets.

    def _get(self) -> None:
        opened = self._opened
        if opened is None:
            return
        random = self.random.random
        acks = self._unacked() if random() < 0.6 or self.world.healed else ()
        for topic_id, upto in acks:
            model = self._model_of(topic_id)
            assert model is not None
            model.ack_sent = max(model.ack_sent, upto)
        positions = tuple((topic_id, buffer.position) for topic_id, buffer in self._buffers.items())
        wait_ms = 0 if random() < 0.4 else int(random() * 400)
        bytes_max = 400 if random() < 0.3 else 5_000
        command = commands.GetAny(self.pattern, self.name, opened.epoch, positions, bytes_max, wait_ms, acks)
        epoch, now_ms = self.owner.least_epoch, self.world.now_ms
        self.ask(command, lambda pending: self._got(pending, command, epoch, now_ms))

    def _got(self, pending: Pending, command: commands.GetAny, epoch_when_sent: int, sent_ms: int) -> None:
        if isinstance(pending.error, _PASSING):
            self._pause()
            return
        if self._handle_error(pending):
            return
        reply = pending.reply
        assert isinstance(reply, replies.GetAnyReply)
        self.owner.succeeded(command.epoch, epoch_when_sent, "get")
        for topic_id, upto in command.acks:
            self._acked[topic_id] = max(self._acked[topic_id], upto)
            model = self._model_of(topic_id)
            assert model is not None
            model.ack_confirmed = max(model.ack_confirmed, upto)
        frames = list(pending.payloads)
        for part in reply.parts:
            count = len(part.batches)
            self._take(part, frames[:count])
            frames = frames[count:]
        if not reply.parts and reply.is_all:
            self._looked_ms = sent_ms
        if not self.world.healed and self.resubscribes and self.random.random() < 0.06:
            self._may_be_new = True
            self.submit(commands.Unsubscribe(self.pattern, self.name), None, self._left)
        else:
            self._pause()

    def _take(self, part: replies.AnyPart, frames: Sequence[Frame]) -> None:
        buffer = self._buffers.get(part.topic_id)
        if buffer is None:
            self._begin_topic(part)
            buffer = self._buffers[part.topic_id] = FetchBuffer(part.topic, part.acked)
            self._acked[part.topic_id] = part.acked
        model = self._model_of(part.topic_id)
        assert model is not None
        expected = buffer.position
        reply = replies.GetReply(part.topic_id, part.next_position, part.end_offset, part.acked, part.batches)
        try:
            buffer.take(reply, frames)
        except errors.DamagedInTransit:
            buffer._damages = 0
        while buffer:
            for message in buffer.decode():
                if message.offset != expected:
                    raise Violation(f"out of order: {self.name} got {message.offset} of '{part.topic}', not {expected}")
                expected += 1
                self.context.history.observe(
                    message.topic_id, message.offset, message.value, message.timestamp_ms, self.name
                )
                model.delivered(message.offset, expected)
                self.world.tally["messages delivered"] += 1
        self.world.note(f"{self.name} got '{part.topic}' up to {expected - 1}")

    def _begin_topic(self, part: replies.AnyPart) -> None:
        """The owner reads a topic for the first time: it continues where the former owner stopped."""
        model = self._model_of(part.topic_id)
        if model is None:
            model = self._model(part.topic_id, f"{self.owner.label} ('{part.topic}')", part.acked)
        elif self.owner.seeks_open or self._marks[part.topic_id] != self.owner.seek_marks:
            # A seek without a known reply may have been executed since.
            model.restart_at(part.acked)
        else:
            model.check_position(part.acked, 0)
        self._marks[part.topic_id] = self._opened_marks

    def _left(self, pending: Pending) -> None:
        self.world.note(f"{self.name} left: {pending.error or pending.reply}")
        if not self._handle_error(pending):
            self.later(50, self._subscribe)

    def _pause(self) -> None:
        self.later(int(self.random.random() * self.world.faults.think_ms), self._get)

    # At the end.

    def check(self, topic: replies.TopicInfo, info: replies.SubscriptionInfo) -> None:
        if info.acked != info.end_offset:
            raise Violation(f"lost: {self.owner.label} was acked up to {info.acked} of {info}")
        model = self._model_of(topic.topic_id)
        # A seek may have moved it to the end, where there is nothing to deliver.
        is_sure = not self.owner.seeks_open and self._marks.get(topic.topic_id) == self.owner.seek_marks
        if model is not None and is_sure and model.delivered_end != info.end_offset:
            raise Violation(f"lost: {model.label} got only messages below {model.delivered_end} of {info.end_offset}")
        if self.owner.seek_marks:
            return
        given = range(model.start, model.delivered_end) if model is not None else range(0)
        for offset, (value, time_ms) in self.context.history.log.get(topic.topic_id, {}).items():
            if time_ms > self._since_ms and offset not in given:
                raise Violation(f"lost: {self.owner.label} never got {offset} of '{topic.name}', {value[:20]!r}")
