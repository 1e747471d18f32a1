"""Taking messages of a shared subscription: which member asks, for how many, and what came of it.

A consumer is a member with a random name. Its takes are numbered: one whose answer was lost is asked again under the
same number, and brings the same lease. Messages that are taken and not handed out are few: about as many as were
worked on in the last second, so that a slow consumer does not sit on what others could do. While messages are
worked on quickly, one take is ahead.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from functools import partial
from operator import length_hint
from typing import Generic, TypeVar

from oncemq.client.context import ClientContext
from oncemq.client.core.pending import Pending, again
from oncemq.client.recording.records import Whose
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside
from oncemq.client.worker.acks import PASSING
from oncemq.client.worker.dead_letters import TRIES, Given, dead_subscription
from oncemq.client.worker.lease_renewal import Extending
from oncemq.client.worker.leases import Lease, Part, decode_take
from oncemq.client.worker.task import AnyTask
from oncemq.protocol import errors
from oncemq.protocol.commands import Open, Take
from oncemq.protocol.replies import OpenReply, SubscribeReply, TakeReply

#: A shell's tasks.
K = TypeVar("K", bound=AnyTask)

#: A take waits at the broker for so long, then it is repeated: a broker that went away is noticed.
_WAIT_MS = 2000.0
#: One take asks for so many messages at the most, unless somebody wants more.
_TAKE_MAX = 1000
#: So much work may be at hand, half of it in the take that is ahead.
_AT_HAND_MS = 1000.0
#: Messages that take longer are not worth being fetched ahead.
_AHEAD_MS_MAX = 50.0
#: From one take to the next it may grow so much.
_GROWTH = 4
#: A payload that arrives damaged so often in a row is not the network's fault.
_DAMAGES_MAX = 3
#: What is about one take, not about the subscription: raised, and then it goes on.
_NOT_FINAL = (errors.RecordCorrupt, errors.LimitReached)


class Taking(Extending, Generic[K]):
    """The part of a shared subscription that brings messages."""

    _task_type: type[K]

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscriber: str,
        *,
        prefetch: int | None,
        prefetch_bytes: int,
        unsettled_max: int,
        auto_extend: bool,
        extend_max_s: float,
    ) -> None:
        if unsettled_max < 1 or prefetch_bytes < 1 or (prefetch is not None and prefetch < 0):
            raise ValueError("unsettled_max and prefetch_bytes are at least 1, and prefetch is not below 0")
        super().__init__(context, topic, subscriber, auto_extend=auto_extend, extend_max_s=extend_max_s)
        self._prefetch = prefetch
        self._prefetch_bytes = prefetch_bytes
        self._unsettled_max = unsettled_max
        self._member = secrets.token_hex(8)
        self._opened: OpenReply | None = None
        #: The take that is on its way or was answered, and what it asks for.
        self._take: Pending | None = None
        self._take_number = 1
        #: The highest of all openings and leases: a broker gives no number twice.
        self._epoch_seen = 0
        self._take_epoch = 0
        self._take_count = 1
        self._take_waits = False
        #: Of a take that was answered and not opened.
        self._lease: Lease | None = None
        self._damages = 0
        #: The last take brought what it asked for: there is more.
        self._has_more = False
        self._current: Iterator[K] = iter(())
        #: So many may be handed out without looking.
        self._room = 0
        #: When the current messages came and how many they were; how long one took, of those before.
        self._current_ms = 0.0
        self._current_count = 0
        self._pace_ms = 0.0

    # Joining.

    def _join(self) -> Flow[OpenReply]:
        """Once; and again after a seek."""
        if self._opened is not None:
            return self._opened
        reply = yield from self._context.call(Open(self.topic, self.subscriber), OpenReply)
        if reply.sharing is None:
            raise errors.KindMismatch(f"'{self.subscriber}' on '{self.topic}' is not shared: use client.subscription")
        if reply.sharing.dead_topic:
            # However it is shared, it keeps what comes.
            with contextlib.suppress(errors.SubscriptionExists):
                yield from self._context.call(dead_subscription(reply.sharing.dead_topic), SubscribeReply)
        self._note_epoch(reply.epoch)
        self._opened, self.sharing = reply, reply.sharing
        return reply

    def _note_epoch(self, epoch: int) -> None:
        if epoch < self._epoch_seen:
            what = f"the broker has counted to {self._epoch_seen}, and is at {epoch}"
            error = errors.BrokerRewound(f"'{self.subscriber}' on '{self.topic}': {what}")
            self._fail(error)
            raise again(error)
        self._epoch_seen = epoch

    def _moved(self, epoch: int) -> None:
        super()._moved(epoch)
        if self._opened is not None and self._opened.epoch == epoch:
            self._opened = None

    def _fail(self, error: errors.OnceMQError) -> None:
        self._error = self._error or error
        self._listen()
        if self._stragglers or any(lease.done for lease in self._leases.values()):
            # Acks that reach nobody.
            self._note_failure(error)
        self._drop_all()

    def _drop_all(self) -> None:
        for lease in list(self._leases.values()):
            self._end_lease(lease)
        self._stragglers.clear()
        self._lease = None
        # The old iterator is used up, and so ends a loop's hold on it.
        for _ in self._current:
            pass

    def _drop_take(self) -> None:
        if self._take is not None:
            self._driver.give_up(self._take, errors.ClientClosed("this subscription was closed"))

    # Taking.

    def _advance(self, until_ms: float | None, wanted: int) -> Flow[bool]:
        """Make the next tasks current. False: none came in time."""
        self._measure()
        while True:
            opened = yield from self._join()
            # An empty answer to a take that was sent earlier says nothing about now.
            is_fresh = self._take is None
            self._send_settled()
            if self._take is None:
                left_ms = _WAIT_MS if until_ms is None else max(0.0, until_ms - now_ms())
                count = min(max(wanted, self._appetite()), self._unsettled_max)
                self._ask_take(opened, count, int(min(left_ms, _WAIT_MS)))
            assert self._take is not None
            yield self._take
            tasks = yield from self._open_take()
            if tasks:
                self._make_current(tasks)
                return True
            self._check()
            if tasks is None and is_fresh and until_ms is not None and now_ms() >= until_ms:
                return False

    def _make_current(self, tasks: list[K]) -> None:
        self._current = iter(tasks)
        self._current_ms, self._current_count = now_ms(), len(tasks)
        if self._take is None and self._opened is not None and self._may_fetch_ahead():
            self._ask_take(self._opened, min(self._appetite(), self._unsettled_max), 0)
            # Somebody must see it come: its lease has to be extended.
            self._watch.due_ms = min(self._watch.due_ms, now_ms() + self.sharing.lease_ms / 10)
        self._driver.pump()

    def _is_answer_due(self) -> bool:
        is_ahead = self._take is not None and not self._take.done and not self._take_waits
        return is_ahead or super()._is_answer_due()

    def _ask_take(self, opened: OpenReply, count: int, wait_ms: int) -> None:
        self._take_count = count
        self._take_epoch = opened.epoch
        self._take_waits = wait_ms > 0
        self._take = self._driver.core.ask(self._take_command(opened, self._take_count, wait_ms))
        self._take.on_done = self._take_arrived

    def _take_command(self, opened: OpenReply, count: int, wait_ms: int) -> Take:
        return Take(
            opened.topic_id,
            self.subscriber,
            opened.epoch,
            self._member,
            self._take_number,
            count,
            max(1, self._prefetch_bytes // 2),
            wait_ms,
        )

    def _take_arrived(self, pending: Pending) -> None:
        """Whether anybody waits for it or not: its lease is ours from now on."""
        reply = pending.reply
        is_member = self._opened is not None and self._opened.epoch == self._take_epoch and self._error is None
        if not isinstance(reply, TakeReply) or not reply.token or not is_member:
            return
        self._lease = Lease(self, self.subscriber, self._take_epoch, reply)
        self._begin_lease(self._lease, reply.lease_ms, now_ms())

    def _open_take(self) -> Flow[list[K] | None]:
        """What the take brought, which may be nothing of use; None: the broker had nothing."""
        pending = self._take
        assert pending is not None
        assert pending.done
        if pending.error is not None:
            self._take = None
            self._refused(pending.error)
            return []
        reply = pending.reply
        if not isinstance(reply, TakeReply):
            raise errors.Malformed(f"a take was answered with {type(reply).__name__}")
        if reply.token:
            self._note_epoch(reply.token)
        try:
            # It stays in place meanwhile: who is interrupted here finds it again.
            parts = yield Outside(partial(decode_take, self.topic, reply, pending.payloads))
        except errors.DamagedInTransit:
            self._take = None
            self._note_damage()
            return []
        self._take = None
        self._take_number += 1
        self._damages = 0
        self._has_more = self._is_full(reply, pending)
        return self._sort(parts) if reply.token else None

    def _is_full(self, reply: TakeReply, pending: Pending) -> bool:
        """It brought as much as it might."""
        count = sum(head.count for head in reply.heads)
        return count >= self._take_count or 4 * sum(map(len, pending.payloads)) >= self._prefetch_bytes

    def _refused(self, error: errors.OnceMQError) -> None:
        """Raises it, unless it is of a seek."""
        if isinstance(error, PASSING):
            # It may have happened: the same number brings the same messages.
            raise again(error)
        self._take_number += 1
        if isinstance(error, errors.Sought):
            self._moved(self._take_epoch)
            return
        if not isinstance(error, _NOT_FINAL):
            self._fail(error)
        raise again(error)

    def _note_damage(self) -> None:
        """The same take brings the same lease."""
        if self._lease is not None:
            self._end_lease(self._lease)
            self._lease = None
        self._damages += 1
        if self._damages >= _DAMAGES_MAX:
            self._damages = 0
            raise errors.DamagedInTransit(f"messages of '{self.topic}' don't match their checksums")

    def _sort(self, parts: list[Part]) -> list[K]:
        """Tasks; what was delivered too often is given up, what can't be read goes back."""
        lease, self._lease = self._lease, None
        if lease is None or lease.is_over:
            return []
        recorder = self._driver.core.recorder
        if recorder is not None:
            whose = Whose(self._driver.core.broker_id, lease.topic_id, self.subscriber, lease.epoch)
            recorder.got(whose, self.topic, [each for part in parts for each in part.messages], token=lease.token)
        tries_max = self.sharing.tries_max or float("inf")
        tasks: list[K] = []
        worn: list[Given] = []
        make = self._task_type
        for part in parts:
            tries = part.head.tries
            if part.error is not None:
                self._give_back_unread(lease, part)
            elif tries > tries_max:
                worn += [Given(message, tries - 1, TRIES) for message in part.messages]
            else:
                tasks += [make(message, tries, lease) for message in part.messages]
        if worn:
            self._bury(lease, worn)
        return tasks

    def _give_back_unread(self, lease: Lease, part: Part) -> None:
        assert part.error is not None
        self._note_failure(part.error)
        first, count = part.head.first_offset, part.head.count
        lease.returned += [(offset, self.sharing.lease_ms) for offset in range(first, first + count)]

    # How much to take.

    def _measure(self) -> None:
        """The current tasks are used up."""
        if self._current_count:
            self._pace_ms = max((now_ms() - self._current_ms) / self._current_count, 1e-3)
            self._current_count = 0

    def _may_fetch_ahead(self) -> bool:
        """There is more, and what is taken is settled soon."""
        if not self._has_more or 2 * self._in_hand() > self._unsettled_max:
            return False
        if self._prefetch is not None:
            return self._prefetch > 1
        return 0 < self._pace_ms <= _AHEAD_MS_MAX

    def _appetite(self) -> int:
        """How many messages a take asks for."""
        if self._prefetch is not None:
            return max(1, self._prefetch // 2)
        if not self._pace_ms:
            return 1
        in_time = int(_AT_HAND_MS / 2 / self._pace_ms)
        return max(1, min(in_time, _GROWTH * self._take_count, _TAKE_MAX))

    def _in_hand(self) -> int:
        """Tasks that were handed out and not settled."""
        noted = sum(len(lease.done) + len(lease.returned) + len(lease.elsewhere) for lease in self._leases.values())
        arrived = self._lease.left if self._lease is not None and not self._lease.is_over else 0
        return self._out - noted - arrived - length_hint(self._current)
