"""Messages that wait to be sent together, and their handles.

A handle is two fields and nothing else: a future for each of millions of messages would cost more than the messages.
It first refers to the message in a buffer, and later to the message's index in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from oncemq.client.core.commands.pending import Pending
from oncemq.client.producer.encoding import NO_TIMES, Times, cuts
from oncemq.client.producer.receipt import Receipt
from oncemq.protocol.replies import PutReply, expect

if TYPE_CHECKING:
    from oncemq.client.producer.producer import Producer
    from oncemq.client.schemas.claims import KnownSchema

#: Value, key, headers, whether the topic may be created, and times: a message that is more than a plain value.
Item = tuple[bytes, bytes | None, Mapping[str, bytes] | None, bool, Times]
#: What a batch is made of, as `make_put` takes it after the topic: create, values, keys, headers, times.
Parts = tuple[bool, list[bytes], list[bytes | None] | None, list[Mapping[str, bytes] | None] | None, Times]


class BatchBuffer:
    """Messages of one topic that have not been sent.

    Threads append to `handles` without a lock: to append to a list is atomic, and the thread that sends takes a
    prefix, under the client's lock. So nothing is lost and nothing is sent twice, whatever the threads do.
    """

    __slots__ = ("create", "handles", "is_mixed", "known", "opened_ms", "producer", "size", "topic")

    def __init__(self, producer: Producer[Any], topic: str, create: bool) -> None:
        #: It sends the batches; handles ask it for their receipts.
        self.producer = producer
        self.topic = topic
        #: Whether plain values may create the topic.
        self.create = create
        self.handles: list[PendingMessage] = []
        #: Approximate: threads may overwrite each other's additions. A batch is measured when it is made.
        self.size = 0
        #: There are or were items among the values.
        self.is_mixed = False
        #: The schema that every value is checked against when it is put; None: the topic has none, or none is known.
        self.known: KnownSchema | None = None
        #: When its first message came; 0 = not known yet.
        self.opened_ms = 0.0

    def add_item(self, handle_type: type[PendingMessage], item: Item) -> PendingMessage:
        """Append a message of any kind."""
        plain = item[1] is None and item[2] is None and item[3] is self.create and item[4] is NO_TIMES
        if not plain:
            self.is_mixed = True
        handle = handle_type(self, item[0] if plain else item)
        self.handles.append(handle)
        self.size += len(item[0])
        return handle

    def remove_last(self) -> None:
        """Remove the last message. Only where no other thread can have added one since."""
        value = self.handles.pop().at
        self.size -= len(value[0] if isinstance(value, tuple) else value)  # type: ignore[arg-type]

    def freeze(self, bytes_max: int, messages_max: int) -> Iterator[tuple[Batch, Parts]]:
        """Take what is there now, in batches: one, unless there is more than that, or the messages have different
        options."""
        taken = self._take()
        values: list[Any] = [handle.at for handle in taken]
        if self.is_mixed:
            yield from self._freeze_mixed(taken, values, bytes_max, messages_max)
            return
        start = 0
        for stop in cuts(values, bytes_max, messages_max):
            batch = Batch(self.topic, self.producer)
            _assign(taken[start:stop], batch)
            yield batch, (self.create, values[start:stop], None, None, NO_TIMES)
            start = stop

    def _take(self) -> list[PendingMessage]:
        """Take what is there now. What is appended meanwhile stays."""
        count = len(self.handles)
        taken = self.handles[:count]
        del self.handles[:count]
        self.size = 0
        self.opened_ms = 0.0
        return taken

    def _freeze_mixed(
        self, taken: list[PendingMessage], values: list[Any], bytes_max: int, messages_max: int
    ) -> Iterator[tuple[Batch, Parts]]:
        items: list[Item] = [
            (value, None, None, self.create, NO_TIMES) if type(value) is bytes else value for value in values
        ]
        start = 0
        for (create, times), run in groupby(items, key=lambda item: item[3:]):
            columns = list(run)
            part = taken[start : start + len(columns)]
            start += len(columns)
            first = 0
            for stop in cuts([item[0] for item in columns], bytes_max, messages_max):
                batch = Batch(self.topic, self.producer)
                _assign(part[first:stop], batch)
                run_values, keys, headers, _, _ = (list(column) for column in zip(*columns[first:stop], strict=True))
                yield batch, (create, run_values, keys, headers, times)
                first = stop


def _assign(handles: list[PendingMessage], batch: Batch) -> None:
    for index, handle in enumerate(handles):
        handle.at = index
        handle.batch = batch


class Batch:
    """Messages that are sent together. Their number and order are fixed."""

    __slots__ = ("pending", "producer", "topic")

    def __init__(self, topic: str, producer: Producer[Any]) -> None:
        self.topic = topic
        self.producer = producer
        self.pending: Pending | None = None


class PendingMessage(msgspec.Struct, gc=False):
    """Where a message is. The handles of the blocking and of the asyncio client are pending messages."""

    #: First a buffer, later a batch.
    batch: BatchBuffer | Batch
    #: The message itself; later its index in the batch.
    at: bytes | Item | int

    def done(self) -> bool:
        """Return whether the broker has answered, or it is known that it will not."""
        batch = self.batch
        return isinstance(batch, Batch) and batch.pending is not None and batch.pending.done

    def _is_stored(self) -> bool:
        """Return whether the broker has stored the message."""
        return self.done() and self.batch.pending.error is None  # type: ignore[union-attr]

    def _receipt(self) -> Receipt:
        """Return the receipt, once the message is done. Raises the error that it was refused with."""
        batch, index = self.batch, self.at
        assert isinstance(batch, Batch)
        assert isinstance(index, int)
        assert batch.pending is not None
        reply = expect(batch.pending.result(), PutReply)
        offset = reply.first_offset + index
        return Receipt(batch.topic, reply.topic_id, offset, 1, reply.time_ms, reply.subscriptions)
