"""A subscription as threads use it; what it does is in topic.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Self

from oncemq.client.consumer.cursor import Receiving
from oncemq.client.consumer.pattern import PatternConsuming
from oncemq.client.consumer.topic import Consuming
from oncemq.client.runtime.flow import Blocking
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.protocol.message import Message


class Iterating(Receiving):
    """What is at hand, one by one, as threads ask for it."""

    _driver: ThreadDriver

    def get(self, timeout_s: float | None = 0.0) -> Message | None:
        """The next message; None if there is none within `timeout_s` (None: wait for ever).

        >>> message = subscription.get(timeout_s=5)
        """
        guard = self._one_user
        self._reader = guard.enter()
        try:
            guard.is_inside = True
            message = self._get_at_hand()
            return message if message is not None else self._driver.run(self._get_one(timeout_s))
        finally:
            guard.is_inside = False
            guard.leave()

    def messages(self, timeout_s: float | None = None) -> Iterator[Message]:
        """Iterate; ends when nothing came for `timeout_s` (None: never).

        >>> for message in subscription.messages(timeout_s=10):
        ...     cook(message.value)
        """
        stride = self._driver.run(self._next_stride(0, False, timeout_s))
        while stride:
            message = None
            for message in islice(self._current, stride):
                self._hand = message
                yield message
            stride = self._driver.run(self._next_stride(stride, message is None, timeout_s))

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def ack(self, message: Message | int | None = None, *, wait: bool = False) -> None:
        """Everything up to and including this message (or offset) is done; None: everything that was given.

        Needed only with `auto_ack=False`. It rides on the next get, goes alone after a moment, and at `close` at
        the latest; with `wait` it is on the broker's disk when this returns. An offset that was not given yet
        moves on: what lies before it is left out. So one gets past a message that can't be read.

        >>> subscription.ack(message)
        """
        guard = self._one_user
        guard.enter()
        try:
            guard.is_inside = True
            if wait or not self._ack_at_hand(message):
                self._driver.run(self._ack_one(message, wait))
        finally:
            guard.is_inside = False
            guard.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._driver.run(self._close(clean=kind is None))


class Subscription(Blocking, Iterating, Consuming):
    """A subscriber's messages, each once and in order. For one thread at a time: overlapping calls of several raise
    RuntimeError.

    >>> subscription = client.subscribe("orders", "kitchen")
    >>> for message in subscription.messages(timeout_s=1):
    ...     cook(message.value)
    """

    _driver: ThreadDriver


class PatternSubscription(Blocking, Iterating, PatternConsuming):
    """Messages of every topic that matches a pattern, each once and in its topic's order. For one thread at a time.

    >>> subscription = client.subscribe_pattern("orders.*", "audit")
    >>> for message in subscription.messages(timeout_s=1):
    ...     print(message.topic, message.text)
    """

    _driver: ThreadDriver
