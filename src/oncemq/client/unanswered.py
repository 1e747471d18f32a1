"""Transactions whose callers did not wait for the reply.

Each ack of a transaction names the position that the unanswered ones before it lead to. So if one of them is not
committed, the broker refuses those that continue it, and no message is acked whose results were not stored.

An outcome belongs to the subscriptions that the transaction acks: each of them notes it when it is used the next time,
and not when the reply arrives. A subscription delivers what it has fetched without the lock, so only its user may move
it. The list here is for those that wait for everything: `flush` and `close` of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from oncemq.client.core.commands.pending import Pending, again
from oncemq.client.runtime.flow import Flow, Until
from oncemq.protocol import errors
from oncemq.protocol.replies import Reply

if TYPE_CHECKING:
    from oncemq.client.consumer.consumer import Consumer

#: At most this many transactions are unanswered. `buffer_bytes` limits their size.
_UNANSWERED_MAX = 100
#: At most this many failures of transactions without acks are kept for the next flush.
_FAILURES_MAX = 100


class SentTransaction:
    """A transaction that was sent. Subscriptions compare it by identity."""

    def __init__(
        self,
        pending: Pending,
        acks: Mapping[Consumer, Mapping[int, int]],
        epochs: Mapping[Consumer, int],
        on_commit: Callable[[Reply], None],
    ) -> None:
        """`acks`: by subscription, topic id → all offsets below, under these epochs."""
        self.pending = pending
        self.acks = acks
        self.epochs = epochs
        #: The subscriptions that have not noted its outcome.
        self.untold: set[Consumer] = set(acks)
        #: Its failure was raised to somebody.
        self.is_raised = False
        self._on_commit = on_commit

    @property
    def is_answered(self) -> bool:
        return self.pending.done

    @property
    def error(self) -> errors.OnceMQError | None:
        return self.pending.error

    def note_commit(self) -> None:
        """It happened."""
        self._on_commit(self.pending.result())

    def raised(self) -> errors.OnceMQError:
        """Return its failure, to raise it."""
        assert self.error is not None
        self.is_raised = True
        return again(self.error)


class UnansweredTransactions:
    """Those of one client, in the order in which they were sent, until their outcomes are known to all concerned."""

    def __init__(self) -> None:
        self._sent: list[SentTransaction] = []

    def wait_for_space(self) -> Flow[None]:
        """Wait until there may be one more."""
        self._forget_known()
        while len(unanswered := [sent for sent in self._sent if not sent.is_answered]) >= _UNANSWERED_MAX:
            yield unanswered[0].pending

    def add(self, sent: SentTransaction) -> None:
        self._sent.append(sent)

    def finish_all(self, caller: int, until_ms: float | None = None) -> Flow[bool]:
        """Wait for the outcome of all of them. Return False if the time was over first.

        Raise the first failure that was not raised before, or that concerns the caller. The subscriptions that the
        caller uses have gone back then; others raise it to their own users, too."""
        for sent in list(self._sent):
            if not (yield Until(sent.pending, until_ms)):
                return False
        failed = [sent for sent in self._sent if sent.error is not None and not sent.is_raised]
        for consumer in {each for sent in self._sent for each in sent.untold if each.reader == caller}:
            first = consumer.transactions.note_outcomes()
            if first is not None and first not in failed:
                failed.append(first)
        for sent in failed:
            sent.is_raised = True
        self._forget_known()
        if failed:
            raise failed[0].raised()
        return True

    def _forget_known(self) -> None:
        """Forget those whose outcome is known to all concerned. One without acks concerns only those who flush."""
        for sent in self._sent:
            if sent.is_answered and sent.error is None and not sent.acks:
                sent.note_commit()
        self._sent = [
            sent
            for sent in self._sent
            if not sent.is_answered or sent.untold or (sent.error is not None and not sent.is_raised)
        ]
        lonely = [sent for sent in self._sent if sent.is_answered and not sent.untold]
        for sent in lonely[:-_FAILURES_MAX]:
            self._sent.remove(sent)
