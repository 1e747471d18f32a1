"""The replies of the broker.

A verdict is the reply to a numbered or keyed operation. The broker stores it and returns the same verdict to retries.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.commands import REFUSE, Sharing
from oncemq.protocol.schema.model import SchemaVersion

T = TypeVar("T")


class Refusal(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="refused"):
    """The command is refused. `code` is stable (errors), `text` is for people."""

    code: str
    text: str


class NotNow(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="not_now"):
    """Nothing was decided. The client may resend the same bytes under the same number."""

    code: str
    text: str
    #: For GAP, the last decided number of the session; otherwise -1.
    last_number: int = -1


class Done(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="done"):
    """The command succeeded and has no result."""


class TopicReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="topic"):
    topic_id: int
    #: False = it already existed.
    created: bool


class SubscribeReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="subscribed"):
    topic_id: int
    #: The position of the subscription.
    acked: int
    #: False = it already existed.
    created: bool


class OpenReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="opened"):
    #: 0 for a pattern.
    topic_id: int
    epoch: int
    acked: int
    #: The settings of a shared subscription.
    sharing: Sharing | None = None


class SeekReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sought"):
    #: 0 for a pattern.
    topic_id: int
    #: The new position of the subscription; 0 for a pattern.
    acked: int


class PutReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="stored"):
    topic_id: int
    #: -1 for a delayed batch, which gets its offsets when it is due.
    first_offset: int
    count: int
    time_ms: int
    #: Number of subscriptions that will receive the batch.
    subscriptions: int


class TransactReply(msgspec.Struct, array_like=True, frozen=True, tag="transacted"):
    #: In the order of the puts of the transaction.
    puts: tuple[PutReply, ...]


class SettleReply(msgspec.Struct, array_like=True, frozen=True, tag="settled"):
    #: (first offset, count) of messages that were not settled because their lease had ended.
    lost: tuple[tuple[int, int], ...] = ()


class StageReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="staged"):
    #: Number of messages in the stage.
    count: int


class CommitPart(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The result of a commit on one of several topics."""

    topic_id: int
    first_offset: int
    count: int
    subscriptions: int


class CommitReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="committed"):
    #: For a commit to several topics, `topic_id`, `first_offset` and `subscriptions` are 0, -1 and 0: see `parts`.
    topic_id: int
    first_offset: int
    #: Number of messages on all topics.
    count: int
    time_ms: int
    subscriptions: int
    #: The batch was committed before. The stages were deleted, and the offsets are not returned again.
    before: bool
    #: In the order of the commit's parts.
    parts: tuple[CommitPart, ...] = ()


class RegistryReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="registered"):
    #: The new version of the entry; 0 = it does not exist.
    version: int


class SchemaReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="schema"):
    topic_id: int
    #: The version that the schema has.
    version: int
    #: False = the topic had this schema already.
    created: bool


class HelloReply(msgspec.Struct, array_like=True, frozen=True, tag="hello"):
    epoch: int
    last_number: int
    window: int
    #: (number, verdict) of commands whose reply the client has not confirmed.
    verdicts: tuple[tuple[int, Verdict], ...]
    broker_id: str
    #: Maximum size of a batch; 0 = not reported.
    batch_bytes_max: int = 0
    #: Rises when a standby takes over. A client ignores brokers with a lower term than it has seen.
    term: int = 0


class BatchHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Describes the payload frame with the same index: its messages `skip` to `skip + count` have the offsets from
    `first_offset`."""

    first_offset: int
    count: int
    skip: int
    time_ms: int
    checksum: int


class GetReply(msgspec.Struct, array_like=True, frozen=True, tag="messages"):
    topic_id: int
    #: The position from which to continue.
    next_position: int
    #: The offset that the topic's next message will get.
    end_offset: int
    #: The acked position of the subscription; for a read, the first stored offset of the topic.
    acked: int
    batches: tuple[BatchHead, ...] = ()
    #: Total number of messages that the subscription has lost to the quota of its topic.
    dropped: int = 0


class AnyPart(msgspec.Struct, array_like=True, frozen=True):
    """The messages of one topic for a pattern subscription."""

    topic: str
    topic_id: int
    next_position: int
    end_offset: int
    acked: int
    batches: tuple[BatchHead, ...] = ()
    dropped: int = 0


class GetAnyReply(msgspec.Struct, array_like=True, frozen=True, tag="any"):
    """The payload frames of all parts follow each other, in the order of the parts."""

    parts: tuple[AnyPart, ...]
    #: False = there are more messages.
    is_all: bool


class TaskHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Messages `skip` to `skip + count` of the payload frame `payload` have the offsets from `first_offset`."""

    first_offset: int
    count: int
    skip: int
    time_ms: int
    checksum: int
    #: Number of deliveries, including this one.
    tries: int
    #: Index of the payload frame. Several heads can share one.
    payload: int


class TakeReply(msgspec.Struct, array_like=True, frozen=True, tag="tasks"):
    topic_id: int
    #: Token of the lease; 0 = there are no messages.
    token: int
    lease_ms: int
    heads: tuple[TaskHead, ...] = ()
    #: Number of payload frames.
    payloads: int = 0


class ExtendReply(msgspec.Struct, array_like=True, frozen=True, tag="extended"):
    #: Tokens of leases that have ended.
    lost: tuple[int, ...] = ()


class FindReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="found"):
    topic_id: int
    offset: int


class WriterReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="writes"):
    #: The last batch that was committed; -1 = none, or the writer is not known.
    batch: int
    #: (batch, content) of its last commits that had a content, in order.
    commits: tuple[tuple[int, bytes], ...] = ()


class MeasureReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="measured"):
    topic_id: int
    #: The reply covers the range up to this offset; below the end of the range, continue from here.
    next_position: int
    #: The size of the stored batches. A batch that is only partly in the range counts in proportion.
    bytes: int
    #: When the first message was stored; 0 = no message of the range is stored.
    time_ms: int
    #: The end of each complete part as an offset, and the size of the part.
    parts: tuple[tuple[int, int], ...] = ()


class AckReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="acked"):
    acked: int


class TopicInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    name: str
    topic_id: int
    #: Permanent: the topic is kept when it has no subscribers.
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
    #: Number of delayed messages.
    delayed: int = 0
    #: The newest version of its schema; 0 = it has none.
    schema_version: int = 0


class SchemasReply(msgspec.Struct, array_like=True, frozen=True, tag="schemas"):
    topic_id: int
    #: The newest version; 0 = the topic has no schema.
    newest: int
    #: none, backward, forward or full.
    rule: str
    #: none, client or broker.
    check: str
    versions: tuple[SchemaVersion, ...] = ()


class TopicsReply(msgspec.Struct, array_like=True, frozen=True, tag="topics"):
    topics: tuple[TopicInfo, ...]
    #: Value of `after` for the next page; "" = this was the last page.
    after: str


class SubscriptionInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    topic: str
    subscriber: str
    acked: int
    end_offset: int
    epoch: int
    #: The pattern of a pattern subscription; otherwise "".
    pattern: str = ""
    sharing: Sharing | None = None
    #: Of a shared subscription: acked messages above `acked`, and messages in flight.
    done: int = 0
    leased: int = 0
    members: int = 0
    #: Number of messages lost to the quota of the topic.
    dropped: int = 0
    #: It was moved by a seek since its owner opened it last.
    sought: bool = False
    #: All offsets below were acked or skipped by a seek; -1 = not reported. `acked` also counts expired messages.
    confirmed: int = -1

    @property
    def lag(self) -> int:
        return max(0, self.end_offset - self.acked - self.done)


class SubscriptionsReply(msgspec.Struct, array_like=True, frozen=True, tag="subscriptions"):
    subscriptions: tuple[SubscriptionInfo, ...]
    after: str


class PatternInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pattern: str
    subscriber: str
    #: Number of topics that match.
    topics: int
    epoch: int
    #: Number of unacked messages on all of these topics.
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
    #: Time of its last command.
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


#: More than the capacity of any disk.
_BOUNDLESS_BYTES = 2**50


class KeyInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    key: str
    #: When its request was executed. It expires some days later.
    time_ms: int


class KeysReply(msgspec.Struct, array_like=True, frozen=True, tag="keys"):
    keys: tuple[KeyInfo, ...]
    after: str


class ShareInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    #: The principal of keys, or the namespace of registry entries.
    owner: str
    entries: int


class SharesReply(msgspec.Struct, array_like=True, frozen=True, tag="shares"):
    shares: tuple[ShareInfo, ...]
    after: str


class HealthReply(msgspec.Struct, array_like=True, frozen=True, tag="health"):
    version: str
    broker_id: str
    journal: str
    time_ms: int
    uptime_ms: int
    topics: int
    sessions: int
    #: Bytes that puts can still write before the disk is full; -1 = not known.
    writable_bytes: int
    #: Counters since the start of the broker, by name.
    counters: dict[str, int]

    @property
    def is_free_space_known(self) -> bool:
        """Whether the free space is known. A database does not report it: `writable_bytes` is then huge."""
        return 0 <= self.writable_bytes < _BOUNDLESS_BYTES


class LoginReply(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="login"):
    """The user of a credential."""

    #: Names the user and the credential in commands of a gateway (`As`, `Numbered.caller`). "" = there are no users:
    #: everybody may do everything.
    caller: str
    #: The key of the MAC, for a login of the kind MAC.
    key: bytes = b""


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
    | SchemaReply
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
    | MeasureReply
    | WriterReply
    | AckReply
    | TopicsReply
    | SchemasReply
    | SubscriptionsReply
    | PatternsReply
    | SessionsReply
    | RegistryListReply
    | KeysReply
    | SharesReply
    | HealthReply
    | LoginReply
)


def expect(reply: Reply | None, kind: type[T]) -> T:
    """Return the reply with its type. Raises BrokerBug if it has another type than its command asks for."""
    if not isinstance(reply, kind):
        raise errors.BrokerBug(f"the broker replied with {type(reply).__name__} instead of {kind.__name__}")
    return reply
