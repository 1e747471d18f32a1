"""The internal API of a blocking client: what Spark, the command line and the test fixtures need beyond the public API.

It is for the packages of OnceMQ. It may change with any version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from oncemq.client.consumer.owned_subscription import OwnedSubscription
from oncemq.client.consumer.reader import Reader
from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Operation
from oncemq.protocol.replies import TopicInfo

if TYPE_CHECKING:
    from oncemq.client.core.core import Payloads
    from oncemq.client.outbox.contract import OutboxRefusal
    from oncemq.client.outbox.sync import OutboxClient
    from oncemq.client.sync import Client
    from oncemq.protocol.replies import BatchHead

T = TypeVar("T")

__all__ = ["InternalApi", "OutboxInternalApi", "OwnedSubscription", "internal_api", "outbox_internal_api"]


class InternalApi:
    """Direct calls to the broker through a client's session."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._context = client._context
        self._run = client._driver.run

    @property
    def broker_id(self) -> str:
        """The id of the broker that answered; empty before."""
        return self._context.core.broker_id

    @property
    def address(self) -> str:
        """The broker's addresses, for error messages."""
        return self._context.core.options.where

    @property
    def timeout_s(self) -> float:
        """The timeout of one attempt."""
        return self._context.core.options.timeout_ms / 1000

    @property
    def total_timeout_s(self) -> float:
        """How long a command is tried before it fails."""
        return self._context.core.options.patience_ms / 1000

    @property
    def obstacle(self) -> errors.OnceMQError | None:
        """Why commands can't be executed at the moment, if the broker has said."""
        return self._context.core.obstacle

    def call(self, operation: Operation, kind: type[T], payload: Payloads = None) -> T:
        """Send a numbered operation, which happens once. Raises BrokerBug if the reply is not a `kind`."""
        return self._run(self._context.call(operation, kind, payload))

    def ask(self, command: Command, kind: type[T]) -> T:
        """Send a command that is safe to repeat. Raises BrokerBug if the reply is not a `kind`."""
        return self._run(self._context.ask(command, kind))

    def find_topic(self, name: str) -> TopicInfo | None:
        """Return a topic's settings and counts, or None if it does not exist."""
        return self._run(self._client._admin.find_topic(name))

    def read_batches(
        self, topic: str, start: int, stop: int, topic_id: int, fetch_bytes: int
    ) -> Iterator[list[tuple[BatchHead, bytes]]]:
        """Yield the stored batches of a range of offsets, undecoded, about `fetch_bytes` at a time."""
        reader = Reader(self._context.driver, topic, start, stop, False, topic_id, fetch_bytes)
        try:
            while batches := self._run(reader.next_batches()):
                yield batches
        finally:
            reader.close()

    def limit_batches(self, messages_max: int, bytes_max: int) -> None:
        """Make the client's batches no larger than this."""
        producer = self._client._producer
        producer.batch_bytes = min(producer.batch_bytes, bytes_max)
        producer.batch_messages = min(producer.batch_messages, messages_max)

    def abandon(self) -> None:
        """Close the client without raising for what can't be finished any more."""
        self._client._close(clean=False)

    def shut(self) -> None:
        """Close the client at once, without sending anything more."""
        self._run(self._client._connection.abort())


class OutboxInternalApi(InternalApi):
    """What the command line needs of a client with an outbox."""

    def __init__(self, client: OutboxClient) -> None:
        super().__init__(client)
        self._connection = client._outbox_connection

    def connect(self) -> None:
        """Wait until the broker has accepted the session. Raises if it does not answer or is not the outbox's own."""
        self._run(self._connection.wait_for_session())

    def kept_refusals(self) -> list[OutboxRefusal]:
        """Return the refusals in the outbox file, also while no broker can be reached."""
        return list(self._connection.producer.outbox.refusals())

    def end_session_at_close(self) -> None:
        """End the session for good when the client is closed and its outbox is empty."""
        self._connection.deletes_session = True

    @property
    def session_has_ended(self) -> bool:
        """Whether the broker has deleted the session. The outbox file is then of no further use."""
        return self._connection.is_session_deleted


def internal_api(client: Client) -> InternalApi:
    """Return the internal API of a client."""
    return InternalApi(client)


def outbox_internal_api(client: OutboxClient) -> OutboxInternalApi:
    """Return the internal API of a client with an outbox."""
    return OutboxInternalApi(client)
