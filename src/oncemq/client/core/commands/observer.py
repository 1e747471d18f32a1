"""What a client reports about its work to an observer, for example to a recorder that writes it down for an audit.

The core reports what it sends and what is answered, subscriptions report what they deliver. All calls come under the
client's lock, or on its event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from oncemq.client.core.commands.pending import PendingCommand
from oncemq.protocol.message import Message
from oncemq.protocol.replies import Reply


class SubscriptionEpoch(msgspec.Struct, frozen=True):
    """A subscription to one topic, during one ownership."""

    broker: str
    topic_id: int
    #: The subscriber as the broker knows it on this topic: for a subscription by pattern, with BY_PATTERN and the
    #: pattern appended.
    key: str
    epoch: int


class Observer:
    """Receives reports. This one ignores them; subclasses override what they need. The methods must not raise."""

    def sending(self, session: str, commands: Sequence[PendingCommand]) -> None:
        """These numbered commands are about to leave, perhaps not for the first time."""

    def answered(self, session: str, broker: str, command: PendingCommand, reply: Reply) -> None:
        """The broker has decided a command. Its caller does not know yet."""

    def delivering(
        self,
        subscription: SubscriptionEpoch,
        topic: str,
        messages: Iterable[Message],
        *,
        filtered: tuple[int, int] | None = None,
        token: int = 0,
    ) -> None:
        """These messages of one topic are about to be delivered to the application.

        `filtered`: a filter has examined all offsets in this range and dropped those that are not in `messages`.
        `token`: of the lease, if the subscription is shared."""

    def skipped(self, subscription: SubscriptionEpoch, start: int, stop: int) -> None:
        """The application acks offsets that were not delivered to it."""

    def rewound(self, subscription: SubscriptionEpoch, to: int) -> None:
        """A transaction failed: the subscription is read from this offset again."""

    def close(self) -> None:
        """The client is closed."""
