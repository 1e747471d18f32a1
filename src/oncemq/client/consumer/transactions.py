"""What transactions mean for one subscription: those that have not ended, and those that nobody waits for.

A transaction that has not ended *claims* what it acks: if another one fails, this is not delivered again. One that was
sent without waiting for the reply (unanswered.py) claims it until its outcome is noted, by the next call of whoever
uses the subscription.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemq.client.runtime.flow import Flow
from oncemq.client.unanswered import SentTransaction
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.client.consumer.consumer import Consumer


class ConsumerTransactions:
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        #: By transaction that has not ended: what it has acked, by topic id.
        self._claims: dict[object, dict[int, int]] = {}
        #: Those that nobody waits for and whose outcome is not noted, in order.
        self._sent: list[SentTransaction] = []
        #: When one of them had failed and the subscription went back, counted by the context; 0 = never.
        self.rewound_at = 0

    def __bool__(self) -> bool:
        """Whether there are outcomes to be noted."""
        return bool(self._sent)

    # Claims.

    def claim(self, transaction: object, acks: dict[int, int]) -> None:
        """Note what a transaction that has not ended has acked, by topic id."""
        self._claims[transaction] = acks

    def end_claim(self, transaction: object) -> None:
        """A transaction has ended."""
        self._claims.pop(transaction, None)

    def claimed(self) -> dict[int, int]:
        """Return what all of them have acked: topic id → all offsets below."""
        claims: dict[int, int] = {}
        for acks in (*self._claims.values(), *(sent.acks[self._consumer] for sent in self._sent)):
            # A copy: a transaction of another thread may ack meanwhile.
            for topic_id, upto in list(acks.items()):
                claims[topic_id] = max(upto, claims.get(topic_id, 0))
        return claims

    # Those that nobody waits for.

    def add(self, sent: SentTransaction) -> None:
        self._sent.append(sent)

    def position(self, topic_id: int) -> int:
        """Return the offset that a topic has once all that were sent are committed; 0: none acks it."""
        return max((sent.acks[self._consumer].get(topic_id, 0) for sent in self._sent), default=0)

    def check(self) -> Flow[None]:
        """Raise the first failure of those that are answered, if there is one. Then all of them are answered, and what
        was not acked is delivered again."""
        if any(sent.error is not None for sent in self._sent):
            yield from self.finish()
        else:
            self.note_outcomes()

    def finish(self) -> Flow[None]:
        """Wait for the outcome of all of them. Raise the first failure. Then what was not acked is delivered again."""
        for sent in list(self._sent):
            yield sent.pending
        failed = self.note_outcomes()
        if failed is not None:
            raise failed.raised()

    def note_outcomes(self) -> SentTransaction | None:
        """Note the outcomes of those that are answered, up to the first failure, which is noted when all are answered.
        Return it then.

        An interrupt may end this anywhere: each one is removed last, and to note it twice changes nothing."""
        while self._sent and self._sent[0].is_answered and self._sent[0].error is None:
            self._note_commit(self._sent[0])
            self._sent[0].untold.discard(self._consumer)
            del self._sent[0]
        if not self._sent or not all(sent.is_answered for sent in self._sent):
            return None
        for sent in self._sent:
            if sent.error is None:
                self._note_commit(sent)
            else:
                self._consumer.transaction_failed(sent.error)
        return self._go_back()

    def _go_back(self) -> SentTransaction:
        """The first one has failed, and all are answered."""
        context, noted = self._consumer.context, self._sent
        context.rewinds += 1
        self.rewound_at = context.rewinds
        try:
            self._sent = []
            self._consumer.go_back()
        except BaseException:
            self._sent = noted
            raise
        for sent in noted:
            sent.untold.discard(self._consumer)
            # It failed because the first one did.
            sent.is_raised = sent.is_raised or isinstance(sent.error, errors.EarlierFailed)
        return noted[0]

    def _note_commit(self, sent: SentTransaction) -> None:
        sent.note_commit()
        self._consumer.transaction_committed(sent.epochs[self._consumer], sent.acks[self._consumer])

    def close(self) -> None:
        """The subscription ends: nobody uses it any more."""
        for sent in self._sent:
            sent.untold.discard(self._consumer)
