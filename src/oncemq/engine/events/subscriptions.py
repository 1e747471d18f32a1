"""Events of subscriptions to topics and to patterns, and of their positions."""

from __future__ import annotations

import msgspec

from oncemq.engine.events.claims import AnyClaim
from oncemq.protocol.commands import Sharing


class Subscribed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ss"):
    claim: AnyClaim
    topic_id: int
    subscriber: str
    acked: int
    created: bool
    #: The name of the topic if this event creates it.
    topic_name: str = ""
    sharing: Sharing | None = None
    #: Identifies the incarnation of a shared subscription; 0 for an exclusive one.
    epoch: int = 0
    #: It is deleted when its owner is idle for this time; 0 = never.
    idle_ms: int = 0


class Unsubscribed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="su"):
    #: None = its owner was idle for too long.
    claim: AnyClaim | None
    topic_id: int
    subscriber: str
    #: The topic was deleted with its last subscription.
    topic_removed: bool


class OwnerChanged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="oc"):
    claim: AnyClaim
    topic_id: int
    subscriber: str
    epoch: int
    #: The position of the subscription.
    acked: int
    #: When the hold of the owner ends; 0 = no hold.
    held_until_ms: int


class OwnerClosed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ol"):
    claim: AnyClaim
    topic_id: int
    subscriber: str


class Sought(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sk"):
    claim: AnyClaim
    topic_id: int
    subscriber: str
    epoch: int
    acked: int


class SubscriptionExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sp"):
    """A quota deleted the slowest subscription of a topic. A pattern subscription continues at the end of the topic."""

    topic_id: int
    subscriber: str


class Acked(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ak"):
    topic_id: int
    subscriber: str
    upto: int


class AckedMany(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="am"):
    #: (topic id, subscriber, upto)
    acks: tuple[tuple[int, str, int], ...]


class PatternSubscribed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ps"):
    """A pattern subscription was created. It is attached to every matching topic, at its end or its first offset.

    Topics that are created later are attached by the event that creates them.
    """

    claim: AnyClaim
    pattern: str
    subscriber: str
    epoch: int
    earliest: bool
    created: bool
    #: It is deleted when its owner is idle for this time; 0 = never.
    idle_ms: int = 0


class PatternUnsubscribed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="pu"):
    """A pattern subscription was deleted, with the topics that are not permanent and have no other subscription."""

    #: None = its owner was idle for too long.
    claim: AnyClaim | None
    pattern: str
    subscriber: str


class PatternOwnerChanged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="po"):
    claim: AnyClaim
    pattern: str
    subscriber: str
    epoch: int


class PatternSought(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="pk"):
    """A pattern subscription was moved. Positions are recorded because they depend on what was stored."""

    claim: AnyClaim
    pattern: str
    subscriber: str
    epoch: int
    #: (topic id, acked)
    positions: tuple[tuple[int, int], ...]


SubscriptionEvent = (
    Subscribed
    | Unsubscribed
    | OwnerChanged
    | OwnerClosed
    | Sought
    | SubscriptionExpired
    | Acked
    | AckedMany
    | PatternSubscribed
    | PatternUnsubscribed
    | PatternOwnerChanged
    | PatternSought
)
