"""Tasks: messages of a shared subscription, each with one consumer for the time of a lease."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from oncemq.client.worker.leases import Lease
from oncemq.protocol.message import Message

ACKED = "acked"
RETURNED = "returned"
REJECTED = "rejected"


class AnyTask(msgspec.Struct, gc=False, eq=False):
    """What the tasks of both shells have in common."""

    message: Message
    #: Deliveries of the message, this one included.
    tries: int
    lease: Lease
    #: How it was settled here: `acked`, `returned` or `rejected`; empty while it is not.
    outcome: str = ""

    @property
    def value(self) -> bytes:
        return self.message.value

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.message.value.decode()

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def headers(self) -> Mapping[str, bytes]:
        return self.message.headers

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def offset(self) -> int:
        return self.message.offset

    @property
    def topic_id(self) -> int:
        return self.lease.topic_id

    @property
    def subscriber(self) -> str:
        return self.lease.subscriber

    @property
    def epoch(self) -> int:
        """Of the shared subscription, when this was taken."""
        return self.lease.epoch

    @property
    def token(self) -> int:
        """Of the lease."""
        return self.lease.token

    @property
    def is_lost(self) -> bool:
        """It is known that its lease was over before it was settled: somebody else has it, or will have it."""
        lease = self.lease
        return (lease.is_lost and not self.outcome) or self.message.offset in lease.lost

    def _settled(self) -> None:
        """Others have acked it, in a transaction."""
        self.outcome = ACKED
        self.lease.elsewhere.append(self.message.offset)

    def _ack_at_hand(self) -> bool:
        """Note an ack. False: somebody has to be told, or it can't be done in this way."""
        lease = self.lease
        if self.outcome or lease.is_over:
            return False
        self.outcome = ACKED
        lease.done.append(self.message.offset)
        # In this order: whoever ends a lease, or begins to listen, says so before he looks for acks.
        return not (lease.is_over or lease.working._listens)


class Task(AnyTask, gc=False, eq=False):
    """A message to be worked on. Until it is settled, its lease is extended by itself. Any thread may settle it.

    >>> task = workers.take(timeout_s=10)
    >>> pack(task.value)
    >>> task.ack()
    """

    def ack(self, *, wait: bool = False) -> None:
        """It is done. Sent together with others within a moment; with `wait` it is on the broker's disk when this
        returns. An ack that comes too late raises LeaseLost: here if that is known, or with `wait`; else the next
        call of the subscription raises it.

        >>> task.ack()
        """
        if wait or not self._ack_at_hand():
            self.lease.working._run(self.lease.working._ack(self, wait))

    def nack(self, delay_s: float = 0.0, *, reason: str = "") -> None:
        """It is not done: give it back, to be delivered again at once, or after `delay_s`. After its last try it
        goes to the dead-letter topic, with this reason.

        >>> task.nack(delay_s=5, reason="the oven is cold")
        """
        self.lease.working._run(self.lease.working._nack(self, delay_s, reason))

    def reject(self, reason: str = REJECTED) -> None:
        """It never can be done: straight to the dead-letter topic, with a reason for people.

        >>> task.reject("no such customer")
        """
        self.lease.working._run(self.lease.working._reject(self, reason))

    def extend(self) -> None:
        """Begin its lease anew. Raises LeaseLost. Needed only with `auto_extend=False`.

        >>> task.extend()
        """
        self.lease.working._run(self.lease.working._extend_now(self.lease))
