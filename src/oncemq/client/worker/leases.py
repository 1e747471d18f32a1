"""Leases of a shared subscription: what one take brought, and which of its messages are not settled.

A caller that settles a message appends its offset to its lease, without a lock: appending to a list is atomic, and the
sender takes a prefix, under the client's lock (acks.py). So an ack costs very little, may come from any thread, and
none is lost.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, decode_stored
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import TakeReply, TaskHead

if TYPE_CHECKING:
    from oncemq.client.worker.shared_consumer import SharedConsumer

T = TypeVar("T")


class Lease:
    """What one take brought, as this consumer sees it."""

    __slots__ = (
        "consumer",
        "done",
        "epoch",
        "extend_ms",
        "extend_until_ms",
        "is_lost",
        "is_over",
        "left",
        "lost",
        "returned",
        "settled_by_transaction",
        "subscriber",
        "table",
        "token",
        "topic_id",
        "until_ms",
    )

    def __init__(
        self, table: LeaseTable, consumer: SharedConsumer[Any], subscriber: str, epoch: int, reply: TakeReply
    ) -> None:
        self.table = table
        #: Runs the flows of this lease's tasks.
        self.consumer = consumer
        self.topic_id = reply.topic_id
        self.subscriber = subscriber
        self.epoch = epoch
        self.token = reply.token
        #: How many messages are neither settled nor about to be.
        self.left = sum(head.count for head in reply.heads)
        #: Not sent yet: offsets that were acked; offsets that were returned, and after how many milliseconds they may
        #: be delivered again; offsets that a transaction has settled.
        self.done: list[int] = []
        self.returned: list[tuple[int, int]] = []
        self.settled_by_transaction: list[int] = []
        #: When it expires, on our clock; when it is to be renewed; until when it may be renewed.
        self.until_ms = self.extend_ms = self.extend_until_ms = 0.0
        #: It has expired, or will: none of its messages is delivered any more.
        self.is_over = False
        #: The broker has said that it is lost.
        self.is_lost = False
        #: Offsets whose acks came too late.
        self.lost: set[int] = set()

    @property
    def has_unsent(self) -> bool:
        """Something was settled that was not sent."""
        return bool(self.done or self.returned or self.settled_by_transaction)


class LeaseTable:
    """The leases of one consumer. It also tells tasks whether an ack must wake the lease renewer."""

    def __init__(self) -> None:
        #: By token. Leases that are over have left it.
        self.leases: dict[int, Lease] = {}
        #: Leases that are over, with something to send.
        self.expired: list[Lease] = []
        #: How many messages of `leases` are neither settled nor about to be.
        self.unsettled = 0
        #: Reasons to wake the renewer: it does not collect acks regularly; a caller waits until enough is
        #: settled; there is a final error.
        self.is_idle = True
        self.awaits_capacity = False
        self._has_failed = False
        #: A task that notes an ack must wake the renewer. Read without the lock.
        self.must_wake = True
        _tables.add(self)

    # Announcements.

    def set_idle(self, value: bool) -> None:
        """Set whether the renewer has stopped looking for acks regularly."""
        self.is_idle = value
        self._update()

    def set_awaits_capacity(self, value: bool) -> None:
        """Set whether a caller waits until enough is settled."""
        self.awaits_capacity = value
        self._update()

    def fail(self) -> None:
        """From now on each ack wakes the renewer, and gets the final error."""
        self._has_failed = True
        self._update()

    def _update(self) -> None:
        self.must_wake = self.is_idle or self.awaits_capacity or self._has_failed

    # Leases.

    def add(self, lease: Lease) -> None:
        """Start a lease, or continue one that was over."""
        lease.is_over = False
        self.leases[lease.token] = lease
        self.unsettled += lease.left

    def end(self, lease: Lease) -> None:
        """A lease is over: none of its messages is delivered any more."""
        lease.is_over = True
        if self.leases.pop(lease.token, None) is not None:
            self.unsettled -= lease.left
        # An ack that was noted before `is_over` was set is found here.
        if lease.done or lease.returned:
            self.expired.append(lease)

    def end_expired(self, at_ms: float) -> None:
        """End the leases that have expired and are not renewed."""
        for lease in list(self.leases.values()):
            if lease.until_ms <= at_ms and lease.extend_until_ms <= at_ms:
                self.end(lease)

    def lose(self, lease: Lease) -> None:
        """The broker has said that a lease is lost. What was noted before is sent anyway: the reply tells of each."""
        lease.is_lost = True
        self.end(lease)

    def lose_epoch(self, epoch: int) -> Iterator[tuple[Lease, list[int]]]:
        """A seek has moved the subscription: lose the leases of this epoch. Yields each with the acks that were not
        sent: they came too late."""
        former = [lease for lease in (*self.leases.values(), *self.expired) if lease.epoch == epoch]
        for lease in dict.fromkeys(former):
            self.lose(lease)
            yield lease, sorted(set(take_prefix(lease.done)))
            lease.returned.clear()
        self.expired = [lease for lease in self.expired if lease.epoch != epoch]

    def end_all(self) -> None:
        """End all leases, and send nothing more."""
        for lease in list(self.leases.values()):
            self.end(lease)
        self.expired.clear()

    # Settling.

    def take_unsent(self) -> list[Lease]:
        """Return the leases with something to send."""
        expired, self.expired = self.expired, []
        return [lease for lease in [*self.leases.values(), *dict.fromkeys(expired)] if lease.has_unsent]

    def mark_sent(self, lease: Lease, count: int) -> None:
        """`count` messages of a lease are about to be settled."""
        lease.left -= count
        if self.leases.get(lease.token) is lease:
            self.unsettled -= count
            if lease.left <= 0:
                del self.leases[lease.token]

    def mark_unsent(self, lease: Lease, count: int) -> None:
        """`count` messages of a lease have to be settled again."""
        lease.left += count
        if lease.is_over:
            self.expired.append(lease)
        elif lease.token in self.leases:
            self.unsettled += count
        else:
            self.leases[lease.token] = lease
            self.unsettled += lease.left

    @property
    def has_acks(self) -> bool:
        """There are acks that were not sent."""
        return bool(self.expired) or any(lease.done for lease in self.leases.values())

    def count_unsettled(self) -> int:
        """Return how many messages no caller has settled."""
        leases = self.leases.values()
        return self.unsettled - sum(
            len(each.done) + len(each.returned) + len(each.settled_by_transaction) for each in leases
        )


_tables: weakref.WeakSet[LeaseTable] = weakref.WeakSet()


def _mark_forked() -> None:
    """In a forked child no ack is sent: each must wake the renewer, which raises."""
    for table in list(_tables):
        table.fail()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


def take_prefix(entries: list[T]) -> list[T]:
    """Remove and return what is in the list now; what other threads append meanwhile stays."""
    count = len(entries)
    taken = entries[:count]
    del entries[:count]
    return taken


# What a take brought.


class TakenMessages(msgspec.Struct, frozen=True):
    """Messages that were delivered equally often."""

    head: TaskHead
    messages: list[Message]
    #: Why they can't be decoded, and the batch that they are in.
    error: errors.OnceMQError | None = None
    payload: bytes = b""


def decode_take(topic: str, reply: TakeReply, payloads: Sequence[Frame]) -> list[TakenMessages]:
    """Return the messages, in order. Raises DamagedInTransit."""
    by_payload: dict[int, list[TaskHead]] = {}
    for head in reply.heads:
        by_payload.setdefault(head.payload, []).append(head)
    taken: list[TakenMessages] = []
    for index, heads in by_payload.items():
        frame = payloads[index]
        payload = frame if isinstance(frame, bytes) else bytes(frame)
        if checksum(payload) != heads[0].checksum:
            text = f"the messages of '{topic}' from offset {heads[0].first_offset} on don't match their checksum"
            raise errors.DamagedInTransit(text)
        taken += _decode(topic, reply.topic_id, payload, heads)
    return taken


def _decode(topic: str, topic_id: int, payload: bytes, heads: list[TaskHead]) -> list[TakenMessages]:
    """Decode a payload once for all of its heads: there may be many, with gaps between them."""
    first, last = heads[0], heads[-1]
    start, count = first.skip, last.skip + last.count - first.skip
    try:
        found = decode_stored(payload, topic, topic_id, first.first_offset, first.time_ms, start, count)
    except errors.OnceMQError as error:
        return [TakenMessages(head, [], error, payload) for head in heads]
    if len(heads) == 1:
        return [TakenMessages(first, found)]
    return [TakenMessages(head, found[head.skip - start : head.skip - start + head.count]) for head in heads]
