"""A connection of a feed whose subscribers have different rights, and what its subscriptions mean."""

from __future__ import annotations

from oncemq.net.connection import Connection
from oncemq.protocol import errors
from oncemq.protocol.push_feed import BATCHES, batch_frame, message_frame, topic_of


class FeedListener:
    """A connection, and what it has subscribed to."""

    __slots__ = ("caller", "connection", "granted", "number", "refused", "sweeps", "waiting")

    def __init__(self, number: int, caller: str, connection: Connection) -> None:
        self.number = number
        self.caller = caller
        self.connection = connection
        #: First frame of messages → the prefixes that it has subscribed to, and that mean it.
        self.granted: dict[bytes, set[bytes]] = {}
        #: The same, of what is not decided, and of what was refused.
        self.waiting: dict[bytes, set[bytes]] = {}
        self.refused: dict[bytes, set[bytes]] = {}
        #: How often there was no news of its connection.
        self.sweeps = 0


def narrowed(prefix: bytes) -> tuple[str, bytes]:
    """Return the topic that a subscription means, and the first frame of its messages. Raises NameInvalid."""
    topic = topic_of(prefix)
    if topic is None:
        raise errors.NameInvalid("a subscription to all topics is not possible with users")
    return topic, batch_frame(topic) if prefix.startswith(BATCHES) else message_frame(topic)


def topic_of_frame(frame: bytes) -> str:
    """Return the topic of messages with this first frame."""
    return frame.removeprefix(BATCHES)[:-1].decode()
