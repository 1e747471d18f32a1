"""A durable subscription, as its owner uses it: get, iterate, ack.

Messages are fetched ahead and decoded batch by batch; positions move only by acks. An ack never runs ahead of
what the caller has finished: with `auto_ack` a message counts as done when the next one is asked for. Acks
ride on the next get, or go alone when that would take long.

A Subscription is for one thread at a time (the client itself is for any number): a call that comes while another
thread is inside one raises RuntimeError. Only `close` may come from elsewhere; who waits then gets ClientClosed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from oncemq import errors
from oncemq.client.checking import offset_of
from oncemq.client.delivery import Delivery
from oncemq.client.driver import now_ms
from oncemq.client.one_thread import OneThread
from oncemq.client.pending import Pending, again
from oncemq.client.reading import end_of
from oncemq.engine.commands import Ack, Close, Get, Open
from oncemq.engine.replies import AckReply, GetReply, OpenReply
from oncemq.message import Message

if TYPE_CHECKING:
    from oncemq.client.blocking import Client

#: A get waits at the broker for so long, then it is repeated: a broker that went away is noticed.
_WAIT_MS = 2000.0
#: An ack that finds no get to ride on goes alone after this.
_ACK_AFTER_MS = 100.0
_STRIDE_MAX = 1024
#: What another try may cure.
_PASSING = (errors.BrokerAway, errors.NotNow)
#: What is about one ack or one message, not about the subscription: raised, and then it goes on.
_NOT_FINAL = (errors.OffsetOutOfRange, errors.RecordCorrupt)


class Subscription:
    """A subscriber's messages, each once and in order. For one thread at a time: overlapping calls of several raise
    RuntimeError.

    >>> subscription = client.subscribe("orders", "kitchen")
    >>> for message in subscription.messages(timeout_s=1):
    ...     cook(message.value)
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        subscriber: str,
        *,
        created: bool = False,
        auto_ack: bool = True,
        hold_ms: int = 0,
        prefetch_bytes: int = 1024 * 1024,
    ) -> None:
        self.topic = topic
        self.subscriber = subscriber
        #: `subscribe` made it; False: it was there before.
        self.created = created
        self.auto_ack = auto_ack
        self._client = client
        self._driver = client._driver
        self._hold_ms = hold_ms
        self._prefetch_bytes = prefetch_bytes
        self._opened: OpenReply | None = None
        self._delivery = Delivery(topic, 0)
        self._current: Iterator[Message] = iter(())
        self._get: Pending | None = None
        self._ack: Pending | None = None
        #: What was given last, and, where it was a list, its first offset.
        self._hand: Message | None = None
        self._hand_from = -1
        self._delivered = 0
        self._finished = 0
        self._acked = 0
        self._ack_asked = 0
        self._ack_sent_ms = 0.0
        self._paced_ms = 0.0
        self._error: errors.OnceMQError | None = None
        self._one_thread = OneThread(repr(self))

    def __repr__(self) -> str:
        return f"Subscription({self.topic!r}, {self.subscriber!r})"

    # What people call.

    def get(self, timeout_s: float | None = 0.0) -> Message | None:
        """The next message; None if there is none within `timeout_s` (None: wait for ever).

        >>> message = subscription.get(timeout_s=5)
        """
        guard = self._one_thread
        if not guard.enter(False):
            guard.refuse()
        try:
            self._pace()
            message = next(self._current, None)
            if message is None and self._advance(timeout_s):
                message = next(self._current)
            if message is not None:
                self._hand = message
            return message
        finally:
            guard.leave()

    def get_many(self, messages_max: int = 1000, timeout_s: float | None = 0.0) -> list[Message]:
        """Up to so many messages, as soon as there are any; an empty list if none come within `timeout_s`.

        >>> for message in subscription.get_many(100, timeout_s=5):
        ...     cook(message.value)
        """
        with self._one_thread:
            self._pace()
            messages = list(islice(self._current, messages_max))
            while len(messages) < messages_max and (self._delivery or not messages):
                if not self._try_advance(timeout_s, has_some=bool(messages)):
                    break
                messages += islice(self._current, messages_max - len(messages))
            if messages:
                self._hand, self._hand_from = messages[-1], messages[0].offset
            return messages

    def messages(self, timeout_s: float | None = None) -> Iterator[Message]:
        """Iterate; ends when nothing came for `timeout_s` (None: never).

        >>> for message in subscription.messages(timeout_s=10):
        ...     cook(message.value)
        """
        stride = 1
        with self._one_thread:
            self._pace()
        while True:
            message = None
            for message in islice(self._current, stride):
                self._hand = message
                yield message
            with self._one_thread:
                took_ms = self._pace()
                if message is None and not self._advance(timeout_s):
                    return
            # The clock is read often where messages take long, and rarely where they are many.
            stride = min(2 * stride, _STRIDE_MAX) if took_ms < 10 else max(1, stride // 4) if took_ms > 50 else stride

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def ack(self, message: Message | int | None = None, *, wait: bool = False) -> None:
        """Everything up to and including this message (or offset) is done; None: everything that was given.

        Needed only with `auto_ack=False`. It rides on the next get, goes alone after a moment, and at `close` at
        the latest; with `wait` it is on the broker's disk when this returns. An offset that was not given yet
        moves on: what lies before it is left out. So one gets past a message that can't be read.

        >>> subscription.ack(message)
        """
        with self._one_thread:
            topic_id = self._ensure_open().topic_id
            given = self._delivered if self._hand is None else max(self._delivered, self._hand.offset + 1)
            upto = given if message is None else offset_of(message, topic_id) + 1
            if upto > given:
                self._move_on(upto, topic_id)
            self._finished = max(self._finished, upto)
            self._ack_now() if wait else self._pace(settles=False)

    def close(self) -> None:
        """Ack what was given (with `auto_ack`), and stop. The durable subscription stays."""
        self._close(clean=True)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(clean=kind is None)

    # Opening and closing.

    def _ensure_open(self, give_up_ms: float = 0.0) -> OpenReply:
        if self._error is not None:
            raise again(self._error)
        if self._opened is not None:
            return self._opened
        reply = self._client._call(Open(self.topic, self.subscriber, self._hold_ms), OpenReply, give_up_ms=give_up_ms)
        self._opened = reply
        self._delivery.position = self._delivery.end_offset = reply.acked
        self._delivered = self._finished = self._acked = self._ack_asked = reply.acked
        self._ack_sent_ms = self._paced_ms = now_ms()
        self._client._subscriptions.add(self)
        return reply

    def _close(self, clean: bool) -> None:
        self._client._subscriptions.discard(self)
        opened, error = self._opened, self._error
        self._error = error or errors.ClientClosed("this subscription was closed")
        if opened is None or error is not None:
            return
        try:
            self._settle_hand(clean)
            self._ack_now()
            if self._hold_ms:
                self._client._call_any(Close(opened.topic_id, self.subscriber, opened.epoch))
        except errors.OnceMQError:
            if clean:
                raise
        finally:
            self._drop_get()
            self._delivery.clear()

    def _drop_get(self) -> None:
        if self._get is not None:
            with self._driver.lock:
                self._driver.core.give_up(self._get, errors.ClientClosed("this subscription was closed"))
                self._driver.tell_others_locked()

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
            first = self._hand_from if self._hand_from >= 0 else hand.offset
            self._finished = max(self._finished, self._delivered if is_done else first)
        self._hand, self._hand_from = None, -1

    def _pace(self, *, settles: bool = True) -> float:
        """Between messages: send an ack that has waited long enough. Returns the time since the last pace."""
        if settles:
            self._ensure_open()
            self._settle_hand()
        at_ms = now_ms()
        took_ms, self._paced_ms = at_ms - self._paced_ms, at_ms
        if self._finished > self._ack_asked and at_ms - self._ack_sent_ms >= _ACK_AFTER_MS:
            with self._driver.lock:
                self._ask_ack()
                self._driver.pump_locked()
            self._note_acks()
        return took_ms

    def _move_on(self, upto: int, topic_id: int) -> None:
        """Leave out what was not given yet and lies below."""
        delivery = self._delivery
        if upto > max(delivery.position, delivery.end_offset):
            end_offset = end_of(self._driver, self.topic, topic_id)
            if upto > end_offset:
                raise errors.OffsetOutOfRange(f"ack of offset {upto - 1}; '{self.topic}' ends at {end_offset}")
        # The old iterator is used up by this, and so ends a loop's hold on it.
        self._current = iter([message for message in self._current if message.offset >= upto])
        self._delivered = upto
        if upto > delivery.position:
            self._drop_get()
            self._get = None
            self._ack_asked = self._acked
        delivery.skip_to(upto)

    # Acks.

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
        except _PASSING:
            self._ack_asked = self._acked
            return
        except errors.OnceMQError as error:
            self._refused(error)
        if isinstance(reply, AckReply):
            self._acked = max(self._acked, reply.acked)

    def _ack_now(self) -> None:
        with self._driver.lock:
            self._driver.check_usable()
            if self._ack is not None:
                self._driver.wait_locked(self._ack)
        self._note_acks()
        if self._finished <= self._acked:
            return
        with self._driver.lock:
            self._ask_ack()
            assert self._ack is not None
            pending = self._ack
            self._driver.wait_locked(pending)
        if isinstance(pending.error, _PASSING):
            self._note_acks()
            pending.result()
        self._note_acks()

    # Fetching.

    def _advance(self, timeout_s: float | None) -> bool:
        """Make the next messages current. False: none came in time."""
        if not self._delivery and not self._fetch(timeout_s):
            return False
        self._current = iter(self._delivery.decode())
        if self._get is not None or not self._delivery.is_caught_up:
            self._prefetch()
        return True

    def _try_advance(self, timeout_s: float | None, *, has_some: bool) -> bool:
        """The same for one who has messages already: an error that can wait does not take them away."""
        try:
            return self._advance(timeout_s)
        except errors.OnceMQError:
            if not has_some or self._error is not None:
                raise
            return False

    def _prefetch(self) -> None:
        """Keep one get on its way while there is room."""
        with self._driver.lock:
            if self._get is not None:
                self._driver.pump_locked()
            # That the broker is away can wait until what is buffered is used up; a new owner can't.
            if self._get is not None and self._get.done and not isinstance(self._get.error, _PASSING + _NOT_FINAL):
                self._take_reply()
            wants_more = not self._delivery.is_caught_up and self._delivery.buffered_bytes < self._prefetch_bytes
            if self._get is None and wants_more:
                self._ask_get(0)
                self._driver.pump_locked()

    def _fetch(self, timeout_s: float | None) -> bool:
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
        with self._driver.lock:
            self._driver.check_usable()
            while True:
                # An empty answer to a get that was sent earlier says nothing about now.
                is_fresh = self._get is None
                if is_fresh:
                    left_ms = _WAIT_MS if until_ms is None else max(0.0, until_ms - now_ms())
                    self._ask_get(int(min(left_ms, _WAIT_MS)))
                assert self._get is not None
                self._driver.wait_locked(self._get)
                self._take_reply()
                if self._delivery:
                    return True
                if is_fresh and until_ms is not None and now_ms() >= until_ms:
                    return False

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

    def _take_reply(self) -> None:
        assert self._get is not None
        pending, self._get = self._get, None
        try:
            reply = pending.result()
        except _PASSING:
            self._ack_asked = self._acked
            raise
        except errors.OnceMQError as error:
            self._refused(error)
        if not isinstance(reply, GetReply):
            raise errors.Malformed(f"a get was answered with {type(reply).__name__}")
        self._acked = max(self._acked, reply.acked)
        self._delivery.take(reply, pending.payloads)

    def _refused(self, error: errors.OnceMQError) -> NoReturn:
        """Final for this object, mostly. What was fetched ahead belongs to the new owner."""
        if isinstance(error, _NOT_FINAL):
            self._ack_asked = self._acked
            if isinstance(error, errors.OffsetOutOfRange):
                self._finished = self._acked
            raise again(error)
        self._error = error
        self._delivery.clear()
        self._current = iter(())
        raise again(error)
