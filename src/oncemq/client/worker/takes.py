"""The take requester of a shared consumer: takes messages from the broker, and decides how many.

A consumer is a member with a random name. Its takes are numbered: one whose reply was lost is sent again under the same
number, and brings the same lease. Few messages are taken and not delivered: about as many as were processed in the last
second, so that a slow consumer does not hold what others could process. While messages are processed quickly, one take
is ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import chain
from operator import length_hint
from typing import TYPE_CHECKING, Generic, TypeVar

from oncemq.client.core.commands.observer import SubscriptionEpoch
from oncemq.client.core.commands.pending import Pending, again
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside
from oncemq.client.worker.acks import AckSender
from oncemq.client.worker.dead_letter_sender import DeadLetterSender
from oncemq.client.worker.dead_letters import TRIES, FailedMessage, reason_of
from oncemq.client.worker.lease_renewal import LeaseRenewer
from oncemq.client.worker.leases import Lease, TakenMessages, decode_take
from oncemq.client.worker.membership import Membership
from oncemq.client.worker.options import WorkerOptions
from oncemq.client.worker.task import BaseTask
from oncemq.protocol import errors
from oncemq.protocol.commands import Take
from oncemq.protocol.message import Message
from oncemq.protocol.replies import OpenReply, TakeReply, expect

if TYPE_CHECKING:
    from oncemq.client.worker.shared_consumer import SharedConsumer

log = logging.getLogger("oncemq.client")

#: The task class of the blocking or of the asyncio client.
K = TypeVar("K", bound=BaseTask)

#: A take waits at the broker for this long, and is then repeated: so a broker that went away is noticed.
_WAIT_MS = 2000.0
#: One take asks for at most this many messages, unless the caller wants more.
_TAKE_MAX = 1000
#: This much work may be taken and not delivered, half of it in the take that is ahead.
_BUFFERED_MS = 1000.0
#: Messages that take longer are not taken ahead.
_AHEAD_MS_MAX = 50.0
#: From one take to the next the number of messages grows at most by this factor.
_GROWTH = 4
#: A payload that arrives damaged this often in a row is not the network's fault.
_DAMAGES_MAX = 3
#: Errors of one take: they are raised, and the subscription continues.
_NOT_FINAL = (errors.RecordCorrupt, errors.LimitReached)


class TakeRequester(Generic[K]):
    """Takes messages, and makes tasks of them."""

    def __init__(
        self,
        membership: Membership,
        renewer: LeaseRenewer,
        acks: AckSender,
        dead_letters: DeadLetterSender,
        options: WorkerOptions,
        task_type: type[K],
        consumer: SharedConsumer[K],
    ) -> None:
        #: Tasks that were taken and not delivered.
        self.current: Iterator[K] = iter(())
        #: The take in flight, or the one that was answered and not opened.
        self.pending: Pending | None = None
        self._membership = membership
        self._renewer = renewer
        self._acks = acks
        self._dead_letters = dead_letters
        self._options = options
        self._task_type = task_type
        self._consumer = consumer
        #: Number, epoch and count of the last take.
        self._number = 1
        self._epoch = 0
        self._count = 1
        #: The lease of a take that was answered and not opened.
        self._lease: Lease | None = None
        self._damages = 0
        #: The last take brought what it asked for: there is more.
        self._has_more = False
        #: When the current tasks came, and how many; how long each of those before took.
        self._current_ms = 0.0
        self._current_count = 0
        self._pace_ms = 0.0

    def advance(self, until_ms: float | None, wanted: int) -> Flow[bool]:
        """Make the next tasks current. False: none came in time."""
        self._measure()
        while True:
            opened = yield from self._membership.join()
            # An empty reply to a take that was sent earlier does not tell what the broker has now.
            is_fresh = self.pending is None
            self._acks.send()
            if self.pending is None:
                left_ms = _WAIT_MS if until_ms is None else max(0.0, until_ms - now_ms())
                count = min(max(wanted, self._take_count()), self._options.unsettled_max)
                self._send(opened, count, int(min(left_ms, _WAIT_MS)))
            assert self.pending is not None
            yield self.pending
            tasks = yield from self._open_take()
            if tasks:
                self._make_current(tasks)
                return True
            self._membership.check()
            if tasks is None and is_fresh and until_ms is not None and now_ms() >= until_ms:
                return False

    def drop(self) -> None:
        """Give up the take in flight, and the tasks that were not delivered."""
        if self.pending is not None:
            self._membership.driver.give_up(self.pending, errors.ClientClosed("this subscription was closed"))
        # This uses up the old iterator, and so ends a loop that holds it.
        for _ in self.current:
            pass

    def count_delivered(self) -> int:
        """How many tasks were delivered and are not settled."""
        arrived = self._lease.left if self._lease is not None and not self._lease.is_over else 0
        return self._membership.table.count_unsettled() - arrived - length_hint(self.current)

    def _make_current(self, tasks: list[K]) -> None:
        self.current = iter(tasks)
        self._current_ms, self._current_count = now_ms(), len(tasks)
        membership = self._membership
        if self.pending is None and membership.opened is not None and self._may_take_ahead():
            self._send(membership.opened, min(self._take_count(), self._options.unsettled_max), 0)
            # The renewer has to see it come: its lease has to be renewed.
            self._renewer.look_within(membership.sharing.lease_ms / 10)
        membership.driver.pump()

    # Sending.

    def _send(self, opened: OpenReply, count: int, wait_ms: int) -> None:
        membership = self._membership
        self._count = count
        self._epoch = opened.epoch
        command = Take(
            opened.topic_id,
            membership.subscriber,
            opened.epoch,
            membership.member,
            self._number,
            count,
            max(1, self._options.prefetch_bytes // 2),
            wait_ms,
        )
        self.pending = membership.driver.core.ask(command)
        self.pending.on_done = self._on_reply
        self._renewer.expect(None if wait_ms > 0 else self.pending)

    def _on_reply(self, pending: Pending) -> None:
        """Whether a caller waits for it or not: the lease is ours from now on."""
        reply = pending.reply
        membership = self._membership
        is_member = membership.opened is not None and membership.opened.epoch == self._epoch
        if not isinstance(reply, TakeReply) or not reply.token or not is_member or membership.error is not None:
            return
        self._lease = Lease(membership.table, self._consumer, membership.subscriber, self._epoch, reply)
        self._renewer.start(self._lease, reply.lease_ms, now_ms())

    # Replies.

    def _open_take(self) -> Flow[list[K] | None]:
        """Return the tasks of a take, of which there may be none; None: the broker had nothing."""
        pending = self.pending
        assert pending is not None
        assert pending.done
        if pending.error is not None:
            self.pending = None
            self._refuse(pending.error)
            return []
        reply = expect(pending.reply, TakeReply)
        if reply.token:
            self._membership.note_epoch(reply.token)
        try:
            # It stays in place meanwhile: a caller that is interrupted here finds it again.
            taken = yield Outside(partial(decode_take, self._membership.topic, reply, pending.payloads))
        except errors.DamagedInTransit:
            self.pending = None
            self._note_damage()
            return []
        self.pending = None
        self._number += 1
        self._damages = 0
        self._has_more = self._is_full(reply, pending)
        return self._make_tasks(taken) if reply.token else None

    def _is_full(self, reply: TakeReply, pending: Pending) -> bool:
        """The take brought as much as it could."""
        count = sum(head.count for head in reply.heads)
        return count >= self._count or 4 * sum(map(len, pending.payloads)) >= self._options.prefetch_bytes

    def _refuse(self, error: errors.OnceMQError) -> None:
        """Raise the error, unless it is that of a seek."""
        if isinstance(error, errors.TRANSIENT):
            # It may have happened: the same number brings the same messages.
            raise again(error)
        self._number += 1
        if isinstance(error, errors.Sought):
            self._membership.lose_epoch(self._epoch)
            return
        if not isinstance(error, _NOT_FINAL):
            self._membership.fail(error)
        raise again(error)

    def _note_damage(self) -> None:
        """The same take brings the same lease."""
        if self._lease is not None:
            self._membership.table.end(self._lease)
            self._lease = None
        self._damages += 1
        if self._damages >= _DAMAGES_MAX:
            self._damages = 0
            raise errors.DamagedInTransit(f"messages of '{self._membership.topic}' don't match their checksums")

    def _make_tasks(self, taken: list[TakenMessages]) -> list[K]:
        """Return the tasks. Messages that were delivered too often become dead letters. What can't be decoded is
        returned, and after its last try becomes a dead letter, as the batch that it is in."""
        lease, self._lease = self._lease, None
        if lease is None or lease.is_over:
            return []
        membership = self._membership
        core = membership.context.core
        subscription = SubscriptionEpoch(core.broker_id, lease.topic_id, membership.subscriber, lease.epoch)
        messages = chain.from_iterable(part.messages for part in taken)
        core.observer.delivering(subscription, membership.topic, messages, token=lease.token)
        tries_max = membership.sharing.tries_max or float("inf")
        tasks: list[K] = []
        failed: list[FailedMessage] = []
        make = self._task_type
        for part in taken:
            tries = part.head.tries
            if isinstance(part.error, errors.Undecodable) and tries >= tries_max:
                failed.append(self._make_letter(part, lease.topic_id))
            elif part.error is not None:
                membership.note_failure(part.error)
                first, count = part.head.first_offset, part.head.count
                lease.returned += [(offset, membership.sharing.lease_ms) for offset in range(first, first + count)]
            elif tries > tries_max:
                failed += [FailedMessage(message, tries - 1, TRIES) for message in part.messages]
            else:
                tasks += [make(message, tries, lease) for message in part.messages]
        if failed:
            self._dead_letters.send(lease, failed)
        return tasks

    def _make_letter(self, part: TakenMessages, topic_id: int) -> FailedMessage:
        """Return one dead letter for messages that can't be decoded."""
        assert part.error is not None
        head, topic = part.head, self._membership.topic
        log.warning("%s; it becomes a dead letter", part.error.text)
        message = Message(topic, head.first_offset, part.payload, None, {}, head.time_ms, topic_id)
        return FailedMessage(message, head.tries, reason_of(part.error), head.count)

    # How many to take.

    def _measure(self) -> None:
        """The current tasks are used up."""
        if self._current_count:
            self._pace_ms = max((now_ms() - self._current_ms) / self._current_count, 1e-3)
            self._current_count = 0

    def _may_take_ahead(self) -> bool:
        """There is more, and what is taken is settled soon."""
        if not self._has_more or 2 * self.count_delivered() > self._options.unsettled_max:
            return False
        if self._options.prefetch is not None:
            return self._options.prefetch > 1
        return 0 < self._pace_ms <= _AHEAD_MS_MAX

    def _take_count(self) -> int:
        """How many messages a take asks for."""
        if self._options.prefetch is not None:
            return max(1, self._options.prefetch // 2)
        if not self._pace_ms:
            return 1
        in_time = int(_BUFFERED_MS / 2 / self._pace_ms)
        return max(1, min(in_time, _GROWTH * self._count, _TAKE_MAX))
