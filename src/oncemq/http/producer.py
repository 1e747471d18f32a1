"""A producer of the queue."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import httpx

from oncemq.http.connection import QueueConnection
from oncemq.http.credentials import Verify
from oncemq.http.requests import DEFAULT_URL
from oncemq.http.session import ProducerSession
from oncemq.protocol import errors


class Producer:
    """Publishes messages to topics, with one id per topic.

    >>> with Producer("http://127.0.0.1:8002") as producer:
    ...     producer.register("T1")
    ...     producer.enqueue("T1", "one pizza")

    If there are several addresses, they are gateways of the same broker or its standbys. A request waits `timeout_s`
    for its response and is repeated for `total_timeout_s`; then BrokerAway is raised, and it is not known whether it
    happened.

    If the broker has users: `token` is that of a user, `token_file` a file with it (default: ONCEMQ_TOKEN and
    ONCEMQ_TOKEN_FILE of the environment). `verify` is how the certificate of a gateway at `https://` is checked: with
    the file of an authority (default: ONCEMQ_TLS), with the authorities of the system (True), or not at all (False).
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        ids: Mapping[str, str] | None = None,
        token: str | None = None,
        token_file: str | None = None,
        verify: Verify | None = None,
        timeout_s: float = 10.0,
        total_timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`ids`: topic → id, of a producer that was registered before, or ids of your own."""
        self._connection = QueueConnection(
            url,
            token=token,
            token_file=token_file,
            verify=verify,
            timeout_s=timeout_s,
            total_timeout_s=total_timeout_s,
            transport=transport,
        )
        self._session = ProducerSession(self._connection.requests)
        #: The ids of the caller's choice.
        self._own_ids = dict(ids or {})
        self._ids = dict(self._own_ids)

    @property
    def ids(self) -> dict[str, str]:
        """Topic → id. Keep them to continue with them in another process."""
        return dict(self._ids)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the producer. Later calls raise ClientClosed."""
        self._connection.close()

    def register(self, topic: str, producer_id: str | None = None) -> str:
        """Become a producer of a topic. The topic is created if it does not exist. Returns the id: a new one, or one of
        your own, given here or as one of `ids`. An id of your own may be registered already, so that a restarted
        program continues with it.

        Raises ProducerRegistered, ProducerElsewhere, NameInvalid, BrokerAway.

        >>> producer.register("T1")
        '9e85f1166a77d878'
        """
        with self._connection.lock:
            own_id = producer_id or self._own_ids.get(topic)
            if self._ids.get(topic, own_id) != own_id:
                raise errors.ProducerRegistered(f"'{self._ids[topic]}' is already registered for '{topic}'")
            self._ids[topic] = self._register(topic, own_id)
            return self._ids[topic]

    def _register(self, topic: str, own_id: str | None) -> str:
        body = {"topic": topic} if own_id is None else {"topic": topic, "producer_id": own_id}
        try:
            registered: str = self._connection.post_once("/producer/register", body)["producer_id"]
        except errors.ProducerRegistered:
            if own_id is None:
                raise
            return own_id
        return registered

    def create_topic(self, topic: str) -> None:
        """Create a topic. Raises TopicExists, NameInvalid, BrokerAway."""
        with self._connection.lock:
            self._connection.post_once("/topics", {"topic_name": topic})

    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted.

        >>> producer.list_topics()
        ['T1', 'T2']
        """
        return self._connection.list_topics()

    def enqueue(self, topic: str, message: str | bytes) -> int:
        """Publish a message, text or bytes. When this returns, it is stored once, after all messages that were enqueued
        before. Returns its position in the topic.

        Raises NotRegistered, NoConsumers, TopicUnknown, TooLarge, BrokerAway, and TypeError before anything is sent.

        >>> producer.enqueue("T1", "one pizza")
        0
        """
        with self._connection.lock:
            producer_id = self._ids.get(topic)
            if producer_id is None:
                raise errors.NotRegistered(f"this producer is not registered for '{topic}'")
            return self._produce({"topic": topic, "producer_id": producer_id, **_fields_of(message)})

    def _produce(self, body: dict[str, str]) -> int:
        try:
            return self._produce_numbered(body)
        except errors.SessionUnknown:
            if self._connection.requests.attempts > 1:
                raise
            # The session was idle until the broker deleted it. The message was not stored.
            return self._produce_numbered(body)

    def _produce_numbered(self, body: dict[str, str]) -> int:
        headers = self._session.headers()
        try:
            position: int = self._connection.requests.post("/producer/produce", body, headers)["position"]
        except BaseException:
            self._session.note_failed()
            raise
        self._session.note_stored()
        return position


def _fields_of(message: object) -> dict[str, str]:
    if isinstance(message, str):
        return {"message": message}
    if isinstance(message, bytes | bytearray | memoryview):
        return {"message": base64.b64encode(message).decode(), "encoding": "base64"}
    raise TypeError(
        f"a message must be text or bytes, not {type(message).__name__}; encode it, for example with json.dumps"
    )
