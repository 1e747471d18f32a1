"""The events that the engine records. An event contains its outcome, so that `apply` decides nothing.

The events of a group have the time of the group. A `Claim` names the session number or key that an event answers. The
verdict that the client gets, also for a retry, is built from the event alone (verdicts.py).
"""

from __future__ import annotations

import msgspec

from oncemq.protocol.commands import REFUSE, Sharing


class Claim(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=0):
    """The number of a session that this event consumes."""

    session_id: int
    number: int
    #: Digest of the operation: a different operation under this number is refused with SEQUENCE_REUSED.
    digest: int
    #: Verdicts of lower numbers may be deleted.
    seen_below: int


class KeyClaim(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=1):
    """The idempotency key that this event consumes."""

    principal: str
    key: str
    digest: int


AnyClaim = Claim | KeyClaim


class SessionStarted(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sb"):
    """A session was created or taken over."""

    session_id: int
    name: str
    epoch: int
    nonce: int
    window: int
    anonymous: bool


class SessionEnded(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="se"):
    """A session was closed or expired, and is deleted with its verdicts."""

    session_id: int


class Declined(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="no"):
    """A refusal. It consumes its number, and retries get the same refusal."""

    claim: AnyClaim
    code: str
    text: str


class Voided(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="vo"):
    """Nothing happened: a void number, or an abort of stages that do not exist."""

    claim: AnyClaim


class TopicCreated(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="tm"):
    claim: AnyClaim
    topic_id: int
    name: str
    retain_ms: int
    retain_bytes: int
    #: False = the topic existed; it may have become permanent.
    created: bool
    quota_bytes: int = 0
    overflow: str = REFUSE
    #: The topic existed, and gets these settings.
    altered: bool = False


class TopicDeleted(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="tr"):
    claim: AnyClaim
    topic_id: int


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


class Joined(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="jn"):
    """A client opened a shared subscription. Nothing changes."""

    claim: AnyClaim
    topic_id: int
    subscriber: str
    epoch: int
    acked: int
    sharing: Sharing


class Sought(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sk"):
    claim: AnyClaim
    topic_id: int
    subscriber: str
    epoch: int
    acked: int


class Stored(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="st"):
    """A batch got its offsets. `position` is 0 if the batch was not stored because no subscription needs it."""

    #: None for a part of a transaction.
    claim: AnyClaim | None
    topic_id: int
    first_offset: int
    count: int
    size: int
    position: int
    subscriptions: int
    #: The name of the topic if this put creates it.
    topic_name: str = ""
    #: When the messages expire; 0 = never.
    expires_ms: int = 0
    #: One u64 per message if a subscription of the topic has key order.
    key_hashes: bytes = b""


class Delayed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="dl"):
    """A batch was stored that gets its offsets when it is due."""

    claim: AnyClaim | None
    topic_id: int
    delay_id: int
    count: int
    size: int
    position: int
    due_ms: int
    ttl_ms: int
    subscriptions: int
    topic_name: str = ""
    key_hashes: bytes = b""


class Released(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="rl"):
    """A delayed batch is due and gets its offsets."""

    topic_id: int
    delay_id: int
    first_offset: int


class Expired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ex"):
    """Batches have expired: gets skip them."""

    topic_id: int
    first_offsets: tuple[int, ...]


class Dropped(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="dr"):
    """The quota of a topic deleted all messages below `floor`, although subscriptions needed them."""

    topic_id: int
    floor: int


class SubscriptionExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sp"):
    """A quota deleted the slowest subscription of a topic. A pattern subscription continues at the end of the topic."""

    topic_id: int
    subscriber: str


class Leased(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ls"):
    """A member of a shared subscription got a lease on messages."""

    topic_id: int
    subscriber: str
    member: str
    number: int
    token: int
    #: (first offset, count, number of deliveries including this one)
    ranges: tuple[tuple[int, int, int], ...]
    until_ms: int
    #: (first offset, count) of expired messages, which were skipped.
    skipped: tuple[tuple[int, int], ...] = ()
    #: (first offset, count) of blocked messages: another message of their key is in flight.
    blocked: tuple[tuple[int, int], ...] = ()


class Settled(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sl"):
    #: None for a part of a transaction.
    claim: AnyClaim | None
    topic_id: int
    subscriber: str
    #: (token, first offset, count)
    done: tuple[tuple[int, int, int], ...]
    #: (token, first offset, count, time from which on it may be delivered again)
    returned: tuple[tuple[int, int, int, int], ...]
    #: (first offset, count) of messages whose lease had ended.
    lost: tuple[tuple[int, int], ...] = ()


class Extended(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="xt"):
    topic_id: int
    subscriber: str
    tokens: tuple[int, ...]
    until_ms: int


class LeasesExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="lx"):
    """Leases have ended. Their messages may be delivered again."""

    topic_id: int
    subscriber: str
    tokens: tuple[int, ...]


class LeasesRestarted(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="la"):
    """After a recovery, every lease gets its full duration again."""

    time_ms: int


class MembersLeft(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ml"):
    """Members left or were idle. The messages of their leases may be delivered again."""

    topic_id: int
    subscriber: str
    members: tuple[str, ...]


class AckedMany(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="am"):
    #: (topic id, subscriber, upto)
    acks: tuple[tuple[int, str, int], ...]


class Transacted(msgspec.Struct, array_like=True, frozen=True, tag="tx"):
    """A transaction: all parts are applied, or none."""

    claim: AnyClaim
    parts: tuple[Acked | Settled | Stored | Delayed, ...]


class Acked(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ak"):
    topic_id: int
    subscriber: str
    upto: int


class Trimmed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="tt"):
    """Retention no longer keeps messages below `floor`. Messages that a subscription needs are kept."""

    topic_id: int
    floor: int


class Staged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sg"):
    claim: AnyClaim
    stage: str
    topic_id: int
    count: int
    size: int
    position: int
    expires_ms: int
    #: Number of messages in the stage, including this batch.
    stage_count: int
    ttl_ms: int = 0
    key_hashes: bytes = b""


class CommittedPart(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The part of a commit on one of its topics."""

    topic_id: int
    first_offset: int
    count: int
    subscriptions: int
    stages: tuple[str, ...]


class Committed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="cm"):
    claim: AnyClaim
    #: "" = a one-off commit, which is not recorded for a writer.
    writer: str
    batch: int
    #: 0 = no topic, or several topics, which are in `parts`.
    topic_id: int
    first_offset: int
    #: Number of messages on all topics.
    count: int
    subscriptions: int
    stages: tuple[str, ...]
    #: The batch was committed before: only the stages are deleted, on all topics.
    before: bool
    parts: tuple[CommittedPart, ...] = ()


class StagesDropped(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sd"):
    """A client aborted stages."""

    claim: AnyClaim
    stages: tuple[str, ...]


class StagesExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sx"):
    stages: tuple[str, ...]


class KeysExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="kx"):
    """The oldest `count` idempotency keys have expired."""

    count: int


class RegistryChanged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="rc"):
    claim: AnyClaim
    namespace: str
    key: str
    value: bytes | None
    version: int


class SessionDeleted(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sr"):
    claim: AnyClaim
    session_id: int


class Moved(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="mv"):
    """Copy-forward: a stored batch has a new position. The last event wins."""

    topic_id: int
    #: -1 for a staged or delayed batch.
    first_offset: int
    old_position: int
    position: int
    size: int


Event = (
    SessionStarted
    | SessionEnded
    | Declined
    | Voided
    | TopicCreated
    | TopicDeleted
    | Subscribed
    | Unsubscribed
    | OwnerChanged
    | OwnerClosed
    | PatternSubscribed
    | PatternUnsubscribed
    | PatternOwnerChanged
    | PatternSought
    | Joined
    | Sought
    | Stored
    | Delayed
    | Released
    | Expired
    | Dropped
    | SubscriptionExpired
    | Leased
    | Settled
    | Extended
    | LeasesExpired
    | LeasesRestarted
    | MembersLeft
    | Acked
    | AckedMany
    | Transacted
    | Trimmed
    | Staged
    | Committed
    | StagesDropped
    | StagesExpired
    | KeysExpired
    | RegistryChanged
    | SessionDeleted
    | Moved
)
