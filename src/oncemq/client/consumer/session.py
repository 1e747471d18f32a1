"""The broker's side of a consumer: the opening, the get and the ack in flight, and the errors that end them.

Where the consumer is, its cursor knows (cursor.py). What the caller does, `Consumer` knows (consumer.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

from oncemq.client.consumer.cursor import Cursor, rewound
from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.context import ClientContext
from oncemq.client.core.commands.observer import SubscriptionEpoch
from oncemq.client.core.commands.pending import Pending, again
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow
from oncemq.protocol import errors
from oncemq.protocol.commands import Close, Open
from oncemq.protocol.replies import OpenReply

#: A get waits at the broker for this long, and is then repeated: so a broker that went away is noticed.
WAIT_MS = 2000.0
#: An ack that finds no get to travel with is sent alone after this time.
ACK_AFTER_MS = 100.0
#: Gets that are sent ahead carry acks at most this often: the messages of a get wait for the sync of its ack.
ACK_AHEAD_MS = 20.0
#: Errors of one ack or one message: they are raised, and the subscription continues.
_NOT_FINAL = (errors.OffsetOutOfRange, errors.RecordCorrupt)
_CAN_WAIT = (*errors.TRANSIENT, *_NOT_FINAL, errors.Sought)


class MessageFeed(Protocol):
    """Another source of messages than gets: a push gateway's live feed."""

    def fetch(self, session: ConsumerSession, until_ms: float | None) -> Flow[bool]:
        """Wait until the cursor has something to decode. False: it has nothing at this time."""

    def close(self) -> None:
        """The subscription ends."""


class ConsumerSession:
    """An owner's access to a subscription. It is opened by its first use, and again after it was moved."""

    def __init__(
        self,
        context: ClientContext,
        cursor: Cursor,
        options: ConsumerOptions,
        feed: MessageFeed | None,
        on_drop: Callable[[], None],
    ) -> None:
        self.context = context
        self.cursor = cursor
        self.prefetch_bytes = options.prefetch_bytes
        #: None before the first use, and after the subscription was moved.
        self.opened: OpenReply | None = None
        #: The final error, once there is one: every call raises it.
        self.error: errors.OnceMQError | None = None
        #: A seek has moved it: messages that were delivered before will be delivered again, or not at all.
        self.was_sought = False
        self.get_pending: Pending | None = None
        self.ack_sent_ms = 0.0
        self._ack_pending: Pending | None = None
        self._driver = context.driver
        self._hold_ms = options.hold_ms
        self._feed = feed
        #: Drops messages that are decoded and not delivered.
        self._on_drop = on_drop
        #: The epoch of the last opening, after it has ended. The broker refuses to reopen the subscription if another
        #: client has opened it since.
        self._former_epoch = 0
        #: The highest epoch of all openings: a broker gives none twice.
        self._highest_epoch = 0

    # Opening and closing.

    def open(self, give_up_ms: float = 0.0) -> Flow[OpenReply]:
        """Open the subscription, unless it is open. Raises the final error if there is one."""
        if self.error is not None:
            raise again(self.error)
        if self.opened is None:
            reply = yield from self._call_open(give_up_ms)
            self.opened = reply
            self.cursor.open(reply)
            self.ack_sent_ms = now_ms()
        return self.opened

    def _call_open(self, give_up_ms: float) -> Flow[OpenReply]:
        topic, subscriber = self.cursor.topic, self.cursor.subscriber
        command = Open(topic, subscriber, self._hold_ms, self._former_epoch)
        try:
            reply = yield from self.context.call(command, OpenReply, give_up_ms=give_up_ms)
        except errors.SubscriptionFenced as error:
            self.error = error
            raise
        except BaseException:
            # It may have happened: the opening must not be taken for its own successor.
            self._former_epoch = 0
            raise
        if reply.sharing is not None:
            raise errors.KindMismatch(f"'{subscriber}' on '{topic}' is shared: use client.shared_subscription")
        if reply.epoch <= self._highest_epoch:
            what = f"it was opened under epoch {self._highest_epoch}, and is now opened under {reply.epoch}"
            self._fail(rewound(subscriber, topic, what))
        self._highest_epoch = reply.epoch
        return reply

    def reopen(self, *, sought: bool = False) -> None:
        """Open the subscription again with the next use, and continue where the broker says. What was fetched ahead is
        dropped."""
        self.cursor.promise(sought=sought)
        self.was_sought = self.was_sought or sought
        self.drop_fetched()
        if self.opened is not None:
            self._former_epoch = self.opened.epoch
        self.opened = self._ack_pending = None

    def close(self, opened: OpenReply) -> Flow[None]:
        """Ack what is finished, and let others open it."""
        yield from self.ack_now()
        if self._hold_ms:
            yield from self.context.call_any(Close(opened.topic_id, self.cursor.subscriber, opened.epoch))

    def close_feed(self) -> None:
        """Stop listening to the feed, if there is one."""
        if self._feed is not None:
            self._feed.close()

    def epoch_of(self, opened: OpenReply, topic_id: int) -> SubscriptionEpoch:
        """Return the subscription to a topic, as it is reported to an observer."""
        return SubscriptionEpoch(self.context.core.broker_id, topic_id, self.cursor.key, opened.epoch)

    def drop_fetched(self) -> None:
        """Drop what was fetched ahead."""
        self.drop_get()
        self._on_drop()
        self.cursor.clear()

    # Gets.

    def fetch(self, until_ms: float | None) -> Flow[bool]:
        """Wait until there is something to decode. False: there is nothing at this time."""
        if self._feed is not None:
            return (yield from self._feed.fetch(self, until_ms))
        self._driver.check_usable()
        while True:
            # A seek may have closed it.
            yield from self.open()
            # An empty reply to a get that was sent earlier does not tell what the broker has now.
            is_fresh = self.get_pending is None
            left_ms = WAIT_MS if until_ms is None else max(0.0, until_ms - now_ms())
            yield self.get_pending or self.send_get(int(min(left_ms, WAIT_MS)))
            self.take_get_reply()
            if self.cursor.is_buffered:
                # Before these are decoded: meanwhile the broker reads the next ones.
                self.prefetch()
                return True
            if is_fresh and self.opened is not None and until_ms is not None and now_ms() >= until_ms:
                return False

    def prefetch(self) -> None:
        """Keep one get in flight while the broker has more and the buffer is not full."""
        if self.get_pending is not None:
            self._driver.pump()
        # That the broker is unreachable, or a seek, can wait until the buffer is empty; a new owner can't.
        pending = self.get_pending
        if pending is not None and pending.done and not isinstance(pending.error, _CAN_WAIT):
            self.take_get_reply()
        if self.get_pending is None and self.cursor.wants_more(self.prefetch_bytes):
            self.send_get(0, with_acks=now_ms() - self.ack_sent_ms >= ACK_AHEAD_MS)
            self._driver.pump()

    def send_get(self, wait_ms: int, *, with_acks: bool = True) -> Pending:
        """Get the next messages, with the acks that are owed."""
        if with_acks and self.cursor.owes_ack:
            self.ack_sent_ms = now_ms()
        command = self.cursor.get_command(max(1, self.prefetch_bytes // 2), wait_ms, with_acks)
        self.get_pending = self._driver.core.ask(command)
        return self.get_pending

    def take_get_reply(self) -> None:
        """Buffer what the get has brought. Raises what it was refused with; but a seek closes the subscription."""
        if self.get_pending is None:
            # It was dropped meanwhile, with the opening or at the end.
            return
        pending, self.get_pending = self.get_pending, None
        try:
            reply = pending.result()
        except errors.TRANSIENT:
            self.cursor.take_get_failure()
            raise
        except errors.Sought:
            self.reopen(sought=True)
            return
        except errors.OnceMQError as error:
            self._refuse(error)
        try:
            self.cursor.take_get_reply(reply, pending.payloads)
        except errors.BrokerRewound as error:
            self._fail(error)

    def drop_get(self) -> None:
        """Give up the get in flight: its messages are not wanted any more."""
        if self.get_pending is not None:
            self._driver.give_up(self.get_pending, errors.ClientClosed("this subscription was closed"))
            self.get_pending = None

    def _refuse(self, error: errors.OnceMQError) -> NoReturn:
        if isinstance(error, _NOT_FINAL):
            self.cursor.take_refusal(error)
            raise again(error)
        self._fail(error)

    def _fail(self, error: errors.OnceMQError) -> NoReturn:
        """End with this error. What was fetched ahead belongs to the new owner."""
        self.error = error
        self.drop_fetched()
        raise again(error)

    # Acks.

    def send_due_ack(self) -> None:
        """Send an ack that has waited long enough."""
        if now_ms() - self.ack_sent_ms >= ACK_AFTER_MS and self.cursor.owes_ack:
            self._send_ack()
            self._driver.pump()
            self.note_acks()

    def _send_ack(self) -> Pending:
        if self._ack_pending is None or self._ack_pending.done:
            self.ack_sent_ms = now_ms()
            self._ack_pending = self._driver.core.ask(self.cursor.ack_command())
        return self._ack_pending

    def note_acks(self) -> None:
        """Take the reply to an ack that was sent alone, if it is there. If the broker was unreachable, a later ack
        includes it."""
        if self._ack_pending is None or not self._ack_pending.done:
            return
        pending, self._ack_pending = self._ack_pending, None
        try:
            reply = pending.result()
        except errors.TRANSIENT:
            self.cursor.take_ack_failure()
        except errors.Sought:
            self.reopen(sought=True)
        except errors.OnceMQError as error:
            self._refuse(error)
        else:
            self.cursor.take_ack_reply(reply)

    def is_moved(self) -> Flow[bool]:
        """Ask the broker whether a seek has moved the subscription. If so, it is to be opened again."""
        yield self._send_ack()
        self.note_acks()
        return self.opened is None

    def ack_now(self) -> Flow[None]:
        """Wait until the broker has confirmed everything that is finished."""
        self._driver.check_usable()
        if self._ack_pending is not None:
            yield self._ack_pending
        self.note_acks()
        if self.opened is None or not self.cursor.is_unconfirmed:
            return
        pending = self._send_ack()
        yield pending
        self.note_acks()
        if isinstance(pending.error, errors.TRANSIENT):
            pending.result()
