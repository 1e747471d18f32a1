"""A consumer's membership in a shared subscription: its opening, its leases, and errors that are still to be raised.

The parts of a shared consumer share one membership. An ack that came too late is never forgotten: it is raised by the
ack itself if that waits, else by the next call of the subscription.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from itertools import chain

from oncemq.client.context import ClientContext
from oncemq.client.core.commands.pending import again
from oncemq.client.runtime.flow import Flow
from oncemq.client.runtime.rpc import ask
from oncemq.client.worker.dead_letters import dead_subscription
from oncemq.client.worker.leases import Lease, LeaseTable
from oncemq.protocol import errors
from oncemq.protocol.commands import Leave, Open, Sharing
from oncemq.protocol.replies import Done, OpenReply, SubscribeReply

#: An error names at most this many ranges of offsets.
_NAMED_MAX = 20


class Membership:
    """One consumer of a shared subscription."""

    def __init__(self, context: ClientContext, topic: str, subscriber: str) -> None:
        self.context = context
        self.driver = context.driver
        self.topic = topic
        self.subscriber = subscriber
        #: The name of this consumer.
        self.member = secrets.token_hex(8)
        self.table = LeaseTable()
        #: None before it has joined, and after a seek.
        self.opened: OpenReply | None = None
        #: How the subscription is shared, as the broker has it.
        self.sharing = Sharing()
        #: How many acks came too late, ever.
        self.lost = 0
        #: The final error, once there is one: every call raises it.
        self.error: errors.OnceMQError | None = None
        #: Acks that came too late, and other failures, that are still to be raised.
        self.late: list[tuple[Lease, int]] = []
        self.failures: list[errors.OnceMQError] = []
        #: The highest number of all openings and leases: a broker gives none twice.
        self._highest_epoch = 0

    # Joining and leaving.

    def join(self) -> Flow[OpenReply]:
        """Join, unless that was done. After a seek, join again."""
        if self.opened is not None:
            return self.opened
        reply = yield from self.context.call(Open(self.topic, self.subscriber), OpenReply)
        if reply.sharing is None:
            raise errors.KindMismatch(f"'{self.subscriber}' on '{self.topic}' is not shared: use client.subscription")
        if reply.sharing.dead_topic:
            # However that subscription is shared, it keeps the dead letters.
            with contextlib.suppress(errors.SubscriptionExists):
                yield from self.context.call(dead_subscription(reply.sharing.dead_topic), SubscribeReply)
        self.note_epoch(reply.epoch)
        self.opened, self.sharing = reply, reply.sharing
        return reply

    def note_epoch(self, epoch: int) -> None:
        """Note the number of an opening or a lease. Raises BrokerRewound if the broker has used a higher one before."""
        if epoch < self._highest_epoch:
            what = f"the broker has counted to {self._highest_epoch}, and is at {epoch}"
            error = errors.BrokerRewound(f"'{self.subscriber}' on '{self.topic}': {what}")
            self.fail(error)
            raise again(error)
        self._highest_epoch = epoch

    def leave(self, opened: OpenReply) -> Flow[None]:
        """Give back what was taken and not settled."""
        command = Leave(opened.topic_id, self.subscriber, opened.epoch, self.member)
        # If the subscription was moved or deleted, there is nothing to give back.
        with contextlib.suppress(errors.Sought, errors.TopicGone, errors.NotSubscribed):
            yield from ask(self.driver, command, Done)

    def lose_epoch(self, epoch: int) -> None:
        """A seek has moved the subscription: what was taken in this epoch is lost, and acks of it came too late."""
        for lease, late in self.table.lose_epoch(epoch):
            self.note_late(lease, late)
        if self.opened is not None and self.opened.epoch == epoch:
            self.opened = None

    # Errors.

    def fail(self, error: errors.OnceMQError) -> None:
        """End with this error."""
        self.error = self.error or error
        self.table.fail()
        if self.table.has_acks:
            # These acks are never sent.
            self.note_failure(error)
        self.table.end_all()

    def check(self) -> None:
        """Raise errors that are still to be raised, and the final error."""
        self.raise_failures()
        self.check_open()

    def raise_failures(self) -> None:
        """Raise errors that are still to be raised."""
        if self.late:
            late, self.late = self.late, []
            raise self.lost_error(offset for _, offset in late)
        if self.failures:
            raise self.failures.pop(0)

    def check_open(self) -> None:
        """Raise the final error, if there is one."""
        if self.error is not None:
            raise again(self.error)
        self.driver.check_usable()

    def note_late(self, lease: Lease, offsets: list[int]) -> None:
        """Acks of these offsets came too late."""
        lease.lost.update(offsets)
        self.lost += len(offsets)
        self.late += [(lease, offset) for offset in offsets]

    def refuse_late(self, lease: Lease, offset: int) -> None:
        """Raise LeaseLost for an ack that is known to come too late."""
        if lease.is_lost:
            lease.lost.add(offset)
            self.lost += 1
            raise self.lost_error([offset])

    def raise_late(self, lease: Lease, offset: int) -> None:
        """Raise LeaseLost if the ack of this offset came too late; then no other call raises it."""
        if offset in lease.lost:
            self.late = [each for each in self.late if each != (lease, offset)]
            raise self.lost_error([offset])

    def note_failure(self, error: errors.OnceMQError) -> None:
        """The next call raises this, once for each kind of error."""
        if not any(type(each) is type(error) for each in self.failures):
            self.failures.append(error)

    def lost_error(self, offsets: Iterable[int]) -> errors.LeaseLost:
        """Return the error of acks that came too late."""
        ranges = list(ranges_of(list(offsets)))
        named = [str(first) if count == 1 else f"{first} to {first + count - 1}" for first, count in ranges]
        more = ["…"] if len(named) > _NAMED_MAX else []
        where = ", ".join(named[:_NAMED_MAX] + more)
        error = errors.LeaseLost(f"'{self.subscriber}' on '{self.topic}' has lost its lease on offset {where}")
        error.offsets = tuple(chain.from_iterable(range(first, first + count) for first, count in ranges))
        return error


def ranges_of(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of adjacent offsets, each offset once, in any order of the list, which gets sorted."""
    if not offsets:
        return
    offsets.sort()
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets) and len(set(offsets)) == len(offsets):
        yield first, last - first + 1
        return
    end = first
    for offset in dict.fromkeys(offsets):
        if offset != end:
            yield first, end - first
            first = offset
        end = offset + 1
    yield first, end - first
