"""The operations of `Numbered` and `Keyed` commands: everything that changes topics, subscriptions or stages."""

from __future__ import annotations

import msgspec

from oncemq.protocol.schema.model import Schema

#: Where a subscription or a read starts, instead of an offset: at the end of the topic, or at its first message.
START_NEW = -1
START_EARLIEST = -2


#: Overflow policies of a topic at its quota. Puts are refused until there is space.
REFUSE = "refuse"
#: The oldest messages are deleted, even if subscriptions need them.
DROP = "drop"
#: The slowest subscription is deleted.
EXPIRE = "expire"

#: Who checks the values of a topic with a schema: nobody, clients and gateways before they put, or the broker too.
CHECK_NONE = "none"
CHECK_CLIENT = "client"
CHECK_BROKER = "broker"
CHECKS = (CHECK_NONE, CHECK_CLIENT, CHECK_BROKER)

#: Separates subscriber and pattern in the key of a pattern subscription on a topic. Names cannot contain it.
BY_PATTERN = "\n"


class Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the broker needs to know about a batch: it does not read the payload."""

    count: int
    #: Bytes of the payload, which is a separate frame.
    size: int
    #: XXH3 of the payload. The broker checks and stores it, and consumers check it again.
    checksum: int
    #: Time to live of the messages; 0 = no limit.
    ttl_ms: int = 0
    #: When the messages become visible; 0 = immediately.
    due_ms: int = 0
    #: One little-endian u64 per message if the messages have keys; otherwise empty.
    key_hashes: bytes = b""
    #: The version of the topic's schema that the client has checked the values against; 0 = it has not.
    schema_version: int = 0
    #: The id of the topic whose schema it was: a topic that was deleted and created again has other versions.
    schema_topic_id: int = 0


class Void(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="void"):
    """Consume a number and do nothing: the client has given up the command."""


class CreateTopic(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="create"):
    """Create a permanent topic. Has no effect if it exists with the same settings."""

    name: str
    #: Keep messages for this time even after all subscriptions have acked them; 0 = no retention by time.
    retain_ms: int = 0
    #: Keep at most this many bytes even after all subscriptions have acked them; 0 = no retention by size.
    retain_bytes: int = 0
    #: Store at most this many bytes; 0 = no quota.
    quota_bytes: int = 0
    #: Overflow policy at the quota: REFUSE, DROP or EXPIRE.
    overflow: str = REFUSE
    #: If the topic exists with different settings, change them.
    alter: bool = False


class DeleteTopic(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="delete"):
    name: str


class Sharing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Settings of a shared subscription, which leases each message to one member."""

    #: How long a member has to ack a message, or to extend its lease.
    lease_ms: int = 30_000
    #: Maximum delivery attempts before a client moves the message to the dead-letter topic; 0 = unlimited.
    tries_max: int = 0
    dead_topic: str = ""
    #: At most one message of each key is in flight, the oldest.
    key_order: bool = False


class Subscribe(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="subscribe"):
    """Create a durable subscription, and its topic if it does not exist. Has no effect if it exists.

    A topic that contains `*` or `#` is a pattern: the subscription covers all topics that match it, now or later.
    """

    topic: str
    subscriber: str
    #: An offset, START_NEW or START_EARLIEST.
    start: int = START_NEW
    #: Settings of a shared subscription; None = an exclusive one: one owner receives everything in order.
    sharing: Sharing | None = None
    #: Delete the subscription when no owner has opened it, got or acked for this time; 0 = never.
    idle_ms: int = 0


class Unsubscribe(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="unsubscribe"):
    topic: str
    subscriber: str


class Open(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="open"):
    """Become the owner of a subscription: its epoch rises, and the former owner is fenced.

    A shared subscription has no owner: the reply contains its epoch, and the first `Take` makes the client a member.

    With `hold_ms`, other clients that open with `hold_ms` get BUSY until the hold ends: by `Close`, or after that
    time. With `hold_ms` 0, ownership changes immediately.
    """

    topic: str
    subscriber: str
    hold_ms: int = 0
    #: Epoch that the caller had as owner: opening again succeeds only if no other client has opened the subscription
    #: since (seeks do not count). An owner that reopens must not take it back from its successor. 0 = no check.
    former: int = 0


class Close(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="close"):
    """Give up ownership of a subscription and end a hold. The subscription remains."""

    topic_id: int
    subscriber: str
    epoch: int


class Seek(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="seek"):
    """Move a subscription. Its epoch rises, so that a late ack cannot undo it; the owner gets SOUGHT and reopens."""

    #: A topic or a pattern. A pattern can only seek by time, to START_NEW or to START_EARLIEST.
    topic: str
    subscriber: str
    #: An offset, START_NEW or START_EARLIEST.
    to: int = START_EARLIEST
    #: If not 0: seek to the first message that was stored at this time or later, instead of `to`.
    time_ms: int = 0


class Put(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="put"):
    """Store a batch. Its payload is the request's next payload frame."""

    topic: str
    envelope: Envelope
    #: Create the topic, as a permanent one, if it does not exist.
    create: bool = False


class AckUpto(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Ack all messages below `upto` on an exclusive subscription."""

    topic_id: int
    subscriber: str
    epoch: int
    upto: int
    #: Refuse this unless all messages below are acked: a transaction that was sent before acks them.
    since: int = 0


class Settle(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="settle"):
    """Ack and nack messages of a shared subscription.

    A range is (token, first offset, count). Messages that the lease of the token does not contain are reported as
    lost; the others are settled.
    """

    topic_id: int
    subscriber: str
    epoch: int
    done: tuple[tuple[int, int, int], ...] = ()
    #: (token, first offset, count, delay before redelivery in milliseconds)
    returned: tuple[tuple[int, int, int, int], ...] = ()


class Transact(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="transact"):
    """Acks and puts on any topics, atomically. One payload frame per put, in the same order."""

    acks: tuple[AckUpto, ...] = ()
    settles: tuple[Settle, ...] = ()
    puts: tuple[Put, ...] = ()


class Stage(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="stage"):
    """Store a batch that is invisible until it is committed. Batches of one stage keep their order."""

    stage: str
    topic: str
    #: The writer and batch number of the later commit: staging for a committed batch is refused. "" and 0: the commit
    #: is not recorded.
    writer: str
    batch: int
    envelope: Envelope


#: (stage, number of messages that it must contain)
Stages = tuple[tuple[str, int], ...]


class Commit(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="commit"):
    """Publish stages on one or several topics, atomically and in the given order.

    A batch at or below the writer's last one was committed before: its stages are deleted and the reply is success. If
    the commit has a `content`, this holds only if the batch was committed with the same content.
    Writer "" with batch 0 is a one-off commit: only the session's number identifies it.
    """

    writer: str
    batch: int
    #: "" if there are `parts`, so that a broker that does not know `parts` cannot commit less than was asked for.
    topic: str
    stages: Stages
    #: (topic, its stages) for several topics, instead of `topic` and `stages`.
    parts: tuple[tuple[str, Stages], ...] = ()
    #: Identifies what the batch consists of, independently of how it is staged; b"" = not given.
    content: bytes = b""

    def by_topic(self) -> tuple[tuple[str, Stages], ...]:
        """Return (topic, stages) pairs, for a commit to one topic and to several."""
        if self.parts or not (self.topic or self.stages):
            return self.parts
        return ((self.topic, self.stages),)


class Abort(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="abort"):
    """Delete stages. Stages that do not exist are ignored."""

    stages: tuple[str, ...]


class RegistrySet(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="register"):
    """Set an entry of a gateway's registry, or delete it if the value is None."""

    namespace: str
    key: str
    value: bytes | None
    #: The version that the entry must have (0: no entry); -1 = any.
    version: int = -1


class RemoveSession(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="remove_session"):
    """Delete a session and its verdicts. Its client, if it still exists, gets SESSION_UNKNOWN."""

    session: str


class RemoveKeys(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="remove_keys"):
    """Delete idempotency keys before they expire. Keys that do not exist are ignored.

    A request that is repeated under a deleted key is executed again."""

    principal: str
    keys: tuple[str, ...]


#: What can be assigned to another user.
SUBSCRIPTION = "subscription"
SESSION = "session"
WRITER = "writer"
ENTRY = "entry"
ASSIGNABLE = (SUBSCRIPTION, SESSION, WRITER, ENTRY)


class Assign(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="assign"):
    """Give something to another user. Only for administrators."""

    #: SUBSCRIPTION, SESSION, WRITER or ENTRY (of the registry).
    kind: str
    #: The subscriber, the name of the session or writer, or the key of the entry.
    name: str
    #: The user; "" = nobody: the first user who takes it over becomes its owner.
    owner: str
    #: The topic or pattern of a subscription, or the namespace of an entry.
    of: str = ""


class PutSchema(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="put_schema"):
    """Add a version to the schema of a topic. A schema that the topic has already returns its version."""

    topic: str
    #: None = change only the settings.
    schema: Schema | None = None
    #: Compatibility of new versions with all earlier ones: none, backward, forward or full. "" = as it is; backward for
    #: the first version.
    rule: str = ""
    #: CHECK_NONE, CHECK_CLIENT or CHECK_BROKER. "" = as it is; CHECK_CLIENT for the first version.
    check: str = ""


Operation = (
    Void
    | CreateTopic
    | DeleteTopic
    | Subscribe
    | Unsubscribe
    | Open
    | Close
    | Seek
    | Put
    | Settle
    | Transact
    | Stage
    | Commit
    | Abort
    | RegistrySet
    | RemoveSession
    | RemoveKeys
    | PutSchema
    | Assign
)


def envelopes_of(operation: Operation) -> tuple[Envelope, ...]:
    """Return the envelopes of an operation's payloads, in the order of the payload frames."""
    if type(operation) is Put or type(operation) is Stage:
        return (operation.envelope,)
    if type(operation) is Transact:
        return tuple(put.envelope for put in operation.puts)
    return ()
