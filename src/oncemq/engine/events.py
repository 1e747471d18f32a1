"""What the engine records. An event carries its outcome: `apply` never decides.

Events of one group share the group's time. A `Claim` says whose number or key the event answers; the
verdict that the client gets (and gets again) is made from the event alone (`verdicts.py`).
"""

from __future__ import annotations

import msgspec


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


class Stored(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="st"):
    """A batch got its offsets. `position` is 0 where nobody wants it and it was not kept."""

    claim: AnyClaim
    topic_id: int
    first_offset: int
    count: int
    size: int
    position: int
    subscriptions: int
    #: The topic's name where this put made it.
    topic_name: str = ""


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


class Committed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="cm"):
    claim: AnyClaim
    writer: str
    batch: int
    topic_id: int
    first_offset: int
    count: int
    subscriptions: int
    stages: tuple[str, ...]
    #: Committed before: only the stages go.
    before: bool


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
    #: -1 for a batch that is still staged.
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
    | Stored
    | Acked
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
