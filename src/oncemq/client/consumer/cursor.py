"""A cursor: how far a consumer is. It knows what is buffered, delivered, finished and acked; it does no I/O.

There are two: one for a single topic (topic.py), one for all topics that match a pattern (pattern.py). A consumer
(consumer.py) sends their commands and gives them the replies. Offsets pass through these states:

    buffered     fetched from the broker, and not decoded
    delivered    returned to the caller
    finished     the caller needs them no more: they may be acked
    ack sent     an ack is on its way
    acked        confirmed by the broker
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.consumer.filter import Filter
from oncemq.client.runtime.flow import Flow, Outside
from oncemq.protocol import errors
from oncemq.protocol.commands import Command
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import OpenReply, Reply


class Decoded(msgspec.Struct, frozen=True):
    """The next messages of one topic."""

    topic: str
    topic_id: int
    messages: list[Message]
    #: The filter has seen everything below this offset; -1: there is no filter.
    filtered_end: int = -1


class Cursor(Protocol):
    """What a consumer needs of its cursor."""

    #: The topic or the pattern.
    topic: str
    subscriber: str

    @property
    def key(self) -> str:
        """The name of the subscription on each of its topics, as the broker has it."""

    @property
    def dropped(self) -> int:
        """How many messages the subscription has lost to quotas."""

    # Opening.

    def open(self, reply: OpenReply) -> None:
        """Start at the broker's position, or behind acks that were promised under an earlier opening."""

    def promise(self, *, sought: bool) -> None:
        """Keep the acks that the broker has not confirmed for the next opening. After a seek they mean nothing."""

    @property
    def has_promised(self) -> bool:
        """There are acks that only a new opening can send."""

    def clear(self) -> None:
        """Drop what is buffered."""

    # What the caller does.

    def mark_delivered(self, last: Message, batch: Sequence[Message]) -> None:
        """These were delivered: `batch`, which ends with `last`; or, if it is empty, `last` alone."""

    def finish_delivered(self, last: Message, batch: Sequence[Message], is_done: bool = True) -> None:
        """The next message is requested: with `auto_ack`, what was delivered is finished. Without `is_done` the
        caller has failed, and what it has is not finished."""

    def finish(self, message: Message | int | None) -> int:
        """The caller acks everything up to and including this message; None: everything that was delivered.

        Returns 0, or the offset behind the message if that was not delivered yet; then nothing has changed."""

    # Transactions.

    def acks_for_transaction(self, message: Message | int | None) -> dict[int, int]:
        """Return what a transaction acks: topic id → all offsets below. Raises ValueError."""

    def mark_committed(self, topic_id: int, upto: int) -> None:
        """A transaction has acked all offsets below `upto`."""

    def is_ahead_of(self, claims: Mapping[int, int]) -> bool:
        """More was delivered than is finished or claimed (topic id → all offsets below)."""

    def rewind(self, claims: Mapping[int, int]) -> tuple[int, int] | None:
        """Go back to what is finished or claimed. Returns the topic's id and the offset. None: only the broker knows
        the positions, and the subscription has to be opened again."""

    # Acks.

    @property
    def owes_ack(self) -> bool:
        """Something is finished that no ack was sent for."""

    @property
    def is_unconfirmed(self) -> bool:
        """Something is finished that the broker has not confirmed."""

    def ack_command(self) -> Command:
        """Ack what is finished, without getting messages."""

    def take_ack_reply(self, reply: Reply) -> None:
        """The broker has confirmed the last `ack_command`."""

    def take_ack_failure(self) -> None:
        """The broker was unreachable: a later ack includes the last `ack_command`."""

    # Gets.

    @property
    def is_buffered(self) -> bool:
        """There is something to decode."""

    def wants_more(self, prefetch_bytes: int) -> bool:
        """The broker has more, and the buffer is not full."""

    def get_command(self, bytes_max: int, wait_ms: int, with_acks: bool = True) -> Command:
        """Get the next messages, and ack what is finished."""

    def take_get_reply(self, reply: Reply, payloads: Sequence[Frame]) -> None:
        """Buffer the messages. Raises BrokerRewound, Malformed or DamagedInTransit."""

    def take_get_failure(self) -> None:
        """The broker was unreachable: a later ack includes those of the last `get_command`."""

    def take_refusal(self, error: errors.OnceMQError) -> None:
        """An ack or a get was refused, and the subscription continues."""

    def decode(self, wanted: Filter | None) -> Flow[Decoded]:
        """Decode the next messages. What can't be decoded stays in the buffer."""

    def note_filtered(self, decoded: Decoded, *, is_last_open: bool) -> tuple[int, int]:
        """Messages that the caller does not want are finished when those before them are. `is_last_open`: the last
        message that was delivered is not finished. Returns the range that the filter has seen."""


def decode_next(buffer: FetchBuffer, wanted: Filter | None) -> Flow[Decoded]:
    """Decode the next messages of one topic."""
    if wanted is None:
        return Decoded(buffer.topic, buffer.topic_id, (yield Outside(buffer.decode)))
    messages, end = yield Outside(partial(buffer.decode_wanted, wanted))
    return Decoded(buffer.topic, buffer.topic_id, messages, end)


def rewound(subscriber: str, topic: str, what: str) -> errors.BrokerRewound:
    """The error of a broker that has forgotten what it had confirmed."""
    return errors.BrokerRewound(f"'{subscriber}' on '{topic}': {what}")
