"""Events of topics and of the batches in them."""

from __future__ import annotations

import msgspec

from oncemq.engine.events.claims import AnyClaim
from oncemq.protocol.commands import REFUSE
from oncemq.protocol.schema import Rule, Schema


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


class Trimmed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="tt"):
    """Retention no longer keeps messages below `floor`. Messages that a subscription needs are kept."""

    topic_id: int
    floor: int


class Moved(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="mv"):
    """Copy-forward: a stored batch has a new position. The last event wins."""

    topic_id: int
    #: -1 for a staged or delayed batch.
    first_offset: int
    old_position: int
    position: int
    size: int


class SchemaChanged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sc"):
    """A topic's schema got a version, or its settings were changed."""

    claim: AnyClaim
    topic_id: int
    #: The version that the schema of the command has.
    version: int
    #: The new version; None = there is none.
    schema: Schema | None
    rule: Rule
    check: str


TopicEvent = (
    TopicCreated | TopicDeleted | Stored | Delayed | Released | Expired | Dropped | Trimmed | Moved | SchemaChanged
)
