"""A consumer of the queue."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from contextlib import suppress

import httpx

from oncemq.http.connection import QueueConnection
from oncemq.http.credentials import Verify
from oncemq.http.requests import DEFAULT_URL, Json
from oncemq.protocol import errors

#: A wait for a message is divided into requests of this length, so that other threads can use the consumer.
_SLICE_S = 1.0


class Consumer:
    """Consumes messages of topics, each topic in order, under one id.

    >>> with Consumer("http://127.0.0.1:8002") as consumer:
    ...     consumer.register("T1", "T2")
    ...     consumer.dequeue("T1")

    A message is confirmed by the next `dequeue` of its topic, or by `close`. Until then another process with the same
    id would get it again. A `with` block that ends with an exception does not confirm the last messages. Addresses,
    tokens and times are the same as for `Producer`.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        consumer_id: str | None = None,
        token: str | None = None,
        token_file: str | None = None,
        verify: Verify | None = None,
        timeout_s: float = 10.0,
        total_timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`consumer_id`: the id of a consumer that was registered before, or one of your own."""
        self._connection = QueueConnection(
            url,
            token=token,
            token_file=token_file,
            verify=verify,
            timeout_s=timeout_s,
            total_timeout_s=total_timeout_s,
            transport=transport,
        )
        self._id = consumer_id
        self._has_own_id = consumer_id is not None
        self._slice_s = min(_SLICE_S, timeout_s / 2)
        #: Topic → the position of its next message; all messages below were dequeued here.
        self._positions: dict[str, int] = {}
        #: Topics whose last message is not confirmed.
        self._unconfirmed: set[str] = set()

    @property
    def consumer_id(self) -> str | None:
        """Keep it to continue with it in another process. None: no topic is registered yet."""
        return self._id

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._connection.close()

    def register(self, *topics: str) -> str:
        """Subscribe to existing topics: to all messages that are published from now on. Returns the id, the same for
        all topics. With a `consumer_id` of your own, a topic that it is already subscribed to continues at its
        position, so that a restarted program gets the messages that it has not consumed.

        Raises TopicUnknown, ConsumerSubscribed, NameInvalid, BrokerAway. Topics before the one that failed are
        registered.

        >>> consumer.register("T1", "T3")
        '2c26b46b68ffc68f'
        """
        if not topics:
            raise ValueError("at least one topic is needed")
        with self._connection.lock:
            for topic in topics:
                self._register(topic)
            assert self._id is not None
            return self._id

    def _register(self, topic: str) -> None:
        body = {"topic": topic} if self._id is None else {"topic": topic, "consumer_id": self._id}
        try:
            reply = self._connection.post_once("/consumer/register", body)
        except errors.ConsumerSubscribed:
            if not self._has_own_id:
                raise
            # Its position is looked up when it is needed.
            return
        self._id = reply["consumer_id"]
        self._positions[topic] = reply["position"]

    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._connection.list_topics()

    def dequeue(self, topic: str, wait_s: float = 0.0) -> str | bytes:
        """Return the next message, once. Waits for one for at most `wait_s`. A message that is not UTF-8 text is
        returned as bytes.

        Raises NothingNew, ConsumerUnknown, NotSubscribed, TopicUnknown, BrokerAway; Consumed if another process with
        this id was faster: the next call continues after that message.

        >>> consumer.dequeue("T1")
        'one pizza'
        """
        until_s = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            try:
                with self._connection.lock:
                    return self._dequeue(topic, round(1000 * min(left_s, self._slice_s)))
            except errors.NothingNew:
                if time.monotonic() >= until_s:
                    raise

    def size(self, topic: str) -> int:
        """Return how many messages this consumer has not consumed. Raises ConsumerUnknown, NotSubscribed, TopicUnknown,
        BrokerAway.

        >>> consumer.size("T1")
        3
        """
        with self._connection.lock:
            reply = self._connection.requests.get("/size", self._query(topic))
            position, size = int(reply["position"]), int(reply["size"])
            # Messages that were dequeued here count as consumed, even if they are not confirmed yet.
            return max(0, position + size - max(position, self._positions.get(topic, 0)))

    def close(self) -> None:
        """Confirm the dequeued messages, and close. A request that another thread repeats raises ClientClosed. Raises
        what the gateway refuses the confirmation with."""
        requests = self._connection.requests
        requests.stop_attempts()
        with self._connection.lock:
            requests.allow_final_requests()
            try:
                for topic in sorted(self._unconfirmed):
                    self._confirm(topic)
            finally:
                self._connection.close()

    def _dequeue(self, topic: str, wait_ms: int, *, retries: bool = True) -> str | bytes:
        if topic not in self._positions:
            self._positions[topic] = self._connection.requests.get("/size", self._query(topic))["position"]
        try:
            reply = self._consume(topic, wait_ms)
        except errors.NothingNew:
            raise
        except errors.Sought:
            # A seek has moved the subscription: continue at its new position. The gateway raises this once.
            self._forget(topic)
            if not retries:
                raise
            return self._dequeue(topic, wait_ms, retries=False)
        except errors.Refused:
            self._forget(topic)
            raise
        self._positions[topic] = reply["next_position"]
        self._unconfirmed.add(topic)
        return _message_of(reply)

    def _consume(self, topic: str, wait_ms: int = 0) -> Json:
        """Confirm all messages before, and get the next one. It is safe to repeat."""
        query = self._query(topic) | {"position": self._positions[topic]}
        if wait_ms:
            query["wait_ms"] = wait_ms
        try:
            return self._connection.requests.get("/consumer/consume", query)
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
