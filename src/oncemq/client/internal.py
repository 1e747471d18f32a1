"""The internal API of a blocking client: what Spark, the command line and the test fixtures need beyond the public API.

It is for the packages of OnceMQ. It may change with any version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from oncemq.client.consumer.reader import Reader
from oncemq.protocol.commands import Command, Operation
from oncemq.protocol.replies import TopicInfo

if TYPE_CHECKING:
    from oncemq.client.core.core import Core, Payloads
    from oncemq.client.sync import Client
    from oncemq.protocol.replies import BatchHead

T = TypeVar("T")


class InternalApi:
    """Direct calls to the broker through a client's session."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._context = client._context

    @property
    def core(self) -> Core:
        """The session's state machine: `broker_id`, `options`, `obstacle`."""
        return self._context.core

    def call(self, operation: Operation, kind: type[T], payload: Payloads = None) -> T:
        """Send a numbered operation, which happens once. Raises Malformed if the reply is not a `kind`."""
        return self._client._run(self._context.call(operation, kind, payload))

    def ask(self, command: Command, kind: type[T]) -> T:
        """Send a command that is safe to repeat. Raises Malformed if the reply is not a `kind`."""
        return self._client._run(self._context.ask(command, kind))

    def find_topic(self, name: str) -> TopicInfo | None:
        """Return a topic's settings and counts, or None if it does not exist."""
        return self._client._find_topic(name)

    def read_batches(
        self, topic: str, start: int, stop: int, topic_id: int, fetch_bytes: int
    ) -> Iterator[list[tuple[BatchHead, bytes]]]:
        """Yield the stored batches of a range of offsets, undecoded, about `fetch_bytes` at a time."""
        reader = Reader(self._context.driver, topic, start, stop, False, topic_id, fetch_bytes)
        try:
            while batches := self._client._run(reader.next_batches()):
                yield batches
        finally:
            reader.close()

    def limit_batches(self, messages_max: int, bytes_max: int) -> None:
        """Make the client's batches no larger than this."""
        self._client._batch_bytes = min(self._client._batch_bytes, bytes_max)
        self._client._batch_messages = min(self._client._batch_messages, messages_max)

    def abandon(self) -> None:
        """Close the client without raising for what can't be finished any more."""
        self._client._close(clean=False)


def internal_api(client: Client) -> InternalApi:
    """Return the internal API of a client."""
    return InternalApi(client)
