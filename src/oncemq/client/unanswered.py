"""Transactions whose callers did not wait for the reply.

Each ack of a transaction names the position that the unanswered ones before it lead to. So if one of them is not
committed, the broker refuses those that continue it, and no message is acked whose results were not stored.

A failure is handled by the next call of the thread or task that it concerns, and not when the reply arrives: a
subscription delivers what it has fetched without the lock, and only its user may move it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from oncemq.client.core.commands.pending import Pending, again
from oncemq.client.runtime.flow import Flow, Until
from oncemq.protocol import errors
from oncemq.protocol.replies import Reply

if TYPE_CHECKING:
    from oncemq.client.consumer.consumer import Consumer

#: At most this many transactions are unanswered. `buffer_bytes` limits their size.
_UNANSWERED_MAX = 100
#: At most this many failures wait for the threads and tasks that they concern.
_FAILURES_MAX = 1000


class SentTransaction(Protocol):
    """A transaction that was sent."""

    def concerns(self, caller: int) -> bool:
        """Return whether a thread or task has sent it, or uses one of its subscriptions."""

    def position(self, subscription: Consumer, topic_id: int) -> int:
        """Return the offset up to which it acks; 0: it does not ack this topic of the subscription."""

    def committed(self, reply: Reply) -> None:
        """It happened."""

    def failed(self, error: errors.OnceMQError) -> None:
        """It did not happen, or nobody knows."""

    def go_back(self) -> None:
        """Deliver again what was not acked."""


class _Sent(NamedTuple):
    pending: Pending
    transaction: SentTransaction


class UnansweredTransactions:
    """The unanswered transactions of one client, in the order in which they were sent."""

    def __init__(self) -> None:
        self._sent: list[_Sent] = []
        #: Those that have failed, and whose users were not told.
        self._failed: list[_Sent] = []
        #: The last failure that `finish_all` has raised to somebody whom it does not concern.
        self._told: Pending | None = None

    def __bool__(self) -> bool:
        return bool(self._sent or self._failed)

    def add(self, pending: Pending, transaction: SentTransaction) -> None:
        self._sent.append(_Sent(pending, transaction))

    def position(self, subscription: Consumer, topic_id: int) -> int:
        """Return the offset that a topic of a subscription has once all unanswered transactions are committed; 0: none
        of them acks it."""
        sent = [*self._failed, *self._sent]
        return max((each.transaction.position(subscription, topic_id) for each in sent), default=0)

    def wait_for_space(self) -> Flow[None]:
        """Wait until there may be one more."""
        while len(self._sent) >= _UNANSWERED_MAX:
            yield self._sent[0].pending
            self._note_outcomes()
        if len(self._failed) >= _FAILURES_MAX:
            raise _first_error(self._failed)

    def check(self, caller: int) -> Flow[None]:
        """Raise the first failure that concerns a thread or task, if there is one."""
        self._note_outcomes()
        if any(failed.transaction.concerns(caller) for failed in self._failed):
            yield from self.finish(caller)

    def finish(self, caller: int) -> Flow[None]:
        """Wait for the outcome of all transactions that concern a thread or task.

        Raises the first failure. Then its subscriptions deliver again what was not acked."""
        for sent in [each for each in self._sent if each.transaction.concerns(caller)]:
            yield sent.pending
        self._note_outcomes()
        failed = [each for each in self._failed if each.transaction.concerns(caller)]
        if not failed:
            return
        self._failed = [each for each in self._failed if each not in failed]
        for pending, transaction in failed:
            assert pending.error is not None
            transaction.failed(pending.error)
        for _, transaction in failed:
            transaction.go_back()
        raise _first_error(failed)

    def failure(self, caller: int) -> Flow[errors.OnceMQError | None]:
        """As `finish`, but return the failure."""
        try:
            yield from self.finish(caller)
        except errors.OnceMQError as error:
            return error
        return None

    def finish_all(self, caller: int, until_ms: float | None = None) -> Flow[bool]:
        """As `finish`, for all transactions. Return False if the time was over first. A failure that does not concern
        the caller is raised once, and once more to those whom it concerns."""
        for sent in list(self._sent):
            if not (yield Until(sent.pending, until_ms)):
                return False
        yield from self.finish(caller)
        if self._failed and self._failed[-1].pending is not self._told:
            self._told = self._failed[-1].pending
            raise _first_error(self._failed)
        return True

    def _note_outcomes(self) -> None:
        answered = [sent for sent in self._sent if sent.pending.done]
        if not answered:
            return
        self._sent = [sent for sent in self._sent if not sent.pending.done]
        for sent in answered:
            if sent.pending.error is not None:
                self._failed.append(sent)
            else:
                sent.transaction.committed(sent.pending.result())


def _first_error(failed: list[_Sent]) -> errors.OnceMQError:
    first = failed[0].pending.error
    assert first is not None
    error = again(first)
    if len(failed) > 1:
        error.add_note(f"{len(failed) - 1} of the transactions that were sent after it have failed, too.")
    return error
