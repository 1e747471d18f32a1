"""Sends messages to the dead-letter topic: those that were delivered too often, and those that a consumer rejects.

A message is put into the dead-letter topic and acked in its own topic in one transaction, so that it is there once,
whatever happens. If the lease is lost, another consumer has the message and deals with it; the broker also answers so
if the transaction happened before and its reply was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

from oncemq.client.core.commands.pending import Pending
from oncemq.client.worker.dead_letters import FailedMessage, dead_subscription, make_dead_put
from oncemq.client.worker.leases import Lease
from oncemq.client.worker.membership import Membership, ranges_of
from oncemq.protocol import errors
from oncemq.protocol.commands import Settle, Transact
from oncemq.protocol.limits import RANGES_MAX

log = logging.getLogger("oncemq.client")

#: One transaction has about this many bytes of values.
_BYTES_MAX = 256 * 1024


class _DeadBatch:
    """Messages of one lease on their way to the dead-letter topic."""

    __slots__ = ("lease", "messages", "pending")

    def __init__(self, lease: Lease, messages: list[FailedMessage]) -> None:
        self.lease = lease
        self.messages = messages
        self.pending: Pending | None = None

    @property
    def offsets(self) -> list[int]:
        return [offset for each in self.messages for offset in each.offsets]

    def command(self, dead_topic: str) -> tuple[Transact, bytes]:
        lease = self.lease
        put, payload = make_dead_put(dead_topic, lease.subscriber, self.messages)
        done = tuple((lease.token, first, count) for first, count in ranges_of(self.offsets))
        return Transact(settles=(Settle(lease.topic_id, lease.subscriber, lease.epoch, done),), puts=(put,)), payload


class DeadLetterSender:
    """Moves messages of a shared subscription to its dead-letter topic."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._in_flight: list[_DeadBatch] = []
        #: To be sent again.
        self._unsent: list[_DeadBatch] = []

    @property
    def is_waiting(self) -> bool:
        """Something was sent whose reply is awaited, or has to be sent again."""
        return bool(self._in_flight or self._unsent)

    @property
    def first_pending(self) -> Pending | None:
        """The oldest transaction in flight."""
        return self._in_flight[0].pending if self._in_flight else None

    def send(self, lease: Lease, messages: list[FailedMessage]) -> None:
        """Send messages that are not delivered any more. The lock is held."""
        self._membership.table.mark_sent(lease, sum(each.count for each in messages))
        for part in _parts(messages):
            self._submit(_DeadBatch(lease, part))

    def resend(self) -> bool:
        """Send again what could not be stored. False: there was nothing."""
        unsent, self._unsent = self._unsent, []
        for batch in unsent:
            self._submit(batch)
        return bool(unsent)

    def _submit(self, batch: _DeadBatch) -> None:
        core = self._membership.driver.core
        dead_topic = self._membership.sharing.dead_topic
        self._in_flight.append(batch)
        try:
            # Each time: if the subscription was deleted meanwhile, the topic would keep nothing.
            core.submit(dead_subscription(dead_topic))
            batch.pending = core.submit(*batch.command(dead_topic), on_done=partial(self._take_reply, batch))
        except errors.OutboxError as error:
            self._in_flight.remove(batch)
            self._return(batch, error)

    def _take_reply(self, batch: _DeadBatch, pending: Pending) -> None:
        self._in_flight.remove(batch)
        error = pending.error
        if error is None:
            return
        if isinstance(error, errors.TRANSIENT):
            self._unsent.append(batch)
        elif isinstance(error, errors.LeaseLost) and len(batch.messages) > 1:
            # One of them may have been lost alone.
            self._unsent += [_DeadBatch(batch.lease, [message]) for message in batch.messages]
        elif isinstance(error, errors.LeaseLost | errors.Sought):
            log.info("another consumer has offset %d of '%s'", batch.offsets[0], self._membership.topic)
        else:
            self._return(batch, error)

    def _return(self, batch: _DeadBatch, error: errors.OnceMQError) -> None:
        """They can't be stored there: they are delivered again after a while, and the next call raises."""
        membership = self._membership
        sharing = membership.sharing
        where = f"offset {batch.offsets[0]} of '{membership.topic}' can't be stored in '{sharing.dead_topic}'"
        membership.note_failure(type(error)(f"{where}: {error.text}"))
        batch.lease.returned += [(offset, sharing.lease_ms) for offset in batch.offsets]
        membership.table.mark_unsent(batch.lease, len(batch.offsets))


def _parts(messages: list[FailedMessage]) -> Iterator[list[FailedMessage]]:
    part: list[FailedMessage] = []
    size = 0
    for each in messages:
        if part and (size + len(each.message.value) > _BYTES_MAX or len(part) >= RANGES_MAX):
            yield part
            part, size = [], 0
        part.append(each)
        size += len(each.message.value)
    if part:
        yield part
