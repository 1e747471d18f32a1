"""Processes that own a subscription: open, get, ack, crash, come back; some have a twin that fences them."""

from __future__ import annotations

from oncemq.client.consumer.delivery import Delivery
from oncemq.client.core.pending import Pending
from oncemq.protocol import commands, errors
from oncemq.protocol.message import Message
from oncemq.protocol.replies import AckReply, GetReply, OpenReply, SubscribeReply
from tests.simulation.checks.subscriptions import SubscriptionBook
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Process, Surroundings

_GONE = (errors.TopicGone, errors.NotSubscribed, errors.TopicUnknown)


class Consumer(Process):
    """`start`: where its subscription begins. `polite`: holds it. `churns`: unsubscribes now and then."""

    def __init__(
        self,
        around: Surroundings,
        name: str,
        topic: str,
        subscriber: str,
        start: int,
        *,
        twin: bool = False,
        polite: bool = False,
        churns: bool = False,
        own_session: bool = False,
    ) -> None:
        super().__init__(around, name)
        self.topic = topic
        self.subscriber = subscriber
        self.start_at = start
        self.twin = twin
        self.polite = polite
        self.churns = churns
        self.own_session = own_session
        self.is_fenced = False
        self._opened: OpenReply | None = None
        self._delivery = Delivery(topic, 0)
        self._position = 0
        self._end_offset = -1
        #: When the last get that was answered was sent.
        self._looked_ms = 0
        self._ack_sent = 0
        self._acked = 0
        self.book: SubscriptionBook | None = None
        if churns:
            around.subscriptions.vanishing.add((topic, subscriber))

    def session(self) -> str:
        return self.name.rstrip("'") if self.twin and not self.own_session else self.name

    def begin(self) -> None:
        self.is_fenced = False
        self._subscribe()

    @property
    def is_settled(self) -> bool:
        if self.core is None or self.is_fenced:
            return self.yields
        quiet_ms = self.world.quiet_ms
        if quiet_ms is None or self._looked_ms <= quiet_ms:
            return False
        return self._position == self._end_offset == self._acked

    def trouble(self) -> str:
        return f"{super().trouble()}: at {self._position} of {self._end_offset}, {self._acked} acked"

    # Becoming the owner.

    def _subscribe(self) -> None:
        self._opened = None
        self._end_offset = -1
        self.around.subscriptions.asked.setdefault(self.topic, set()).add(self.subscriber)
        self.submit(commands.Subscribe(self.topic, self.subscriber, self.start_at), None, self._subscribed)

    def _again(self, pending: Pending) -> bool:
        """The command failed for a reason that passes: begin anew in a while."""
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
            if not self.around.subscriptions.may_vanish(self.topic, self.subscriber):
                raise Violation(f"lost: {self.name}: {error.code}, and nobody removed it")
        elif not isinstance(error, errors.BrokerAway | errors.NotNow | errors.LimitReached):
            raise Violation(f"{self.name} got {error.code}: {error}")
        self.later(20 + int(self.random.random() * 60), self._subscribe)
        return True

    def _subscribed(self, pending: Pending) -> None:
        if self._again(pending):
            return
        reply = pending.reply
        assert isinstance(reply, SubscribeReply)
        self.world.note(f"{self.name} subscribed to '{self.topic}': {reply}")
        self.book = self.around.subscriptions.subscribed(self.topic, self.subscriber, reply)
        acked_before, marks = self.book.ack_confirmed, self.book.seek_marks
        hold_ms = 300 if self.polite else 0
        self.submit(
            commands.Open(self.topic, self.subscriber, hold_ms),
            None,
            lambda done: self._open_done(done, acked_before, marks),
        )

    def _note_sought(self) -> None:
        assert self.book is not None
        if not self.book.seek_marks:
            raise Violation(f"{self.name} was told that it was moved, and nobody has moved it")
        self.world.tally["client: sought"] += 1
        self._opened = None

    def _open_done(self, pending: Pending, acked_before: int, marks: int) -> None:
        if self._again(pending):
            return
        reply = pending.reply
        assert isinstance(reply, OpenReply)
        assert self.book is not None
        book = self.around.subscriptions.books.get((reply.topic_id, self.subscriber))
        if book is not self.book:
            # Its topic was deleted and made again between the two commands.
            self._subscribe()
            return
        self.world.note(f"{self.name} opened: {reply}")
        book.opened(reply, f"{self.name}~{self.lives}", acked_before, marks)
        self._opened = reply
        self._position = self._ack_sent = self._acked = reply.acked
        self._delivery = Delivery(self.topic, reply.acked)
        self._get()

    # Getting.

    def _get(self) -> None:
        opened = self._opened
        assert opened is not None
        assert self.book is not None
        random = self.random.random
        ack = self._ack_on_get()
        wait_ms = 0 if random() < 0.4 else int(random() * 500)
        bytes_max = 200 if random() < 0.3 else 5_000
        command = commands.Get(
            opened.topic_id, self.subscriber, opened.epoch, self._delivery.position, bytes_max, wait_ms, ack
        )
        epoch, now_ms = self.book.least_epoch, self.world.now_ms
        self.ask(command, lambda pending: self._got(pending, command, epoch, now_ms))

    def _ack_on_get(self) -> int:
        assert self.book is not None
        if self.random.random() >= 0.5:
            return -1
        self._ack_sent = self._done_upto()
        self.book.ack_sent = max(self.book.ack_sent, self._ack_sent)
        return self._ack_sent

    def _fenced(self, pending: Pending) -> bool:
        if not isinstance(pending.error, errors.Fenced):
            return False
        if self.is_over(pending):
            return True
        assert self.book is not None
        if not self.twin and not self.book.may_vanish and self.lives == 1:
            raise Violation(f"{self.name} was fenced, and has no twin")
        self.world.note(f"{self.name} was fenced")
        self.world.tally["client: fenced owner"] += 1
        self._opened = None
        self.is_fenced = True
        if not (self.world.healed and self.yields):
            self.later(100 + int(self.random.random() * 800), self._take_back)
        return True

    def _take_back(self) -> None:
        if not (self.world.healed and self.yields):
            self.is_fenced = False
            self._subscribe()

    def _got(self, pending: Pending, command: commands.Get, epoch_when_sent: int, sent_ms: int) -> None:
        if self._fenced(pending):
            return
        if isinstance(pending.error, errors.BrokerAway | errors.NotNow):
            self._think()
            return
        if isinstance(pending.error, errors.RangeGone):
            raise Violation(f"lost: {self.name} asks for {command.position}: {pending.error}")
        if self._again(pending):
            return
        reply = pending.reply
        assert isinstance(reply, GetReply)
        assert self.book is not None
        self.book.succeeded(command.epoch, epoch_when_sent, "get")
        self.book.check_position(reply.acked, 0)
        try:
            self._delivery.take(reply, pending.payloads)
        except errors.DamagedInTransit:
            self._delivery._damages = 0
        while self._delivery:
            self._take_messages(reply, sent_ms)
        if self._delivery.position > self._position:
            self._skip_to(self._delivery.position, reply)
        if self._delivery.position == reply.next_position:
            self._end_offset = reply.end_offset
            self._looked_ms = sent_ms
            self._note_acked(reply.acked, command.ack)
        self._go_on()

    def _take_messages(self, reply: GetReply, sent_ms: int) -> None:
        messages = self._delivery.decode()
        assert self.book is not None
        first = messages[0].offset
        for message in messages:
            if message.offset != self._position:
                self._skip_to(message.offset, reply)
            self.around.ledger.observe(message.topic_id, message.offset, message.value, message.timestamp_ms, self.name)
            self._position += 1
            self.book.given(message.offset, self._position)
            self._check_alive(message, sent_ms)
        self._keep(messages)
        self.world.tally["messages delivered"] += len(messages)
        self.world.note(f"{self.name} got {first}..{self._position - 1}")

    def _skip_to(self, offset: int, _reply: GetReply) -> None:
        """Messages are left out. For those who expect nothing of the kind, they are lost."""
        raise Violation(f"out of order: {self.name} got {offset} after {self._position - 1}")

    def _check_alive(self, message: Message, sent_ms: int) -> None:
        """For those whose messages have a time to live."""

    def _keep(self, messages: list[Message]) -> None:
        """For those who do something with them."""

    def _note_acked(self, acked: int, upto: int) -> None:
        assert self.book is not None
        if acked < upto:
            raise Violation(f"{self.name}: an ack of {upto} was answered by {acked}")
        self._acked = max(self._acked, acked)
        self.book.ack_confirmed = max(self.book.ack_confirmed, acked)

    def _done_upto(self) -> int:
        """Everything that it was given, or not quite: an ack may fall into the middle of a batch."""
        if self.world.healed or self.random.random() < 0.7 or self._position <= self._acked:
            return self._position
        return self._acked + int(self.random.random() * (self._position - self._acked))

    # What it does next.

    def _go_on(self) -> None:
        random = self.random.random
        if random() < 0.25 and self._position > self._acked:
            self._ack()
        elif not self.world.healed and self.churns and random() < 0.06:
            self.submit(commands.Unsubscribe(self.topic, self.subscriber), None, self._left)
        elif not self.world.healed and self.polite and random() < 0.08:
            self._close()
        else:
            self._think()

    def _think(self) -> None:
        self.later(int(self.random.random() * self.world.weather.think_ms), self._get_if_open)

    def _get_if_open(self) -> None:
        if self._opened is not None:
            self._get()

    def _ack(self) -> None:
        opened = self._opened
        assert opened is not None
        assert self.book is not None
        upto = self._ack_sent = self._done_upto()
        self.book.ack_sent = max(self.book.ack_sent, upto)
        command = commands.Ack(opened.topic_id, self.subscriber, opened.epoch, upto)
        epoch = self.book.least_epoch
        self.ask(command, lambda pending: self._ack_done(pending, command, epoch))

    def _ack_done(self, pending: Pending, command: commands.Ack, epoch_when_sent: int) -> None:
        if self._fenced(pending):
            return
        if isinstance(pending.error, errors.BrokerAway | errors.NotNow):
            self._think()
            return
        if self._again(pending):
            return
        assert isinstance(pending.reply, AckReply)
        assert self.book is not None
        self.book.succeeded(command.epoch, epoch_when_sent, "ack")
        self._note_acked(pending.reply.acked, command.upto)
        self._think()

    def _left(self, pending: Pending) -> None:
        self.world.note(f"{self.name} left: {pending.error or pending.reply}")
        if not self._again(pending):
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
        if was_taken_over or not self._again(pending):
            self._subscribe()
