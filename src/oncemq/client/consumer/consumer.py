"""The consumer of a subscription: delivers messages to its caller, and acks those that the caller has finished.

These are the flows of both clients (runtime/flow.py). The cursor knows how far the consumer is (cursor.py); the
session talks to the broker (session.py).

A consumer is for one thread or task at a time: a call during another caller's call raises RuntimeError. Only `close`
may come from elsewhere; a caller that waits then gets ClientClosed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from operator import length_hint
from typing import Protocol, TypeVar

from oncemq.client.consumer.cursor import Cursor
from oncemq.client.consumer.filter import filter_of
from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.consumer.reader import Start, end_of, seek_of
from oncemq.client.consumer.session import ACK_AFTER_MS, ConsumerSession, MessageFeed
from oncemq.client.consumer.topic import TopicCursor
from oncemq.client.consumer.transactions import ConsumerTransactions
from oncemq.client.consumer.undecoded import batches_of, ends_of
from oncemq.client.context import ClientContext
from oncemq.client.core.commands.observer import Observer
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow
from oncemq.client.runtime.reentrancy import SingleUserGuard
from oncemq.protocol import errors
from oncemq.protocol.commands import Seek
from oncemq.protocol.message import Message
from oncemq.protocol.replies import BatchHead, OpenReply, SeekReply

_STRIDE_MAX = 1024

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Convert(Protocol[T_co]):
    """Makes something of undecoded batches of one topic."""

    def __call__(self, topic: str, topic_id: int, batches: Sequence[tuple[BatchHead, bytes]], /) -> Flow[T_co]: ...


class Consumer:
    """The flows of one subscription."""

    def __init__(
        self,
        context: ClientContext,
        name: str,
        cursor: Cursor,
        options: ConsumerOptions,
        feed: MessageFeed | None = None,
    ) -> None:
        self.context = context
        self.cursor = cursor
        self.session = ConsumerSession(context, cursor, options, feed, self._drop_decoded)
        self.auto_ack = options.auto_ack
        #: Decoded messages that were not delivered.
        self.current: Iterator[Message] = iter(())
        #: An iteration takes messages from `current`, and reports none of them (`next_stride`).
        self.is_iterating = False
        #: What `current` iterates over, and how many of these are not known to be delivered.
        self._decoded: list[Message] = []
        self._left = 0
        #: The last message that was delivered and is not finished, and the list that it ends, if it was in one.
        self.last: Message | None = None
        self.last_batch: Sequence[Message] = ()
        #: The thread or task that called last.
        self.reader = 0
        caller = context.driver.caller
        self.guard = SingleUserGuard(name, caller.kind, caller.identify)
        self._driver = context.driver
        self._identify = caller.identify
        self._wanted = filter_of(options.filter)
        self._paced_ms = 0.0
        self.transactions = ConsumerTransactions(self)

    # Getting messages.

    def get_buffered(self) -> Message | None:
        """Return the next message if one is decoded and no ack is due."""
        session = self.session
        if session.opened is None or session.error is not None:
            return None
        if self.is_iterating:
            self._note_iterated()
        last = self.last
        if last is not None:
            self.cursor.finish_delivered(last, self.last_batch)
            self.last, self.last_batch = None, ()
        if now_ms() - session.ack_sent_ms >= ACK_AFTER_MS and self.cursor.owes_ack:
            return None
        message = next(self.current, None)
        if message is not None:
            self.last = message
            self._left -= 1
        return message

    def get(self, timeout_s: float | None) -> Flow[Message | None]:
        """Return the next message; None if there is none within `timeout_s`. The caller has entered the guard."""
        yield from self._pace()
        message = next(self.current, None)
        if message is None and (yield from self._advance(timeout_s)):
            message = next(self.current)
        if message is not None:
            self.last = message
            self._left -= 1
        return message

    def get_many(self, messages_max: int, timeout_s: float | None) -> Flow[list[Message]]:
        """Return at most `messages_max` messages as soon as there are any."""
        return self.guard.around(self._get_many(messages_max, timeout_s))

    def _get_many(self, messages_max: int, timeout_s: float | None) -> Flow[list[Message]]:
        yield from self._pace()
        messages = self._take_current(messages_max)
        self.last_batch = messages
        try:
            while len(messages) < messages_max and (self.cursor.is_buffered or not messages):
                # They count as delivered before the next ones are decoded: what is filtered out of those is not
                # finished before these are.
                self.last = messages[-1] if messages else None
                if not (yield from self._try_advance(timeout_s, has_some=bool(messages))):
                    break
                messages += self._take_current(messages_max - len(messages))
        except BaseException as error:
            if not isinstance(error, errors.OnceMQError):
                # Interrupted, or the filter failed: they were not delivered to anybody.
                self._set_current([*messages, *self.current])
                self.last, self.last_batch = None, ()
            raise
        self.last = messages[-1] if messages else None
        return messages

    def get_converted(self, convert: Convert[T], timeout_s: float | None) -> Flow[T | None]:
        """Return what `convert` makes of the next messages of one topic; None if none come within `timeout_s`. They
        count as delivered when it returns. If it raises, they stay."""
        return self.guard.around(self._get_converted(convert, timeout_s))

    def _get_converted(self, convert: Convert[T], timeout_s: float | None) -> Flow[T | None]:
        yield from self._pace()
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
        messages = list(self.current)
        self._set_current(messages)
        # Filters and recorders need messages; other batches are not decoded.
        while not messages and isinstance(self.cursor, TopicCursor) and self._takes_batches():
            if not self.cursor.is_buffered and not (yield from self._fetch(until_ms)):
                return None
            batches = self.cursor.buffer.batches()
            found = yield from convert(self.cursor.topic, self.cursor.buffer.topic_id, batches)
            if self.cursor.buffer.drop(batches):
                self.last_batch = ends_of(self.cursor.topic, self.cursor.buffer.topic_id, batches)
                self.last = self.last_batch[-1]
                self.session.prefetch()
                return found
        if not messages:
            if not (yield from self._advance(timeout_s)):
                return None
            messages = list(self.current)
            self._set_current(messages)
        found = yield from convert(messages[0].topic, messages[0].topic_id, batches_of(messages))
        self._set_current([])
        self.last, self.last_batch = messages[-1], messages
        return found

    def _takes_batches(self) -> bool:
        return self._wanted is None and type(self.context.observer) is Observer

    def next_stride(self, stride: int, timeout_s: float | None) -> Flow[int]:
        """Return how many of the current messages to iterate over before the next call; 0: none came in time.

        The iteration reports no message: how many it has taken is seen from `current` when that is needed. So a message
        costs no call."""
        return self.guard.around(self._next_stride(stride, timeout_s))

    def _next_stride(self, stride: int, timeout_s: float | None) -> Flow[int]:
        took_ms = yield from self._pace()
        if not length_hint(self.current) and not (yield from self._advance(timeout_s)):
            return 0
        self.is_iterating = True
        # The clock is read often if messages take long, and rarely if there are many.
        if took_ms < 10:
            return max(1, min(2 * stride, _STRIDE_MAX))
        return max(1, stride // 4) if took_ms > 50 else max(1, stride)

    def _note_iterated(self) -> None:
        """Note what an iteration has delivered."""
        left = length_hint(self.current)
        if left < self._left:
            self.last, self.last_batch = self._decoded[len(self._decoded) - left - 1], ()
            self._left = left

    def _set_current(self, messages: list[Message]) -> None:
        self._decoded, self._left = messages, len(messages)
        self.current = iter(messages)
        self.is_iterating = False

    def _take_current(self, messages_max: int) -> list[Message]:
        messages = list(islice(self.current, messages_max))
        self._left -= len(messages)
        return messages

    def _pace(self) -> Flow[float]:
        """Between messages: send an ack that has waited long enough. Returns the time since the last pace."""
        yield from self.open()
        self.reader = self._identify()
        self._finish_delivered()
        at_ms = now_ms()
        took_ms, self._paced_ms = at_ms - self._paced_ms, at_ms
        self.session.send_due_ack()
        return took_ms

    def _try_advance(self, timeout_s: float | None, *, has_some: bool) -> Flow[bool]:
        """Advance for a caller that may have messages already: it does not wait for more, and an error that can wait
        does not take them away."""
        try:
            return (yield from self._advance(timeout_s, may_wait=not has_some))
        except errors.OnceMQError:
            if not has_some or self.session.error is not None:
                raise
            return False

    def _advance(self, timeout_s: float | None, *, may_wait: bool = True) -> Flow[bool]:
        """Make the next messages current. False: none came in time."""
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
        while True:
            if not self.cursor.is_buffered and not (may_wait and (yield from self._fetch(until_ms))):
                return False
            try:
                messages = yield from self._decode()
            except (errors.Undecodable, errors.Unsupported):
                if not (yield from self.session.is_moved()):
                    raise
                continue
            self._set_current(messages)
            self.session.prefetch()
            if messages:
                return True

    def _fetch(self, until_ms: float | None) -> Flow[bool]:
        """Wait until there is something to decode. False: nothing came in time."""
        if self.transactions:
            if self.session.opened is not None:
                self.session.prefetch()
            if self.cursor.is_buffered:
                return True
            # If a transaction has failed, its messages come first. The caller must not wait for others meanwhile.
            yield from self.transactions.finish()
        return (yield from self.session.fetch(until_ms))

    def _decode(self) -> Flow[list[Message]]:
        decoded = yield from self.cursor.decode(self._wanted)
        seen = None
        if decoded.filtered_end >= 0:
            self._mark_delivered()
            seen = self.cursor.note_filtered(decoded, is_last_open=self.last is not None)
        opened = self.session.opened
        if opened is not None:
            subscription = self.session.epoch_of(opened, decoded.topic_id)
            self.context.observer.delivering(subscription, decoded.topic, decoded.messages, filtered=seen)
        return decoded.messages

    def _mark_delivered(self) -> None:
        if self.is_iterating:
            self._note_iterated()
        if self.last is not None:
            self.cursor.mark_delivered(self.last, self.last_batch)

    def _finish_delivered(self, is_done: bool = True) -> None:
        # A loop that runs may continue to take messages after this: `is_iterating` stays.
        if self.is_iterating:
            self._note_iterated()
        if self.last is not None:
            self.cursor.finish_delivered(self.last, self.last_batch, is_done)
            self.last, self.last_batch = None, ()

    # Acks.

    def ack_buffered(self, message: Message | int | None) -> bool:
        """Note an ack if that is possible without waiting. False: it is not."""
        session = self.session
        if session.opened is None or session.error is not None or self.transactions:
            return False
        self._mark_delivered()
        if self.cursor.finish(message):
            # A message from before a seek is delivered again: its ack is ignored.
            return session.was_sought and isinstance(message, Message)
        return now_ms() - session.ack_sent_ms < ACK_AFTER_MS or not self.cursor.owes_ack

    def ack(self, message: Message | int | None, wait: bool) -> Flow[None]:
        """Ack everything up to and including a message. The caller has entered the guard."""
        # An ack may include the messages of a transaction that is not answered, and fails.
        yield from self.transactions.finish()
        opened = yield from self.open()
        self._mark_delivered()
        upto = self.cursor.finish(message)
        if upto:
            if self.session.was_sought and isinstance(message, Message):
                # It was delivered before the seek, and is delivered again.
                return
            yield from self._skip_to(upto, opened)
        if wait:
            yield from self.session.ack_now()
        else:
            self.session.send_due_ack()

    def _skip_to(self, upto: int, opened: OpenReply) -> Flow[None]:
        """Skip the messages below `upto` that were not delivered."""
        cursor = self.cursor
        assert isinstance(cursor, TopicCursor), "only offsets of one topic can be acked before they are delivered"
        if not cursor.has_seen(upto):
            end_offset = yield from end_of(self._driver, cursor.topic, opened.topic_id)
            if upto > end_offset:
                raise errors.OffsetOutOfRange(
                    f"offset {upto - 1} can't be acked: '{cursor.topic}' ends at {end_offset}"
                )
        # This uses up the old iterator, and so ends a loop that holds it.
        self._set_current([message for message in self.current if message.offset >= upto])
        skipped, is_beyond_get = cursor.skip_to(upto)
        self.context.observer.skipped(self.session.epoch_of(opened, opened.topic_id), *skipped)
        if is_beyond_get:
            self.session.drop_get()

    # Transactions.

    @property
    def epoch(self) -> int | None:
        """The epoch of the opening; None: the subscription is not open."""
        return None if self.session.opened is None else self.session.opened.epoch

    def acks_for_transaction(self, message: Message | int | None) -> dict[int, int]:
        """Return what a transaction acks: topic id → all offsets below. Raises ValueError."""
        self._mark_delivered()
        return self.cursor.acks_for_transaction(message)

    def transaction_committed(self, epoch: int, acks: Mapping[int, int]) -> None:
        """A transaction has acked under this epoch: topic id → all offsets below. If the subscription was opened again
        since, it knows its position."""
        if epoch == self.epoch:
            for topic_id, upto in acks.items():
                self.cursor.mark_committed(topic_id, upto)

    def is_ahead(self, caller: int) -> bool:
        """Return whether it has delivered messages that are not acked, not even by a transaction. While another thread
        or task uses it, only that one knows: then this is true if it is possible."""
        if self.reader != caller:
            return self.last is not None or self.is_iterating or self.cursor.is_ahead_of(self.transactions.claimed())
        self._mark_delivered()
        return self.cursor.is_ahead_of(self.transactions.claimed())

    def go_back(self) -> None:
        """A transaction has failed: what was delivered and not acked is delivered again. What another transaction
        claims is not; that one has not ended."""
        opened = self.session.opened
        if opened is None or self.session.error is not None:
            # The next opening goes back, if there is one.
            return
        claims = self.transactions.claimed()
        self._mark_delivered()
        if not self.cursor.is_ahead_of(claims):
            return
        self.last, self.last_batch = None, ()
        # What was decoded is dropped first: after an interrupt here, the next attempt does the rest.
        self.session.drop_get()
        self._drop_decoded()
        position = self.cursor.rewind(claims)
        if position is None:
            self.session.reopen()
            return
        topic_id, to = position
        self.context.observer.rewound(self.session.epoch_of(opened, topic_id), to)

    def transaction_failed(self, error: BaseException) -> None:
        """A transaction with acks of this subscription was sent, and failed. If it may have happened, only the broker
        knows; after a seek, or if another client may own the subscription, the next opening tells."""
        if isinstance(error, errors.Sought):
            self.session.reopen(sought=True)
        elif isinstance(error, errors.Fenced) or not isinstance(error, errors.Refused):
            self.session.reopen()

    # Opening and closing.

    def open(self, give_up_ms: float = 0.0) -> Flow[OpenReply]:
        """Open the subscription, unless it is open. Raises the final error if there is one."""
        session = self.session
        if session.opened is not None and session.error is None:
            return session.opened
        opened = yield from session.open(give_up_ms)
        self._paced_ms = now_ms()
        self.context.open_subscriptions.add(self)
        return opened

    def seek(self, to: Start | datetime) -> Flow[int]:
        """Continue elsewhere. Returns the offset (0 for a pattern)."""
        return self.guard.around(self._seek(seek_of(self.cursor.topic, self.cursor.subscriber, to)))

    def _seek(self, command: Seek) -> Flow[int]:
        yield from self.transactions.finish()
        yield from self.open()
        reply = yield from self.context.call(command, SeekReply)
        self.session.reopen(sought=True)
        return reply.acked

    def close(self, clean: bool) -> Flow[None]:
        """Ack what is finished, and end. Without `clean`, no error is raised."""
        failure: errors.OnceMQError | None = None
        try:
            if clean:
                try:
                    yield from self.transactions.finish()
                except errors.OnceMQError as error:
                    failure = error
            yield from self._close(clean)
        finally:
            self.transactions.close()
            self.session.close_feed()
        if failure is not None:
            raise failure

    def _close(self, clean: bool) -> Flow[None]:
        session = self.session
        self.context.open_subscriptions.discard(self)
        opened, error = session.opened, session.error
        if opened is None and error is None and self.cursor.has_promised and clean:
            # It was open before, and acks were promised that the broker does not know.
            opened = yield from session.open()
        session.error = error or errors.ClientClosed("this subscription was closed")
        if opened is None or error is not None:
            return
        try:
            self._finish_delivered(clean)
            yield from session.close(opened)
        except errors.OnceMQError:
            if clean:
                raise
        finally:
            session.drop_fetched()

    def _drop_decoded(self) -> None:
        """Drop what is decoded and not delivered."""
        self._mark_delivered()
        self.last, self.last_batch = None, ()
        # This uses up the old iterator, and so ends a loop that holds it.
        for _ in self.current:
            pass
        self._set_current([])
