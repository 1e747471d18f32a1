"""What the broker answers. A verdict is the reply to a numbered or keyed operation: it is remembered, and
given again, the same, whenever the command is repeated."""

from __future__ import annotations

import msgspec


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
    topic_id: int
    epoch: int
    acked: int


class PutReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="stored"):
    topic_id: int
    first_offset: int
    count: int
    time_ms: int
    #: For how many subscriptions it is stored.
    subscriptions: int


class StageReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="staged"):
    #: Messages in the stage by now.
    count: int


class CommitReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="committed"):
    topic_id: int
    first_offset: int
    count: int
    time_ms: int
    subscriptions: int
    #: This batch was committed before; the stages were dropped, and the offsets are not given again.
    before: bool


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

    @property
    def lag(self) -> int:
        return self.end_offset - self.acked


class SubscriptionsReply(msgspec.Struct, array_like=True, frozen=True, tag="subscriptions"):
    subscriptions: tuple[SubscriptionInfo, ...]
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


Verdict = (
    Done
    | Refusal
    | TopicReply
    | SubscribeReply
    | OpenReply
    | PutReply
    | StageReply
    | CommitReply
    | RegistryReply
)

Reply = (
    Verdict
    | NotNow
    | HelloReply
    | GetReply
    | AckReply
    | TopicsReply
    | SubscriptionsReply
    | SessionsReply
    | RegistryListReply
    | HealthReply
)
