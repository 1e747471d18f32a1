"""A durable subscription to one topic, as its owner uses it: the flows that both shells share.

Messages are fetched ahead and decoded batch by batch; positions move only by acks. An ack never runs ahead of
what the caller has finished: with `auto_ack` a message counts as done when the next one is asked for. Acks
ride on the next get, or go alone when that would take long.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import NoReturn

from oncemq.client.consumer.cursor import ACK_AFTER_MS, CAN_WAIT, NOT_FINAL, PASSING, Receiving
from oncemq.client.consumer.delivery import Delivery
from oncemq.client.consumer.filter import Filter
from oncemq.client.consumer.reader import Start, end_of, seek_of
from oncemq.client.context import ClientContext
from oncemq.client.core.pending import again
from oncemq.client.core.validation import offset_of
from oncemq.client.recording.records import Whose
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside, method
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Close, Get, Seek
from oncemq.protocol.message import Message
from oncemq.protocol.replies import AckReply, GetReply, OpenReply, SeekReply


class Consuming(Receiving):
    """One topic's messages, each once and in order."""

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscriber: str,
        *,
        created: bool = False,
        auto_ack: bool = True,
        hold_ms: int = 0,
        prefetch_bytes: int = 1024 * 1024,
        wanted: Filter | None = None,
    ) -> None:
        super().__init__(
            context,
            topic,
            subscriber,
            created=created,
            auto_ack=auto_ack,
            prefetch_bytes=prefetch_bytes,
            wanted=wanted,
        )
        self._hold_ms = hold_ms
        self._delivery = Delivery(topic, 0)
        self._delivered = 0
        self._finished = 0
        self._acked = 0
        self._ack_asked = 0
        #: What the broker had confirmed when the get was sent that is on its way.
        self._acked_before = 0
        #: Everything below was either given or not wanted.
        self._looked_through = 0
        #: The last message in there that is wanted.
        self._last_wanted = -1
        #: Acks that the caller was promised, and that a new opening must not forget.
        self._owed = 0
        #: Messages that it has lost to its topic's quota, ever.
        self.dropped = 0

    # Acks by the caller.

    def _ack_at_hand(self, message: Message | int | None) -> bool:
        """Note an ack that needs no waiting. False: it does."""
        if self._opened is None or self._error is not None:
            return False
        given = self._given()
        upto = given if message is None else offset_of(message, self._opened.topic_id) + 1
        if upto > given:
            return self._was_sought and isinstance(message, Message)
        self._finished = max(self._finished, upto)
        return not self._is_ack_due(now_ms())

    def _ack_one(self, message: Message | int | None, wait: bool) -> Flow[None]:
        opened = yield from self._open()
        given = self._given()
        upto = given if message is None else offset_of(message, opened.topic_id) + 1
        if upto > given:
            if self._was_sought and isinstance(message, Message):
                # It was given before the seek, and will be given again.
                return
            yield from self._move_on(upto, opened.topic_id)
        self._finished = max(self._finished, upto)
        if wait:
            yield from self._ack_now()
        else:
            self._send_due_ack()

    # Opening and closing.

    def _open(self, give_up_ms: float = 0.0) -> Flow[OpenReply]:
        """Once; then it is known."""
        if self._error is not None:
            raise again(self._error)
        if self._opened is not None:
            return self._opened
        reply = yield from self._call_open(self._hold_ms, give_up_ms)
        if reply.sharing is not None:
            raise errors.KindMismatch(
                f"'{self.subscriber}' on '{self.topic}' is shared: use client.shared_subscription"
            )
        self._opened = reply
        self._acked = self._ack_asked = reply.acked
        self._finished = max(reply.acked, self._owed)
        self._delivery.position = self._delivery.end_offset = self._delivered = self._finished
        self._looked_through = self._finished
        self._ack_sent_ms = self._paced_ms = now_ms()
        self._context.open_subscriptions.add(self)
        return reply

    def _close(self, clean: bool) -> Flow[None]:
        self._context.open_subscriptions.discard(self)
        opened, error = self._opened, self._error
        if opened is None and error is None and self._owed and clean:
            # It was opened before, and acks were promised that the broker does not know of.
            opened = yield from self._open()
            self._context.open_subscriptions.discard(self)
        self._error = error or errors.ClientClosed("this subscription was closed")
        if opened is None or error is not None:
            return
        try:
            self._settle_hand(clean)
            yield from self._ack_now()
            if self._hold_ms:
                yield from self._context.call_any(Close(opened.topic_id, self.subscriber, opened.epoch))
        except errors.OnceMQError:
            if clean:
                raise
        finally:
            self._drop_get()
            self._delivery.clear()

    @method
    def seek(self, to: Start | datetime) -> Flow[int]:
        """Go on at an offset, `"earliest"`, `"new"`, or the first message that was stored at a time or later.
        Returns the offset. What is still stored can be read again.

        >>> subscription.seek("earliest")
        0
        """
        command = seek_of(self.topic, self.subscriber, to)
        return self._one_user.around(self._seek(command))

    def _seek(self, command: Seek) -> Flow[int]:
        yield from self._open()
        reply = yield from self._context.call(command, SeekReply)
        self._reopen(sought=True)
        return reply.acked

    def _reopen(self, *, sought: bool = False) -> None:
        """Its next use opens it again, and goes on where the broker says. What was fetched ahead is dropped."""
        self._owed = self._finished if self._finished > self._acked and not sought else 0
        self._was_sought = self._was_sought or sought
        self._forget_fetched()
        self._forget_opening()

    def _forget_fetched(self) -> None:
        super()._forget_fetched()
        self._delivery.clear()

    def _has_more(self) -> bool:
        return bool(self._delivery)

    # In a transaction.

    def _acks_for_transaction(self, message: Message | int | None) -> dict[int, int]:
        assert self._opened is not None
        given = self._given()
        upto = given if message is None else offset_of(message, self._opened.topic_id) + 1
        if upto > given:
            raise ValueError(
                f"offset {upto - 1} was not given yet, or comes again since another transaction failed; "
                "a transaction acks what was given"
            )
        return {self._opened.topic_id: upto}

    def _whose(self) -> Whose:
        """For a recorder."""
        assert self._opened is not None
        return Whose(self._driver.core.broker_id, self._opened.topic_id, self.subscriber, self._opened.epoch)

    def _key(self) -> str:
        return self.subscriber

    def _committed(self, _topic_id: int, upto: int) -> None:
        self._finished = max(self._finished, upto)
        self._acked = max(self._acked, upto)
        self._ack_asked = max(self._ack_asked, upto)

    def _go_back(self, claims: Mapping[int, int]) -> None:
        if self._opened is None or self._error is not None:
            # The next opening goes back, if there is one.
            return
        to = max(self._finished, claims.get(self._opened.topic_id, 0))
        if self._given() <= to:
            return
        self._forget_fetched()
        self._ack_asked = self._acked
        self._delivery.position = self._delivered = self._looked_through = to
        recorder = self._driver.core.recorder
        if recorder is not None:
            recorder.went_back(self._whose(), to)

    # What is in hand.

    def _settle_hand(self, is_done: bool = True) -> None:
        """The next message was asked for: what was given counts as done."""
        hand = self._hand
        if hand is None:
            return
        # An ack may have moved on beyond it.
        if hand.offset >= self._delivered:
            self._delivered = hand.offset + 1
        if self.auto_ack:
            first = self._hand_list[0].offset if self._hand_list else hand.offset
            self._finished = max(self._finished, self._delivered if is_done else first)
        if is_done and hand.offset == self._last_wanted:
            self._pass_over()
        self._hand, self._hand_list = None, []

    def _given(self) -> int:
        """Where what was given ends."""
        return self._delivered if self._hand is None else max(self._delivered, self._hand.offset + 1)

    def _move_on(self, upto: int, topic_id: int) -> Flow[None]:
        """Leave out what was not given yet and lies below."""
        delivery = self._delivery
        if upto > max(delivery.position, delivery.end_offset):
            end_offset = yield from end_of(self._driver, self.topic, topic_id)
            if upto > end_offset:
                raise errors.OffsetOutOfRange(f"ack of offset {upto - 1}; '{self.topic}' ends at {end_offset}")
        # The old iterator is used up by this, and so ends a loop's hold on it.
        self._current = iter([message for message in self._current if message.offset >= upto])
        recorder = self._driver.core.recorder
        if recorder is not None:
            recorder.left(self._whose(), self._given(), upto)
        self._delivered = upto
        if upto > delivery.position:
            self._drop_get()
            self._get = None
            self._ack_asked = self._acked
        delivery.skip_to(upto)

    # Acks.

    def _is_ack_due(self, at_ms: float) -> bool:
        return self._finished > self._ack_asked and at_ms - self._ack_sent_ms >= ACK_AFTER_MS

    def _owes_acks(self) -> bool:
        return self._finished > self._acked

    def _ask_ack(self) -> None:
        if self._ack is not None and not self._ack.done:
            return
        assert self._opened is not None
        self._ack_asked = self._finished
        self._ack_sent_ms = now_ms()
        command = Ack(self._opened.topic_id, self.subscriber, self._opened.epoch, self._finished)
        self._ack = self._driver.core.ask(command)

    def _note_acks(self) -> None:
        """Look at an ack that went alone. If the broker was away, a later one says the same."""
        if self._ack is None or not self._ack.done:
            return
        pending, self._ack = self._ack, None
        try:
            reply = pending.result()
        except PASSING:
            self._ack_asked = self._acked
            return
        except errors.Sought:
            self._reopen(sought=True)
            return
        except errors.OnceMQError as error:
            self._refused(error)
        if isinstance(reply, AckReply):
            self._acked = max(self._acked, reply.acked)

    # Fetching.

    def _advance(self, timeout_s: float | None) -> Flow[bool]:
        """Make the next messages current. False: none came in time."""
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
        while True:
            if not self._delivery and not (yield from self._fetch(until_ms)):
                return False
            if self._wanted is None:
                messages = yield Outside(self._delivery.decode)
                looked_at = None
            else:
                messages, end = yield Outside(partial(self._delivery.decode_wanted, self._wanted))
                looked_at = (self._looked_through, end)
                self._leave_out(messages, end)
            recorder = self._driver.core.recorder
            if recorder is not None and self._opened is not None:
                recorder.got(self._whose(), self.topic, messages, looked_at=looked_at)
            self._current = iter(messages)
            if self._get is not None or not self._delivery.is_caught_up:
                self._prefetch()
            if messages:
                return True

    def _leave_out(self, wanted: list[Message], end: int) -> None:
        """Messages that the caller does not want count as done, with those before them."""
        self._looked_through = end
        if wanted:
            self._last_wanted = wanted[-1].offset
        elif self._hand is None:
            self._pass_over()

    def _pass_over(self) -> None:
        """What lies behind the last message that was given is not wanted."""
        self._delivered = max(self._delivered, self._looked_through)
        if self.auto_ack:
            self._finished = max(self._finished, self._looked_through)

    def _prefetch(self) -> None:
        """Keep one get on its way while there is room."""
        if self._get is not None:
            self._driver.pump()
        # That the broker is away, or a seek, can wait until what is buffered is used up; a new owner can't.
        if self._get is not None and self._get.done and not isinstance(self._get.error, CAN_WAIT):
            self._take_reply()
        wants_more = not self._delivery.is_caught_up and self._delivery.buffered_bytes < self._prefetch_bytes
        if self._get is None and wants_more:
            self._ask_get(0)
            self._driver.pump()

    def _ask_get(self, wait_ms: int) -> None:
        opened = self._opened
        assert opened is not None
        ack = self._finished if self._finished > self._ack_asked else -1
        if ack >= 0:
            self._ack_asked = ack
            self._ack_sent_ms = now_ms()
        position, bytes_max = self._delivery.position, max(1, self._prefetch_bytes // 2)
        command = Get(opened.topic_id, self.subscriber, opened.epoch, position, bytes_max, wait_ms, ack)
        self._get = self._driver.core.ask(command)
        self._acked_before = self._acked

    def _take_reply(self) -> None:
        assert self._get is not None
        pending, self._get = self._get, None
        try:
            reply = pending.result()
        except PASSING:
            self._ack_asked = self._acked
            raise
        except errors.Sought:
            self._reopen(sought=True)
            return
        except errors.OnceMQError as error:
            self._refused(error)
        if not isinstance(reply, GetReply):
            raise errors.Malformed(f"a get was answered with {type(reply).__name__}")
        if reply.acked < self._acked_before:
            self._was_rewound(f"offset {self._acked_before - 1} was acked, and the broker stands at {reply.acked}")
        self._acked = max(self._acked, reply.acked)
        self.dropped = max(self.dropped, reply.dropped)
        self._delivery.take(reply, pending.payloads)

    def _refused(self, error: errors.OnceMQError) -> NoReturn:
        """Final for this object, mostly. What was fetched ahead belongs to the new owner."""
        if isinstance(error, NOT_FINAL):
            self._ack_asked = self._acked
            if isinstance(error, errors.OffsetOutOfRange):
                self._finished = self._acked
            raise again(error)
        self._error = error
        self._delivery.clear()
        self._current = iter(())
        raise again(error)
