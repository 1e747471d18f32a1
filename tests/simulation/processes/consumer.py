"""Processes that own a subscription: open, get, ack, crash and restart. Some have a rival that fences them."""

from __future__ import annotations

from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands, errors
from oncemq.protocol.message import Message
from oncemq.protocol.replies import AckReply, GetReply, OpenReply, SubscribeReply
from tests.simulation.checks.subscriptions import SubscriptionModel
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Context, Process

_GONE = (errors.TopicGone, errors.NotSubscribed, errors.TopicUnknown)


class Consumer(Process):
    """`start`: start of its subscription. `holds`: opens with a hold. `resubscribes`: sometimes unsubscribes."""

    def __init__(
        self,
        context: Context,
        name: str,
        topic: str,
        subscriber: str,
        start: int,
        *,
        rival: bool = False,
        holds: bool = False,
        resubscribes: bool = False,
        own_session: bool = False,
    ) -> None:
        super().__init__(context, name)
        self.topic = topic
        self.subscriber = subscriber
        self.start_at = start
        self.rival = rival
        self.holds = holds
        self.resubscribes = resubscribes
        self.own_session = own_session
        self.is_fenced = False
        self._opened: OpenReply | None = None
        self._buffer = FetchBuffer(topic, 0)
        self._position = 0
        self._end_offset = -1
        #: When the last answered get was sent.
        self._looked_ms = 0
        self._ack_sent = 0
        self._acked = 0
        self.model: SubscriptionModel | None = None
        if resubscribes:
            context.subscriptions.deletable.add((topic, subscriber))

    def session(self) -> str:
        return self.name.rstrip("'") if self.rival and not self.own_session else self.name

    def rules(self) -> list[str]:
        return [f"consume {self.topic}", f"create {self.topic}"]

    def begin(self) -> None:
        self.is_fenced = False
        self._subscribe()

    @property
    def is_settled(self) -> bool:
        if self.core is None or self.is_fenced:
            return self.gives_way
        quiet_ms = self.world.quiet_ms
        if quiet_ms is None or self._looked_ms <= quiet_ms:
            return False
        return self._position == self._end_offset == self._acked

    def problem(self) -> str:
        return f"{super().problem()}: at {self._position} of {self._end_offset}, {self._acked} acked"

    # Ownership.

    def _subscribe(self) -> None:
        self._opened = None
        self._end_offset = -1
        self.context.subscriptions.requested.setdefault(self.topic, set()).add(self.subscriber)
        self.submit(commands.Subscribe(self.topic, self.subscriber, self.start_at), None, self._subscribed)

    def _handle_error(self, pending: Pending) -> bool:
        """Start over after a temporary error. Return False if there was no error."""
        if self.is_over(pending):
            return True
        error = pending.error
        if error is None:
            return False
        if isinstance(error, errors.RangeGone | errors.OffsetOutOfRange) and not self._opened:
            self.start_at = commands.START_EARLIEST
        elif isinstance(error, errors.Sought):
            self._note_sought()
        elif isinstance(error, _GONE):
            if not self.context.subscriptions.may_be_deleted(self.topic, self.subscriber):
                raise Violation(f"lost: {self.name}: {error.code}, but it was not deleted")
        elif not isinstance(error, errors.BrokerAway | errors.NotNow | errors.LimitReached):
            raise Violation(f"{self.name} got {error.code}: {error}")
        self.later(20 + int(self.random.random() * 60), self._subscribe)
        return True

    def _subscribed(self, pending: Pending) -> None:
        if self._handle_error(pending):
            return
        reply = pending.reply
        assert isinstance(reply, SubscribeReply)
        self.world.note(f"{self.name} subscribed to '{self.topic}': {reply}")
        self.model = self.context.subscriptions.subscribed(self.topic, self.subscriber, reply)
        acked_before, marks = self.model.ack_confirmed, self.model.seek_marks
        hold_ms = 300 if self.holds else 0
        self.submit(
            commands.Open(self.topic, self.subscriber, hold_ms),
            None,
            lambda done: self._open_done(done, acked_before, marks),
        )

    def _note_sought(self) -> None:
        assert self.model is not None
        if not self.model.seek_marks:
            raise Violation(f"{self.name} got SOUGHT, but there was no seek")
        self.world.tally["client: sought"] += 1
        self._opened = None

    def _open_done(self, pending: Pending, acked_before: int, marks: int) -> None:
        if self._handle_error(pending):
            return
        reply = pending.reply
        assert isinstance(reply, OpenReply)
        assert self.model is not None
        model = self.context.subscriptions.models.get((reply.topic_id, self.subscriber))
        if model is not self.model:
            # Its topic was deleted and created again between the two commands.
            self._subscribe()
            return
        self.world.note(f"{self.name} opened: {reply}")
        model.opened(reply, f"{self.name}~{self.incarnation}", acked_before, marks)
        self._opened = reply
        self._position = self._ack_sent = self._acked = reply.acked
        self._buffer = FetchBuffer(self.topic, reply.acked)
        self._get()

    # Gets.

    def _get(self) -> None:
        opened = self._opened
        assert opened is not None
        assert self.model is not None
        random = self.random.random
        ack = self._ack_on_get()
        wait_ms = 0 if random() < 0.4 else int(random() * 500)
        bytes_max = 200 if random() < 0.3 else 5_000
        command = commands.Get(
            opened.topic_id, self.subscriber, opened.epoch, self._buffer.position, bytes_max, wait_ms, ack
        )
        epoch, now_ms = self.model.least_epoch, self.world.now_ms
        self.ask(command, lambda pending: self._got(pending, command, epoch, now_ms))

    def _ack_on_get(self) -> int:
        assert self.model is not None
        if self.random.random() >= 0.5:
            return -1
        self._ack_sent = self._done_upto()
        self.model.ack_sent = max(self.model.ack_sent, self._ack_sent)
        return self._ack_sent

    def _fenced(self, pending: Pending) -> bool:
        if not isinstance(pending.error, errors.Fenced):
            return False
        if self.is_over(pending):
            return True
        assert self.model is not None
        if not self.rival and not self.model.may_be_deleted and self.incarnation == 1:
            raise Violation(f"{self.name} was fenced, and has no rival")
        self.world.note(f"{self.name} was fenced")
        self.world.tally["client: fenced owner"] += 1
        self._opened = None
        self.is_fenced = True
        if not (self.world.healed and self.gives_way):
            self.later(100 + int(self.random.random() * 800), self._take_back)
        return True

    def _take_back(self) -> None:
        if not (self.world.healed and self.gives_way):
            self.is_fenced = False
            self._subscribe()

    def _got(self, pending: Pending, command: commands.Get, epoch_when_sent: int, sent_ms: int) -> None:
        if self._fenced(pending):
            return
        if isinstance(pending.error, errors.BrokerAway | errors.NotNow):
            self._pause()
            return
        if isinstance(pending.error, errors.RangeGone):
            raise Violation(f"lost: {self.name} asks for {command.position}: {pending.error}")
        if self._handle_error(pending):
            return
        reply = pending.reply
        assert isinstance(reply, GetReply)
        assert self.model is not None
        self.model.succeeded(command.epoch, epoch_when_sent, "get")
        self.model.check_position(reply.acked, 0)
        try:
            self._buffer.take(reply, pending.payloads)
        except errors.DamagedInTransit:
            self._buffer._damages = 0
        while self._buffer:
            self._take_messages(reply, sent_ms)
        if self._buffer.position > self._position:
            self._skip_to(self._buffer.position, reply)
        if self._buffer.position == reply.next_position:
            self._end_offset = reply.end_offset
            self._looked_ms = sent_ms
            self._note_acked(reply.acked, command.ack)
        self._continue()

    def _take_messages(self, reply: GetReply, sent_ms: int) -> None:
        try:
            messages = self._buffer.decode()
        except errors.Undecodable as error:
            raise Violation(f"damaged: {self.name} got {error.text}") from None
        assert self.model is not None
        first = messages[0].offset
        for message in messages:
            if message.offset != self._position:
                self._skip_to(message.offset, reply)
            self.context.history.observe(
                message.topic_id, message.offset, message.value, message.timestamp_ms, self.name
            )
            self._position += 1
            self.model.delivered(message.offset, self._position)
            self._check_alive(message, sent_ms)
        self._keep(messages)
        self.world.tally["messages delivered"] += len(messages)
        self.world.note(f"{self.name} got {first}..{self._position - 1}")

    def _skip_to(self, offset: int, _reply: GetReply) -> None:
        """Messages were skipped. Subclasses that expect this override the method; otherwise the messages are lost."""
        raise Violation(f"out of order: {self.name} got {offset} after {self._position - 1}")

    def _check_alive(self, message: Message, sent_ms: int) -> None:
        """Hook for consumers of messages with a time to live."""

    def _keep(self, messages: list[Message]) -> None:
        """Hook for consumers that process messages."""

    def _note_acked(self, acked: int, upto: int) -> None:
        assert self.model is not None
        if acked < upto:
            raise Violation(f"{self.name}: an ack of {upto} was answered by {acked}")
        self._acked = max(self._acked, acked)
        self.model.ack_confirmed = max(self.model.ack_confirmed, acked)

    def _done_upto(self) -> int:
        """Return the position to ack: everything, or less, because an ack may be in the middle of a batch."""
        if self.world.healed or self.random.random() < 0.7 or self._position <= self._acked:
            return self._position
        return self._acked + int(self.random.random() * (self._position - self._acked))

    # Next action.

    def _continue(self) -> None:
        random = self.random.random
        if random() < 0.25 and self._position > self._acked:
            self._ack()
        elif not self.world.healed and self.resubscribes and random() < 0.06:
            self.submit(commands.Unsubscribe(self.topic, self.subscriber), None, self._left)
        elif not self.world.healed and self.holds and random() < 0.08:
            self._close()
        else:
            self._pause()

    def _pause(self) -> None:
        self.later(int(self.random.random() * self.world.faults.think_ms), self._get_if_open)

    def _get_if_open(self) -> None:
        if self._opened is not None:
            self._get()

    def _ack(self) -> None:
        opened = self._opened
        assert opened is not None
        assert self.model is not None
        upto = self._ack_sent = self._done_upto()
        self.model.ack_sent = max(self.model.ack_sent, upto)
        command = commands.Ack(opened.topic_id, self.subscriber, opened.epoch, upto)
        epoch = self.model.least_epoch
        self.ask(command, lambda pending: self._ack_done(pending, command, epoch))

    def _ack_done(self, pending: Pending, command: commands.Ack, epoch_when_sent: int) -> None:
        if self._fenced(pending):
            return
        if isinstance(pending.error, errors.BrokerAway | errors.NotNow):
            self._pause()
            return
        if self._handle_error(pending):
            return
        assert isinstance(pending.reply, AckReply)
        assert self.model is not None
        self.model.succeeded(command.epoch, epoch_when_sent, "ack")
        self._note_acked(pending.reply.acked, command.upto)
        self._pause()

    def _left(self, pending: Pending) -> None:
        self.world.note(f"{self.name} left: {pending.error or pending.reply}")
        if not self._handle_error(pending):
            self.start_at = (commands.START_NEW, commands.START_EARLIEST, self._position)[int(self.random.random() * 3)]
            self.later(50, self._subscribe)

    def _close(self) -> None:
        assert self._opened is not None
        operation = commands.Close(self._opened.topic_id, self.subscriber, self._opened.epoch)
        self._opened = None
        self.submit(operation, None, self._closed)

    def _closed(self, pending: Pending) -> None:
        core = self.core
        was_taken_over = isinstance(pending.error, errors.Fenced) and core is not None and core.finished is None
        if was_taken_over or not self._handle_error(pending):
            self._subscribe()
