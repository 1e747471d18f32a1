"""One consumer of a shared subscription: the flows of both clients.

It is for one thread or task at a time, and its tasks for any: overlapping calls raise RuntimeError. Only `close` may
come from elsewhere; a caller that waits then gets ClientClosed. Nothing is acked automatically.

A shared consumer has a membership with a lease table, a dead-letter sender, an ack sender, a lease renewer and a take
requester. They are connected here; each uses only those before it. Leases refer to the consumer, which runs the flows
of their tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic

from oncemq.client.context import ClientContext
from oncemq.client.core.validation import check_name
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Until
from oncemq.client.runtime.reentrancy import SingleUserGuard
from oncemq.client.worker.acks import AckSender
from oncemq.client.worker.dead_letter_sender import DeadLetterSender
from oncemq.client.worker.dead_letters import TRIES, FailedMessage
from oncemq.client.worker.lease_renewal import LeaseRenewer
from oncemq.client.worker.leases import Lease
from oncemq.client.worker.membership import Membership
from oncemq.client.worker.options import WorkerOptions
from oncemq.client.worker.takes import K, TakeRequester
from oncemq.client.worker.task import ACKED, REJECTED, RETURNED, BaseTask
from oncemq.protocol import errors
from oncemq.protocol.commands import Sharing
from oncemq.protocol.limits import LEASE_MS_MAX

log = logging.getLogger("oncemq.client")

_STRIDE_MAX = 1024
#: After this time, a caller that waits may have forgotten to settle its tasks.
_WARN_AFTER_MS = 10_000.0


class SharedConsumer(Generic[K]):
    """The flows of one consumer of a shared subscription."""

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscriber: str,
        options: WorkerOptions,
        task_type: type[K],
    ) -> None:
        self.context = context
        #: Runs the flows of tasks: a ThreadDriver, or an EventLoopDriver, whose results are awaited.
        self.driver: Any = context.driver
        self.membership = membership = Membership(context, topic, subscriber)
        caller = context.driver.caller
        self.guard = SingleUserGuard(repr(self), caller.kind, caller.identify)
        self._dead_letters = DeadLetterSender(membership)
        self._acks = AckSender(membership, self._dead_letters)
        self._renewer = LeaseRenewer(membership, self._acks, options)
        self.takes = TakeRequester(membership, self._renewer, self._acks, self._dead_letters, options, task_type, self)
        self._unsettled_max = options.unsettled_max
        #: How many tasks may be delivered before they are counted again.
        self._capacity = 0

    def __repr__(self) -> str:
        return f"SharedSubscription({self.membership.topic!r}, {self.membership.subscriber!r})"

    # Taking.

    def take_buffered(self) -> K | None:
        """Return the next task if one was taken and nothing else is due."""
        membership = self.membership
        if self._capacity <= 0 or membership.late or membership.failures or membership.error is not None:
            return None
        for task in self.takes.current:
            if not task.lease.is_over:
                self._capacity -= 1
                return task
        return None

    def take(self, timeout_s: float | None) -> Flow[K | None]:
        """Return the next task; None if there is none within `timeout_s`. The caller has entered the guard."""
        until_ms = _until_ms(timeout_s)
        while (yield from self._wait_for_capacity(until_ms)):
            task = self.take_buffered()
            if task is not None:
                return task
            if not (yield from self.takes.advance(until_ms, 1)):
                return None
        return None

    def take_many(self, tasks_max: int, timeout_s: float | None) -> Flow[list[K]]:
        """Return at most `tasks_max` tasks as soon as there are any. Raises ValueError."""
        if tasks_max < 1:
            raise ValueError(f"tasks_max is at least 1, not {tasks_max}")
        return self.guard.around(self._take_many(tasks_max, timeout_s))

    def _take_many(self, tasks_max: int, timeout_s: float | None) -> Flow[list[K]]:
        until_ms = _until_ms(timeout_s)
        found: list[K] = []
        while not found:
            if not (yield from self._wait_for_capacity(until_ms)):
                break
            wanted = min(tasks_max, self._capacity)
            found = list(islice(self._living(), wanted))
            if not found and not (yield from self.takes.advance(until_ms, wanted)):
                break
        self._capacity -= len(found)
        return found

    def _living(self) -> Iterator[K]:
        return (task for task in self.takes.current if not task.lease.is_over)

    def next_stride(self, stride: int, has_ended: bool, timeout_s: float | None) -> Flow[int]:
        """Return how many of the current tasks to iterate over before the next call; 0: none came in time."""
        return self.guard.around(self._next_stride(stride, has_ended, timeout_s))

    def _next_stride(self, stride: int, has_ended: bool, timeout_s: float | None) -> Flow[int]:
        # Too many unsettled tasks do not end it: there may be more to do.
        yield from self._wait_for_capacity(None)
        if has_ended and not (yield from self.takes.advance(_until_ms(timeout_s), 1)):
            return 0
        stride = max(1, min(2 * stride, _STRIDE_MAX, self._capacity))
        self._capacity -= stride
        return stride

    def _has_capacity(self) -> bool:
        self._capacity = self._unsettled_max - self.takes.count_delivered()
        return self._capacity > 0 or self.membership.error is not None

    def _wait_for_capacity(self, until_ms: float | None) -> Flow[bool]:
        """Wait until the caller has settled enough. False: it has not, in time."""
        self.membership.check()
        if self._has_capacity():
            return True
        table = self.membership.table
        table.set_awaits_capacity(True)
        try:
            has_capacity = yield from self._wait_until_settled(until_ms)
        finally:
            table.set_awaits_capacity(False)
        self.membership.check()
        return has_capacity

    def _wait_until_settled(self, until_ms: float | None) -> Flow[bool]:
        warn_ms = now_ms() + _WARN_AFTER_MS
        if until_ms is not None and until_ms <= warn_ms:
            return bool((yield Until(self._has_capacity, until_ms)))
        if (yield Until(self._has_capacity, warn_ms)):
            return True
        log.warning("%r waits: %d tasks are not settled, which is its limit", self, self._unsettled_max)
        return bool((yield Until(self._has_capacity, until_ms)))

    # What callers do with tasks.

    def ack(self, task: BaseTask, wait: bool) -> Flow[None]:
        """A task is done. With `wait`, wait for the broker. Raises LeaseLost if it is known to come too late."""
        lease, offset = task.lease, task.message.offset
        if not task.outcome:
            self.membership.refuse_late(lease, offset)
            self._check_settleable(task, ACKED)
            task.outcome = ACKED
            lease.done.append(offset)
        elif offset in lease.done:
            # Noted a moment ago, perhaps after the subscription has ended.
            self.membership.check_open()
        else:
            self._check_settleable(task, ACKED)
        self._renewer.wake(lease)
        if wait:
            yield from self._acks.wait_for(lease, offset)

    def nack(self, task: BaseTask, delay_s: float, reason: str) -> Flow[None]:
        """Return a task to the broker. After its last try it becomes a dead letter. Raises ValueError."""
        sharing = self.membership.sharing
        if sharing.dead_topic and task.tries >= sharing.tries_max:
            return self._give_up(task, reason or TRIES)
        return self._return(task, delay_s)

    def reject(self, task: BaseTask, reason: str) -> Flow[None]:
        """Make a dead letter of a task. Raises RuntimeError if there is no dead-letter topic."""
        if not self.membership.sharing.dead_topic:
            where = f"'{self.membership.subscriber}' on '{self.membership.topic}'"
            raise RuntimeError(f"{where} has no dead-letter topic, because it was created without tries_max")
        return self._give_up(task, reason)

    def extend(self, lease: Lease) -> Flow[None]:
        """Renew a lease now. Raises LeaseLost."""
        return self._renewer.extend(lease)

    def _return(self, task: BaseTask, delay_s: float) -> Flow[None]:
        if not 0 <= delay_s <= LEASE_MS_MAX / 1000:
            raise ValueError(f"delay_s is between 0 and {LEASE_MS_MAX // 1000} seconds, not {delay_s}")
        if self._check_settleable(task, RETURNED):
            task.outcome = RETURNED
            task.lease.returned.append((task.message.offset, round(delay_s * 1000)))
            self._renewer.wake(task.lease)
        yield from ()

    def _give_up(self, task: BaseTask, reason: str) -> Flow[None]:
        check_name(reason, "a reason")
        message = FailedMessage(task.message, task.tries, reason)
        if self._check_settleable(task, REJECTED):
            task.outcome = REJECTED
            self._dead_letters.send(task.lease, [message])
            self._renewer.wake(task.lease)
            self.driver.pump()
        yield from ()

    def _check_settleable(self, task: BaseTask, outcome: str) -> bool:
        """False: it was settled in this way before. Raises RuntimeError if it was settled in another way."""
        if task.outcome not in ("", outcome):
            raise RuntimeError(f"offset {task.offset} of '{self.membership.topic}' was {task.outcome} before")
        if not task.outcome:
            self.membership.check_open()
        return not task.outcome

    # Joining and leaving.

    def join(self) -> Flow[None]:
        """Join the subscription; it is left when the client is closed."""
        yield from self.membership.join()
        self.context.open_subscriptions.add(self)

    def flush(self) -> Flow[None]:
        """Wait until everything that was settled is on the broker's disk. Raises LeaseLost for late acks."""
        return self.guard.around(self._flush())

    def _flush(self) -> Flow[None]:
        self.membership.check()
        yield from self._acks.flush()
        self.membership.check()

    def close(self, clean: bool) -> Flow[None]:
        """Send what was settled, return what was not, and end. Without `clean`, no error is raised."""
        membership = self.membership
        self.context.open_subscriptions.discard(self)
        opened, error = membership.opened, membership.error
        membership.error = error or errors.ClientClosed("this subscription was closed")
        membership.table.fail()
        try:
            if error is None and opened is not None:
                yield from self._acks.flush()
                yield from membership.leave(opened)
            membership.raise_failures()
        except errors.OnceMQError as met:
            if clean:
                raise
            log.warning("while closing %r: %s", self, met)
        finally:
            self.context.remove_task(self._renewer)
            membership.table.end_all()
            self.takes.drop()


class BaseSharedSubscription(Generic[K]):
    """What the shared subscriptions of both clients have in common."""

    def __init__(self, consumer: SharedConsumer[K]) -> None:
        self.topic = consumer.membership.topic
        self.subscriber = consumer.membership.subscriber
        #: `subscribe_shared` has created the subscription; False: it existed.
        self.created = False
        #: Internal. It may change with any version.
        self.consumer = consumer

    def __repr__(self) -> str:
        return repr(self.consumer)

    @property
    def sharing(self) -> Sharing:
        """How the subscription is shared, as the broker has it."""
        return self.consumer.membership.sharing

    @property
    def lost(self) -> int:
        """How many acks came too late, ever."""
        return self.consumer.membership.lost


def _until_ms(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else now_ms() + timeout_s * 1000
