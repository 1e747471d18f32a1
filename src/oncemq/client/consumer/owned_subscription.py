"""One opening of a subscription by its owner: builds the commands, keeps the acked position, and classifies the errors
that end the opening. It does no I/O, so that asyncio and blocking callers share it.

The topic's id and the epoch never change within one opening: an ack is always sent under the epoch that the messages
were read under. A new opening is a new object.

The gateways use it through `oncemq.gateways.subscription`. A blocking caller sends the commands itself:

    api = internal_api(client)
    owned = OwnedSubscription.from_reply(topic, subscriber, api.call(Open(topic, subscriber), OpenReply))
    try:
        owned.note_acked(api.ask(owned.ack_command(upto), AckReply).acked)
    except errors.OnceMQError as error:
        if loss_of(error) is Loss.SOUGHT:       # An operator moved the subscription: open it again, unless fenced.
            owned = OwnedSubscription.from_reply(topic, subscriber, api.call(owned.reopen_command(), OpenReply))
        else:
            raise
"""

from __future__ import annotations

import enum

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Get, Open
from oncemq.protocol.replies import OpenReply


class Loss(enum.Enum):
    """Why an owner can't continue where it was."""

    #: Another consumer has opened the subscription. The owner ends, or opens it again and so takes it back.
    FENCED = "fenced"
    #: A seek moved the subscription. The owner opens it again and starts at the broker's position.
    SOUGHT = "sought"
    #: The topic was deleted, and perhaps created again. The owner's offsets mean nothing any more.
    TOPIC_GONE = "topic gone"
    #: The subscription was deleted.
    UNSUBSCRIBED = "unsubscribed"
    #: The topic's quota ended the subscription, because it was the slowest one.
    EXPIRED = "expired"
    #: The position is not readable. The owner opens the subscription again and starts at the broker's position.
    POSITION_GONE = "position gone"


_LOSSES: tuple[tuple[type[errors.OnceMQError], Loss], ...] = (
    (errors.Fenced, Loss.FENCED),
    (errors.Sought, Loss.SOUGHT),
    (errors.TopicGone, Loss.TOPIC_GONE),
    (errors.TopicUnknown, Loss.TOPIC_GONE),
    (errors.NotSubscribed, Loss.UNSUBSCRIBED),
    (errors.SubscriptionExpired, Loss.EXPIRED),
    (errors.RangeGone, Loss.POSITION_GONE),
    (errors.OffsetOutOfRange, Loss.POSITION_GONE),
)

#: Errors that show that an epoch is not the subscription's any more.
STALE_EPOCH = (errors.Fenced, errors.Sought, errors.TopicGone)
#: The subscription does not exist any more.
DELETED = frozenset({Loss.TOPIC_GONE, Loss.UNSUBSCRIBED, Loss.EXPIRED})


def loss_of(error: BaseException) -> Loss | None:
    """Return what an error means for the opening. None: the opening is still valid, or its state is unknown."""
    return next((loss for kind, loss in _LOSSES if isinstance(error, kind)), None)


class OwnedSubscription(msgspec.Struct):
    """A subscription as its owner opened it."""

    topic: str
    subscriber: str
    topic_id: int
    epoch: int
    #: All offsets below are acked, as far as this owner knows. It only rises: a seek starts a new epoch.
    acked: int = 0

    @classmethod
    def from_reply(cls, topic: str, subscriber: str, reply: OpenReply, advice: str = "") -> OwnedSubscription:
        """Raises KindMismatch if the subscription is shared: it has no owner."""
        if reply.sharing is not None:
            text = f"subscription '{subscriber}' on '{topic}' is shared"
            raise errors.KindMismatch(f"{text}; {advice}" if advice else text)
        return cls(topic, subscriber, reply.topic_id, reply.epoch, reply.acked)

    def reopen_command(self) -> Open:
        """Open it again. The broker refuses it with Fenced if another consumer has opened it since."""
        return Open(self.topic, self.subscriber, former=self.epoch)

    def get_command(self, position: int, bytes_max: int, wait_ms: int = 0, ack: int = -1) -> Get:
        """Read from a position. `ack`: first ack all offsets below this one; -1: none."""
        return Get(self.topic_id, self.subscriber, self.epoch, position, bytes_max, wait_ms, ack)

    def ack_command(self, upto: int) -> Ack:
        """Ack all offsets below `upto`. With 0 it changes nothing, and the reply tells the acked position."""
        return Ack(self.topic_id, self.subscriber, self.epoch, upto)

    def note_acked(self, acked: int) -> int:
        """Note the acked position of a reply. Returns it."""
        if acked > self.acked:
            self.acked = acked
        return acked
