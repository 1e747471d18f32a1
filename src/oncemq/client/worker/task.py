"""Tasks: messages of a shared subscription, each leased to one consumer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from oncemq.client.worker.leases import Lease
from oncemq.protocol.message import Message

ACKED = "acked"
RETURNED = "returned"
REJECTED = "rejected"


class BaseTask(msgspec.Struct, gc=False, eq=False):
    """What the tasks of both clients have in common."""

    message: Message
    #: Deliveries of the message, this one included.
    tries: int
    lease: Lease
    #: How it was settled here: `acked`, `returned` or `rejected`; empty while it is not.
    outcome: str = ""

    @property
    def value(self) -> bytes:
        """The message's value."""
        return self.message.value

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.message.value.decode()

    @property
    def key(self) -> bytes | None:
        """The message's key."""
        return self.message.key

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The message's headers."""
        return self.message.headers

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self.message.topic

    @property
    def offset(self) -> int:
        """The message's offset in its topic."""
        return self.message.offset

    @property
    def topic_id(self) -> int:
        """The id of the topic."""
        return self.lease.topic_id

    @property
    def subscriber(self) -> str:
        """The name of the shared subscription."""
        return self.lease.subscriber

    @property
    def epoch(self) -> int:
        """The epoch of the shared subscription in which this was taken."""
        return self.lease.epoch

    @property
    def token(self) -> int:
        """The token of the lease."""
        return self.lease.token

    @property
    def is_lost(self) -> bool:
        """It is known that its lease ended before it was settled: another consumer has it, or will have it."""
        lease = self.lease
        return (lease.is_lost and not self.outcome) or self.message.offset in lease.lost

    def _ack_buffered(self) -> bool:
        """Note an ack. False: it has to be announced, or can't be noted."""
        lease = self.lease
        if self.outcome or lease.is_over:
            return False
        self.outcome = ACKED
        lease.done.append(self.message.offset)
        # In this order: `is_over` and `must_wake` are set before acks are looked for.
        return not (lease.is_over or lease.table.must_wake)


def mark_committed(task: BaseTask) -> None:
    """A transaction has acked a task."""
    task.outcome = ACKED
    task.lease.settled_by_transaction.append(task.message.offset)


class Task(BaseTask, gc=False, eq=False):
    """A message to be processed. Until it is settled, its lease is renewed automatically. Any thread may settle it.

    >>> task = workers.take(timeout_s=10)
    >>> pack(task.value)
    >>> task.ack()
    """

    def ack(self, *, wait: bool = False) -> None:
        """The task is done. The ack is sent together with others within a moment; with `wait` it is on the broker's
        disk when this returns. An ack that comes too late raises LeaseLost: here if that is known, or with `wait`; else
        the next call of the subscription raises it.

        >>> task.ack()
        """
        if wait or not self._ack_buffered():
            consumer = self.lease.consumer
            consumer.driver.run(consumer.ack(self, wait))

    def nack(self, delay_s: float = 0.0, *, reason: str = "") -> None:
        """The task is not done: return it, to be delivered again immediately, or after `delay_s`. After its last try it
        goes to the dead-letter topic, with this reason.

        >>> task.nack(delay_s=5, reason="the oven is cold")
        """
        consumer = self.lease.consumer
        consumer.driver.run(consumer.nack(self, delay_s, reason))

    def reject(self, reason: str = REJECTED) -> None:
        """The task can never be done: send it to the dead-letter topic, with a reason for people.

        >>> task.reject("no such customer")
        """
        consumer = self.lease.consumer
        consumer.driver.run(consumer.reject(self, reason))

    def extend(self) -> None:
        """Renew its lease now. Raises LeaseLost. Needed only with `auto_extend=False`.

        >>> task.extend()
        """
        consumer = self.lease.consumer
        consumer.driver.run(consumer.extend(self.lease))
