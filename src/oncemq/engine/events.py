"""What the engine records. An event carries its outcome: `apply` never decides.

Events of one group share the group's time. A `Claim` says whose number or key the event answers; the
verdict that the client gets (and gets again) is made from the event alone (`verdicts.py`).
"""

from __future__ import annotations

import msgspec

from oncemq.protocol.commands import REFUSE, Sharing


class Claim(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=0):
    """A session's number, used up by this event."""

    session_id: int
    number: int
    #: Of the operation's bytes: another operation under this number is SEQUENCE_REUSED.
    digest: int
    #: Verdicts below this one may be forgotten.
    seen_below: int


class KeyClaim(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=1):
    """A free-form key, used up by this event."""

    principal: str
    key: str
    digest: int


AnyClaim = Claim | KeyClaim


class SessionBegun(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sb"):
    """A session was made or taken over."""

    session_id: int
    name: str
    epoch: int
    nonce: int
    window: int
    anonymous: bool


class SessionEnded(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="se"):
    """Said goodbye, removed or expired: verdicts are forgotten."""

    session_id: int


class Declined(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="no"):
    """A refusal uses up its number too, and is repeated like any verdict."""

    claim: AnyClaim
    code: str
    text: str


class Voided(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="vo"):
    """Nothing to do: a void number, or an abort of stages that are gone."""

    claim: AnyClaim


class TopicMade(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="tm"):
    claim: AnyClaim
    topic_id: int
    name: str
    retain_ms: int
    retain_bytes: int
    #: False: it was there; only its staying may be new.
    created: bool
    quota_bytes: int = 0
    overflow: str = REFUSE
    #: It was there, and has these settings from now on.
    altered: bool = False


class TopicRemoved(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="tr"):
    claim: AnyClaim
    topic_id: int


class Subscribed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ss"):
    claim: AnyClaim
    topic_id: int
    subscriber: str
    acked: int
    created: bool
    #: The topic's name where this made it.
    topic_name: str = ""
    sharing: Sharing | None = None
    #: Of the incarnation of a shared subscription, whose members all have it; else 0.
    epoch: int = 0


class PatternSubscribed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ps"):
    """Attaches to every topic that matches, at its end or at its first offset. Topics that are made later attach
    by the event that makes them."""

    claim: AnyClaim
    pattern: str
    subscriber: str
    epoch: int
    earliest: bool
    created: bool


class PatternUnsubscribed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="pu"):
    """Topics whose last subscription this was, and which don't stay, go with it."""

    claim: AnyClaim
    pattern: str
    subscriber: str


class PatternOwnerChanged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="po"):
    claim: AnyClaim
    pattern: str
    subscriber: str
    epoch: int


class PatternSought(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="pk"):
    """Positions are recorded, since they depend on what was stored."""

    claim: AnyClaim
    pattern: str
    subscriber: str
    epoch: int
    #: (topic id, acked)
    positions: tuple[tuple[int, int], ...]


class Unsubscribed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="su"):
    claim: AnyClaim
    topic_id: int
    subscriber: str
    #: The topic went with its last subscriber.
    topic_removed: bool


class OwnerChanged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="oc"):
    claim: AnyClaim
    topic_id: int
    subscriber: str
    epoch: int
    #: The position at which the new owner starts.
    acked: int
    #: A polite owner's hold ends then; 0 = none.
    held_until_ms: int


class OwnerLeft(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ol"):
    claim: AnyClaim
    topic_id: int
    subscriber: str


class Joined(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="jn"):
    """A client opened a shared subscription; nothing changes."""

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
    """A batch got its offsets. `position` is 0 where nobody wants it and it was not kept."""

    #: None as a part of a transaction.
    claim: AnyClaim | None
    topic_id: int
    first_offset: int
    count: int
    size: int
    position: int
    subscriptions: int
    #: The topic's name where this put made it.
    topic_name: str = ""
    #: Its messages' time to live ends then; 0 = never.
    expires_ms: int = 0
    #: u64 per message, where a subscription of the topic keeps order per key.
    key_hashes: bytes = b""


class Delayed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="dl"):
    """A batch that gets its offsets when it is due."""

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
    """A delayed batch is due."""

    topic_id: int
    delay_id: int
    first_offset: int


class Expired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ex"):
    """The time to live of these batches is over: gets skip them."""

    topic_id: int
    first_offsets: tuple[int, ...]


class Dropped(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="dr"):
    """A topic's quota let go of what lies below `floor`, though it was needed."""

    topic_id: int
    floor: int


class SubscriptionExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sp"):
    """A topic's quota ended its slowest subscription; one by pattern goes on at the topic's end."""

    topic_id: int
    subscriber: str


class Leased(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ls"):
    """A member of a shared subscription got messages, for a time."""

    topic_id: int
    subscriber: str
    member: str
    number: int
    token: int
    #: (first offset, count, deliveries with this one)
    ranges: tuple[tuple[int, int, int], ...]
    until_ms: int
    #: (first offset, count) that were found on the way and need no delivery: their time to live is over.
    skipped: tuple[tuple[int, int], ...] = ()
    #: (first offset, count) that were passed over: another message of their key is out.
    blocked: tuple[tuple[int, int], ...] = ()


class Settled(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sl"):
    #: None as a part of a transaction.
    claim: AnyClaim | None
    topic_id: int
    subscriber: str
    #: (token, first offset, count)
    done: tuple[tuple[int, int, int], ...]
    #: (token, first offset, count, time at which it may be delivered again)
    returned: tuple[tuple[int, int, int, int], ...]
    #: (first offset, count) of what was refused.
    lost: tuple[tuple[int, int], ...] = ()


class Extended(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="xt"):
    topic_id: int
    subscriber: str
    tokens: tuple[int, ...]
    until_ms: int


class LeasesExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="lx"):
    """What they still held may be delivered again."""

    topic_id: int
    subscriber: str
    tokens: tuple[int, ...]


class LeasesBegunAnew(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="la"):
    """After a recovery every lease has its full time."""

    time_ms: int


class MembersLeft(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ml"):
    """Said goodbye, or have had nothing for long. What they still held may be delivered again."""

    topic_id: int
    subscriber: str
    members: tuple[str, ...]


class AckedMany(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="am"):
    #: (topic id, subscriber, upto)
    acks: tuple[tuple[int, str, int], ...]


class Transacted(msgspec.Struct, array_like=True, frozen=True, tag="tx"):
    """All of it, or nothing."""

    claim: AnyClaim
    parts: tuple[Acked | Settled | Stored | Delayed, ...]


class Acked(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ak"):
    topic_id: int
    subscriber: str
    upto: int


class Trimmed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="tt"):
    """Retention let go of what lies below `floor`, as far as no subscriber needs it."""

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
    #: Messages in the stage by now.
    stage_count: int
    ttl_ms: int = 0
    key_hashes: bytes = b""


class CommittedPart(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a commit publishes on one of its topics."""

    topic_id: int
    first_offset: int
    count: int
    subscriptions: int
    stages: tuple[str, ...]


class Committed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="cm"):
    claim: AnyClaim
    #: "": nobody remembers it.
    writer: str
    batch: int
    #: 0: no topic, or several, which are in `parts`.
    topic_id: int
    first_offset: int
    #: On all topics.
    count: int
    subscriptions: int
    stages: tuple[str, ...]
    #: Committed before: only the stages go, those of all topics.
    before: bool
    parts: tuple[CommittedPart, ...] = ()


class StagesDropped(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sd"):
    """Aborted by a client."""

    claim: AnyClaim
    stages: tuple[str, ...]


class StagesExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sx"):
    stages: tuple[str, ...]


class KeysExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="kx"):
    """The oldest `count` keys have had their time."""

    count: int


class RegistryChanged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="rc"):
    claim: AnyClaim
    namespace: str
    key: str
    value: bytes | None
    version: int


class SessionRemoved(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sr"):
    claim: AnyClaim
    session_id: int


class Moved(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="mv"):
    """Copy-forward: a stored batch lies at another position now. The last one wins."""

    topic_id: int
    #: -1 for a batch that is still staged or delayed.
    first_offset: int
    old_position: int
    position: int
    size: int


Event = (
    SessionBegun
    | SessionEnded
    | Declined
    | Voided
    | TopicMade
    | TopicRemoved
    | Subscribed
    | Unsubscribed
    | OwnerChanged
    | OwnerLeft
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
    | LeasesBegunAnew
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
    | SessionRemoved
    | Moved
)
