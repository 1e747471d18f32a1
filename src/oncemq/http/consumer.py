"""A consumer of the queue."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

import httpx

from oncemq.http.queue_client import QueueClient
from oncemq.http.requests import DEFAULT_URL, Json
from oncemq.protocol import errors

#: It waits for a message in slices of this length, so that other threads have their turn.
_SLICE_S = 1.0


class Consumer(QueueClient):
    """Consumes topics, each in order, under one id.

    >>> with Consumer("http://127.0.0.1:8002") as consumer:
    ...     consumer.register("T1", "T2")
    ...     consumer.dequeue("T1")

    A message is confirmed by the next `dequeue` of its topic, or by `close`: until then another process with the same
    id would get it again. A `with` block that ends in an exception does not confirm the last messages. Addresses and
    times are those of `Producer`.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        consumer_id: str | None = None,
        timeout_s: float = 10.0,
        patience_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`consumer_id`: of a consumer that was registered before, or one of your own."""
        super().__init__(url, timeout_s=timeout_s, patience_s=patience_s, transport=transport)
        self._id = consumer_id
        self._is_given = consumer_id is not None
        self._slice_s = min(_SLICE_S, timeout_s / 2)
        #: Topic → where its next message is; all below was given out here.
        self._positions: dict[str, int] = {}
        #: Topics whose last message is not confirmed.
        self._unconfirmed: set[str] = set()

    @property
    def consumer_id(self) -> str | None:
        """Keep it to go on with it in another process. None: nothing is registered yet."""
        return self._id

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            super().close()

    def register(self, *topics: str) -> str:
        """Subscribe to topics, which exist: to all that is published from now on. Returns the id, the same for all.
        With a `consumer_id` that was given, a topic that it is subscribed to goes on where it was: so a program that is
        started again gets what it has left.

        Raises TopicUnknown, ConsumerSubscribed, NameInvalid, BrokerAway; topics before the one that it is about are
        registered then.

        >>> consumer.register("T1", "T3")
        '2c26b46b68ffc68f'
        """
        if not topics:
            raise ValueError("at least one topic is needed")
        with self._lock:
            for topic in topics:
                self._register(topic)
            assert self._id is not None
            return self._id

    def _register(self, topic: str) -> None:
        body = {"topic": topic} if self._id is None else {"topic": topic, "consumer_id": self._id}
        try:
            reply = self._post_once("/consumer/register", body)
        except errors.ConsumerSubscribed:
            if not self._is_given:
                raise
            # Where it stands is looked up when it is needed.
            return
        self._id = reply["consumer_id"]
        self._positions[topic] = reply["position"]

    def dequeue(self, topic: str, wait_s: float = 0.0) -> str | bytes:
        """The next message, once; waits for one, up to `wait_s`. What is no UTF-8 text comes as bytes.

        Raises NothingNew, ConsumerUnknown, NotSubscribed, TopicUnknown, BrokerAway; Consumed where another process
        with this id was quicker: the next call goes on behind that.

        >>> consumer.dequeue("T1")
        'one pizza'
        """
        until_s = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            try:
                with self._lock:
                    return self._dequeue(topic, round(1000 * min(left_s, self._slice_s)))
            except errors.NothingNew:
                if time.monotonic() >= until_s:
                    raise

    def size(self, topic: str) -> int:
        """How many messages this consumer has left. Raises ConsumerUnknown, NotSubscribed, TopicUnknown, BrokerAway.

        >>> consumer.size("T1")
        3
        """
        with self._lock:
            reply = self._caller.get("/size", self._query(topic))
            position, size = int(reply["position"]), int(reply["size"])
            # What was given out here and is not confirmed is not left.
            return max(0, position + size - max(position, self._positions.get(topic, 0)))

    def close(self) -> None:
        """Confirm what was dequeued, and end. Whoever goes on trying in another thread is told ClientClosed. Raises
        what the confirming is refused with."""
        self._caller.end_tries()
        with self._lock:
            self._caller.begin_last_words()
            try:
                for topic in sorted(self._unconfirmed):
                    self._confirm(topic)
            finally:
                super().close()

    def _dequeue(self, topic: str, wait_ms: int, *, goes_on: bool = True) -> str | bytes:
        if topic not in self._positions:
            self._positions[topic] = self._caller.get("/size", self._query(topic))["position"]
        try:
            reply = self._consume(topic, wait_ms)
        except errors.NothingNew:
            raise
        except errors.Sought:
            # A seek has moved the subscription: it goes on there. That is told once.
            self._forget(topic)
            if not goes_on:
                raise
            return self._dequeue(topic, wait_ms, goes_on=False)
        except errors.Refused:
            self._forget(topic)
            raise
        self._positions[topic] = reply["next_position"]
        self._unconfirmed.add(topic)
        return _message_of(reply)

    def _consume(self, topic: str, wait_ms: int = 0) -> Json:
        """Confirms everything before; may be repeated."""
        query = self._query(topic) | {"position": self._positions[topic]}
        if wait_ms:
            query["wait_ms"] = wait_ms
        try:
            return self._caller.get("/consumer/consume", query)
        except errors.NothingNew:
            self._unconfirmed.discard(topic)
            raise

    def _confirm(self, topic: str) -> None:
        with suppress(errors.NothingNew, errors.Consumed, errors.Sought):
            self._consume(topic)
        self._unconfirmed.discard(topic)

    def _forget(self, topic: str) -> None:
        self._positions.pop(topic, None)
        self._unconfirmed.discard(topic)

    def _query(self, topic: str) -> Json:
        if self._id is None:
            raise errors.ConsumerUnknown("this consumer is not registered yet")
        return {"consumer_id": self._id, "topic": topic}


def _message_of(reply: Json) -> str | bytes:
    message: str = reply["message"]
    return base64.b64decode(message) if reply["encoding"] == "base64" else message
