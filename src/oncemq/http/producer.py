"""A producer of the queue."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import httpx

from oncemq.http.queue_client import QueueClient
from oncemq.http.requests import DEFAULT_URL
from oncemq.http.sequence import Numbering
from oncemq.protocol import errors


class Producer(QueueClient):
    """Publishes to topics; has one id for each of them.

    >>> with Producer("http://127.0.0.1:8002") as producer:
    ...     producer.register("T1")
    ...     producer.enqueue("T1", "one pizza")

    Several addresses are those of gateways that lead to the same broker, or to its standby. A request has `timeout_s`
    for an answer, and is repeated for `patience_s`; then BrokerAway says that it may or may not have happened.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        ids: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        patience_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`ids`: topic → id, of a producer that was registered before, or ids of your own."""
        super().__init__(url, timeout_s=timeout_s, patience_s=patience_s, transport=transport)
        self._given = dict(ids or {})
        self._ids = dict(self._given)
        self._numbering = Numbering(self._caller)

    @property
    def ids(self) -> dict[str, str]:
        """Topic → id. Keep them to go on with them in another process."""
        return dict(self._ids)

    def __enter__(self) -> Producer:
        return self

    def register(self, topic: str, producer_id: str | None = None) -> str:
        """Become a producer of this topic, which is made where there is none. Returns the id: a new one, or the one
        that is given, here or as one of `ids`. An id that is given may be registered already: so a program that is
        started again goes on with it.

        Raises ProducerRegistered, ProducerElsewhere, NameInvalid, BrokerAway.

        >>> producer.register("T1")
        '9e85f1166a77d878'
        """
        with self._lock:
            given = producer_id or self._given.get(topic)
            if self._ids.get(topic, given) != given:
                raise errors.ProducerRegistered(f"'{self._ids[topic]}' is registered for '{topic}' already")
            self._ids[topic] = self._register(topic, given)
            return self._ids[topic]

    def _register(self, topic: str, given: str | None) -> str:
        body = {"topic": topic} if given is None else {"topic": topic, "producer_id": given}
        try:
            found: str = self._post_once("/producer/register", body)["producer_id"]
        except errors.ProducerRegistered:
            if given is None:
                raise
            return given
        return found

    def create_topic(self, topic: str) -> None:
        """Make a topic. Raises TopicExists, NameInvalid, BrokerAway."""
        with self._lock:
            self._post_once("/topics", {"topic_name": topic})

    def enqueue(self, topic: str, message: str | bytes) -> int:
        """Publish a message, text or bytes. It is stored when this returns, once, behind all that were enqueued before;
        returns its position in the topic.

        Raises NotRegistered, NoConsumers, TopicUnknown, TooLarge, BrokerAway, and TypeError before anything is sent.

        >>> producer.enqueue("T1", "one pizza")
        0
        """
        with self._lock:
            producer_id = self._ids.get(topic)
            if producer_id is None:
                raise errors.NotRegistered(f"this producer is not registered for '{topic}'")
            return self._produce({"topic": topic, "producer_id": producer_id, **_members_of(message)})

    def _produce(self, body: dict[str, str]) -> int:
        try:
            return self._produce_numbered(body)
        except errors.SessionUnknown:
            if self._caller.tries > 1:
                raise
            # It was idle for so long that the broker has forgotten it; nothing of it is in doubt.
            return self._produce_numbered(body)

    def _produce_numbered(self, body: dict[str, str]) -> int:
        headers = self._numbering.headers()
        try:
            position: int = self._caller.post("/producer/produce", body, headers)["position"]
        except BaseException:
            self._numbering.refused()
            raise
        self._numbering.done()
        return position


def _members_of(message: object) -> dict[str, str]:
    if isinstance(message, str):
        return {"message": message}
    if isinstance(message, bytes | bytearray | memoryview):
        return {"message": base64.b64encode(message).decode(), "encoding": "base64"}
    raise TypeError(f"a message is text or bytes, not {type(message).__name__}; encode it, as with json.dumps")
