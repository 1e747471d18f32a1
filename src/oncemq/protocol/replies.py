"""What the broker answers. A verdict is the reply to a numbered or keyed operation: it is remembered, and
given again, the same, whenever the command is repeated."""

from __future__ import annotations

import msgspec

from oncemq.protocol.commands import REFUSE, Sharing


class Refusal(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="refused"):
    """Decided: no. `code` is stable (errors.py), `text` is for people."""

    code: str
    text: str


class NotNow(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="not_now"):
    """Nothing was decided. The same bytes may be sent again under the same number."""

    code: str
    text: str
    #: The session's last decided number, for GAP; else -1.
    last_number: int = -1


class Done(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="done"):
    """It happened, and there is nothing more to say."""


class TopicReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="topic"):
    topic_id: int
    #: False: it was there before.
    created: bool


class SubscribeReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="subscribed"):
    topic_id: int
    #: The position at which it starts, or stands.
    acked: int
    #: False: it was there before.
    created: bool


class OpenReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="opened"):
    #: 0 for a pattern.
    topic_id: int
    epoch: int
    acked: int
    #: How it is shared, where it is.
    sharing: Sharing | None = None


class SeekReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sought"):
    #: 0 for a pattern.
    topic_id: int
    #: Where the subscription stands now; 0 for a pattern.
    acked: int


class PutReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="stored"):
    topic_id: int
    #: -1: it gets its offsets when it is due.
    first_offset: int
    count: int
    time_ms: int
    #: For how many subscriptions it is stored.
    subscriptions: int


class TransactReply(msgspec.Struct, array_like=True, frozen=True, tag="transacted"):
    #: In the order of the puts.
    puts: tuple[PutReply, ...]


class SettleReply(msgspec.Struct, array_like=True, frozen=True, tag="settled"):
    #: (first offset, count) of what was not settled: the lease was lost before.
    lost: tuple[tuple[int, int], ...] = ()


class StageReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="staged"):
    #: Messages in the stage by now.
    count: int


class CommitPart(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What was published on one of several topics."""

    topic_id: int
    first_offset: int
    count: int
    subscriptions: int


class CommitReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="committed"):
    #: Of a commit to several topics: 0, -1 and 0 for topic, offset and subscriptions; they are in `parts`.
    topic_id: int
    first_offset: int
    #: Messages on all topics.
    count: int
    time_ms: int
    subscriptions: int
    #: This batch was committed before; the stages were dropped, and the offsets are not given again.
    before: bool
    #: In the order of the commit's parts.
    parts: tuple[CommitPart, ...] = ()


class RegistryReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="registered"):
    #: The entry's version by now; 0 = there is none.
    version: int


class HelloReply(msgspec.Struct, array_like=True, frozen=True, tag="hello"):
    epoch: int
    last_number: int
    window: int
    #: (number, verdict) of what was decided and not yet seen.
    verdicts: tuple[tuple[int, Verdict], ...]
    broker_id: str
    #: A batch may have so many bytes; 0 = not said.
    batch_bytes_max: int = 0
    #: Of the broker: rises when a standby takes over. Whoever has met a higher one ignores this broker.
    term: int = 0


class BatchHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Describes the payload frame at the same place in the reply: messages `skip` to `skip + count` of it are
    offsets `first_offset` and on."""

    first_offset: int
    count: int
    skip: int
    time_ms: int
    checksum: int


class GetReply(msgspec.Struct, array_like=True, frozen=True, tag="messages"):
    topic_id: int
    #: Where to go on.
    next_position: int
    #: The offset that the topic's next message will get.
    end_offset: int
    #: The subscription's acked position; for a read, the topic's first offset still stored.
    acked: int
    batches: tuple[BatchHead, ...] = ()
    #: Messages that the subscription has lost to its topic's quota, ever.
    dropped: int = 0


class AnyPart(msgspec.Struct, array_like=True, frozen=True):
    """What one topic has for a subscription by pattern."""

    topic: str
    topic_id: int
    next_position: int
    end_offset: int
    acked: int
    batches: tuple[BatchHead, ...] = ()
    dropped: int = 0


class GetAnyReply(msgspec.Struct, array_like=True, frozen=True, tag="any"):
    """The payload frames are those of all parts, one after the other."""

    parts: tuple[AnyPart, ...]
    #: False: there is more.
    is_all: bool


class TaskHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages `skip` to `skip + count` of the payload frame `payload` are offsets `first_offset` and on."""

    first_offset: int
    count: int
    skip: int
    time_ms: int
    checksum: int
    #: Deliveries, this one included.
    tries: int
    #: Several heads may share a frame.
    payload: int


class TakeReply(msgspec.Struct, array_like=True, frozen=True, tag="tasks"):
    topic_id: int
    #: Of the lease; 0 = there is nothing.
    token: int
    lease_ms: int
    heads: tuple[TaskHead, ...] = ()
    #: Payload frames.
    payloads: int = 0


class ExtendReply(msgspec.Struct, array_like=True, frozen=True, tag="extended"):
    #: Tokens of leases that are over.
    lost: tuple[int, ...] = ()


class FindReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="found"):
    topic_id: int
    offset: int


class AckReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="acked"):
    acked: int


class TopicInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    name: str
    topic_id: int
    #: Stays without subscribers.
    stays: bool
    first_offset: int
    end_offset: int
    stored_bytes: int
    batches: int
    subscriptions: int
    retain_ms: int
    retain_bytes: int
    quota_bytes: int = 0
    overflow: str = REFUSE
    #: Messages that are not due yet.
    delayed: int = 0


class TopicsReply(msgspec.Struct, array_like=True, frozen=True, tag="topics"):
    topics: tuple[TopicInfo, ...]
    #: Ask again after this name; "" = that was all.
    after: str


class SubscriptionInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    topic: str
    subscriber: str
    acked: int
    end_offset: int
    epoch: int
    #: The pattern by which it is attached; "" = by its own name.
    pattern: str = ""
    sharing: Sharing | None = None
    #: Of a shared one: messages above `acked` that are done, and those that are out.
    done: int = 0
    leased: int = 0
    members: int = 0
    #: Messages that it has lost to its topic's quota.
    dropped: int = 0

    @property
    def lag(self) -> int:
        return max(0, self.end_offset - self.acked - self.done)


class SubscriptionsReply(msgspec.Struct, array_like=True, frozen=True, tag="subscriptions"):
    subscriptions: tuple[SubscriptionInfo, ...]
    after: str


class PatternInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pattern: str
    subscriber: str
    #: Topics that match by now.
    topics: int
    epoch: int
    #: Messages on all of them that are not acked.
    lag: int


class PatternsReply(msgspec.Struct, array_like=True, frozen=True, tag="patterns"):
    patterns: tuple[PatternInfo, ...]
    after: str


class SessionInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    name: str
    epoch: int
    last_number: int
    window: int
    verdicts: int
    anonymous: bool
    #: When it last did something.
    active_ms: int


class SessionsReply(msgspec.Struct, array_like=True, frozen=True, tag="sessions"):
    sessions: tuple[SessionInfo, ...]
    after: str


class RegistryEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    key: str
    value: bytes
    version: int


class RegistryListReply(msgspec.Struct, array_like=True, frozen=True, tag="registry"):
    entries: tuple[RegistryEntry, ...]
    after: str


#: More than any disk has.
_BOUNDLESS_BYTES = 2**50


class HealthReply(msgspec.Struct, array_like=True, frozen=True, tag="health"):
    version: str
    broker_id: str
    journal: str
    time_ms: int
    uptime_ms: int
    topics: int
    sessions: int
    #: What puts may still write before the disk is full; -1 = not known.
    writable_bytes: int
    #: Counters since the start, by name.
    counters: dict[str, int]

    @property
    def is_room_known(self) -> bool:
        """A database does not tell how much room it has: then it is more than any disk has."""
        return 0 <= self.writable_bytes < _BOUNDLESS_BYTES


Verdict = (
    Done
    | Refusal
    | TopicReply
    | SubscribeReply
    | OpenReply
    | SeekReply
    | PutReply
    | TransactReply
    | SettleReply
    | StageReply
    | CommitReply
    | RegistryReply
)

Reply = (
    Verdict
    | NotNow
    | HelloReply
    | GetReply
    | GetAnyReply
    | TakeReply
    | ExtendReply
    | FindReply
    | AckReply
    | TopicsReply
    | SubscriptionsReply
    | PatternsReply
    | SessionsReply
    | RegistryListReply
    | HealthReply
)
