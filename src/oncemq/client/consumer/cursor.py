"""What every subscription does with the messages that it is given, one topic's or many: hand them out one by one or
together, and settle them when the next one is asked for. Where they come from, the kinds of subscriptions know.

A subscription is for one thread or task at a time (the client itself is for any number): a call that comes while
another is inside one raises RuntimeError. Only `close` may come from elsewhere; who waits then gets ClientClosed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, NoReturn

from oncemq.client.consumer.filter import Filter
from oncemq.client.context import ClientContext
from oncemq.client.core.pending import Pending, again
from oncemq.client.runtime.driver import Driver, now_ms
from oncemq.client.runtime.flow import Flow, method
from oncemq.client.runtime.reentrancy import SingleUserGuard
from oncemq.protocol import errors
from oncemq.protocol.commands import Open
from oncemq.protocol.message import Message
from oncemq.protocol.replies import OpenReply

if TYPE_CHECKING:
    from oncemq.client.transaction import BaseTransaction

#: A get waits at the broker for so long, then it is repeated: a broker that went away is noticed.
WAIT_MS = 2000.0
#: An ack that finds no get to ride on goes alone after this.
ACK_AFTER_MS = 100.0
_STRIDE_MAX = 1024
#: What another try may cure.
PASSING = (errors.BrokerAway, errors.NotNow)
#: What is about one ack or one message, not about the subscription: raised, and then it goes on.
NOT_FINAL = (errors.OffsetOutOfRange, errors.RecordCorrupt)
CAN_WAIT = (*PASSING, *NOT_FINAL, errors.Sought)


class Receiving:
    """What a subscription has at hand."""

    #: Who may use it, one at a time; and who is calling.
    _user = "thread"
    _who = staticmethod(threading.get_ident)

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscriber: str,
        *,
        created: bool,
        auto_ack: bool,
        prefetch_bytes: int,
        wanted: Filter | None,
    ) -> None:
        self.topic = topic
        self.subscriber = subscriber
        #: `subscribe` made it; False: it was there before.
        self.created = created
        self.auto_ack = auto_ack
        self._context = context
        self._driver: Driver = context.driver
        self._prefetch_bytes = prefetch_bytes
        self._wanted = wanted
        self._opened: OpenReply | None = None
        #: Of the last opening, once that is given up: a successor is left alone.
        self._former_epoch = 0
        #: The highest of all openings: a broker gives none twice.
        self._epoch_seen = 0
        self._current: Iterator[Message] = iter(())
        self._get: Pending | None = None
        self._ack: Pending | None = None
        #: What was given last; where it was a list, all of it.
        self._hand: Message | None = None
        self._hand_list: list[Message] = []
        self._ack_sent_ms = 0.0
        #: Who asked last.
        self._reader = 0
        #: Transactions that have acked something of it, and whose blocks have not ended.
        self._claimants: set[BaseTransaction] = set()
        self._paced_ms = 0.0
        #: A seek moved it: messages that were given before are not what they were.
        self._was_sought = False
        self._error: errors.OnceMQError | None = None
        self._one_user = SingleUserGuard(repr(self), self._user, self._who)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, {self.subscriber!r})"

    # What the kinds of subscriptions know.

    def _settle_hand(self, is_done: bool = True) -> None:
        """The next message was asked for: what was given counts as done."""
        raise NotImplementedError

    def _is_ack_due(self, at_ms: float) -> bool:
        raise NotImplementedError

    def _owes_acks(self) -> bool:
        """Something is done that the broker has not confirmed."""
        raise NotImplementedError

    def _ask_ack(self) -> None:
        raise NotImplementedError

    def _note_acks(self) -> None:
        """Look at an ack that went alone."""
        raise NotImplementedError

    def _ask_get(self, wait_ms: int) -> None:
        raise NotImplementedError

    def _take_reply(self) -> None:
        """What the get has brought. A seek closes the subscription."""
        raise NotImplementedError

    def _open(self, give_up_ms: float = 0.0) -> Flow[OpenReply]:
        """Once; then it is known."""
        raise NotImplementedError

    def _advance(self, timeout_s: float | None) -> Flow[bool]:
        """Make the next messages current. False: none came in time."""
        raise NotImplementedError

    def _close(self, clean: bool) -> Flow[None]:
        raise NotImplementedError

    def _ack_at_hand(self, message: Message | int | None) -> bool:
        """Note an ack that needs no waiting. False: it does."""
        raise NotImplementedError

    def _ack_one(self, message: Message | int | None, wait: bool) -> Flow[None]:
        raise NotImplementedError

    def _acks_for_transaction(self, message: Message | int | None) -> dict[int, int]:
        """Topic's id → everything below is done."""
        raise NotImplementedError

    def _key(self) -> str:
        """By what name the broker knows it on its topics."""
        raise NotImplementedError

    def _committed(self, topic_id: int, upto: int) -> None:
        raise NotImplementedError

    def _go_back(self, claims: Mapping[int, int]) -> None:
        """What was given and not acked comes again: a transaction did not happen. What another one claims, by
        topic's id, does not; its block has not ended."""
        raise NotImplementedError

    def _transaction_failed(self, error: BaseException) -> None:
        """It was sent, and brought acks of this subscription. Where it may have happened the broker knows; after a
        seek, or when somebody else may own it, the next opening tells."""
        if isinstance(error, errors.Sought):
            self._reopen(sought=True)
        elif isinstance(error, errors.Fenced) or not isinstance(error, errors.Refused):
            self._reopen()

    def _reopen(self, *, sought: bool = False) -> None:
        """Its next use opens it again, and goes on where the broker says. What was fetched ahead is dropped."""
        raise NotImplementedError

    def _has_more(self) -> bool:
        """Messages that were fetched and are not current."""
        raise NotImplementedError

    def _call_open(self, hold_ms: int, give_up_ms: float) -> Flow[OpenReply]:
        command = Open(self.topic, self.subscriber, hold_ms, self._former_epoch)
        try:
            reply = yield from self._context.call(command, OpenReply, give_up_ms=give_up_ms)
        except errors.SubscriptionFenced as error:
            self._error = error
            raise
        except BaseException:
            # It may have happened: it must not be taken for its own successor.
            self._former_epoch = 0
            raise
        if reply.sharing is None and reply.epoch <= self._epoch_seen:
            self._was_rewound(f"it was opened as owner {self._epoch_seen}, and is opened as {reply.epoch} again")
        self._epoch_seen = reply.epoch
        return reply

    def _was_rewound(self, what: str) -> NoReturn:
        """Final: what it would go on with is not what it has read before."""
        self._error = errors.BrokerRewound(f"'{self.subscriber}' on '{self.topic}': {what}")
        self._forget_fetched()
        raise again(self._error)

    def _forget_opening(self) -> None:
        """Its next use opens it again."""
        if self._opened is not None:
            self._former_epoch = self._opened.epoch
        self._opened = self._ack = None

    def _forget_fetched(self) -> None:
        """What was fetched ahead is not wanted any more."""
        self._drop_get()
        self._get = None
        # The old iterator is used up, and so ends a loop's hold on it.
        for _ in self._current:
            pass
        self._current = iter(())
        self._hand, self._hand_list = None, []

    def _drop_get(self) -> None:
        if self._get is not None:
            self._driver.give_up(self._get, errors.ClientClosed("this subscription was closed"))

    # What people call.

    @method
    def get_many(self, messages_max: int = 1000, timeout_s: float | None = 0.0) -> Flow[list[Message]]:
        """Up to so many messages, as soon as there are any; an empty list if none come within `timeout_s`.

        >>> for message in subscription.get_many(100, timeout_s=5):
        ...     cook(message.value)
        """
        return self._one_user.around(self._get_many(messages_max, timeout_s))

    def _get_many(self, messages_max: int, timeout_s: float | None) -> Flow[list[Message]]:
        yield from self._pace()
        messages = self._hand_list = list(islice(self._current, messages_max))
        try:
            while len(messages) < messages_max and (self._has_more() or not messages):
                # In hand before the next ones are looked at: what is left out of those is not done before these.
                self._hand = messages[-1] if messages else None
                if not (yield from self._try_advance(timeout_s, has_some=bool(messages))):
                    break
                messages += islice(self._current, messages_max - len(messages))
        except BaseException as error:
            if not isinstance(error, errors.OnceMQError):
                # Interrupted, or the filter failed: they were not given to anybody.
                self._current = chain(messages, self._current)
                self._hand, self._hand_list = None, []
            raise
        self._hand = messages[-1] if messages else None
        return messages

    @method
    def close(self) -> Flow[None]:
        """Ack what was given (with `auto_ack`), and stop. The durable subscription stays."""
        return self._close(clean=True)

    # One by one.

    def _get_at_hand(self) -> Message | None:
        """The next message, where there is one and nothing else is due."""
        if self._opened is None or self._error is not None:
            return None
        self._settle_hand()
        if self._is_ack_due(now_ms()):
            return None
        message = next(self._current, None)
        if message is not None:
            self._hand = message
        return message

    def _get_one(self, timeout_s: float | None) -> Flow[Message | None]:
        yield from self._pace()
        message = next(self._current, None)
        if message is None and (yield from self._advance(timeout_s)):
            message = next(self._current)
        if message is not None:
            self._hand = message
        return message

    def _next_stride(self, stride: int, has_ended: bool, timeout_s: float | None) -> Flow[int]:
        """How many messages to iterate over until this is asked again; 0: none came in time."""
        return self._one_user.around(self._find_stride(stride, has_ended, timeout_s))

    def _find_stride(self, stride: int, has_ended: bool, timeout_s: float | None) -> Flow[int]:
        took_ms = yield from self._pace()
        if has_ended and not (yield from self._advance(timeout_s)):
            return 0
        # The clock is read often where messages take long, and rarely where they are many.
        if took_ms < 10:
            return max(1, min(2 * stride, _STRIDE_MAX))
        return max(1, stride // 4) if took_ms > 50 else max(1, stride)

    @method
    def _ensure_open(self) -> Flow[OpenReply]:
        """For those who need its epoch and position without a message."""
        return self._open()

    def _pace(self) -> Flow[float]:
        """Between messages: send an ack that has waited long enough. Returns the time since the last pace."""
        yield from self._open()
        self._reader = self._who()
        self._settle_hand()
        at_ms = now_ms()
        took_ms, self._paced_ms = at_ms - self._paced_ms, at_ms
        self._send_due_ack()
        return took_ms

    def _try_advance(self, timeout_s: float | None, *, has_some: bool) -> Flow[bool]:
        """The same for one who has messages already: an error that can wait does not take them away."""
        try:
            return (yield from self._advance(timeout_s))
        except errors.OnceMQError:
            if not has_some or self._error is not None:
                raise
            return False

    # Acks and gets.

    def _send_due_ack(self) -> None:
        if self._is_ack_due(now_ms()):
            self._ask_ack()
            self._driver.pump()
            self._note_acks()

    def _ack_now(self) -> Flow[None]:
        self._driver.check_usable()
        if self._ack is not None:
            yield self._ack
        self._note_acks()
        if self._opened is None or not self._owes_acks():
            return
        self._ask_ack()
        assert self._ack is not None
        pending = self._ack
        yield pending
        self._note_acks()
        if isinstance(pending.error, PASSING):
            pending.result()

    def _fetch(self, until_ms: float | None) -> Flow[bool]:
        self._driver.check_usable()
        while True:
            # A seek may have closed it.
            yield from self._open()
            # An empty answer to a get that was sent earlier says nothing about now.
            is_fresh = self._get is None
            if is_fresh:
                left_ms = WAIT_MS if until_ms is None else max(0.0, until_ms - now_ms())
                self._ask_get(int(min(left_ms, WAIT_MS)))
            assert self._get is not None
            yield self._get
            self._take_reply()
            if self._has_more():
                return True
            if is_fresh and self._opened is not None and until_ms is not None and now_ms() >= until_ms:
                return False
