"""What clients ask for. Each command is a msgpack array that starts with its tag (docs/protocol.md).

Three kinds:

- `Numbered` and `Keyed` wrap an operation that changes something. The first is recognised by (session,
  number), for ever; the second by (principal, key), for seven days. Either way it happens once.
- `Hello` and `Bye` begin and end a session.
- The rest reads, or moves a position in a way that repeating can't harm (`Ack` is a maximum).
"""

from __future__ import annotations

import msgspec

#: Where a subscription or a read starts, in place of an offset.
START_NEW = -1
START_EARLIEST = -2


class Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the broker must know of a batch, whose payload it does not open."""

    count: int
    #: Bytes of the payload, which is a frame of its own.
    size: int
    #: XXH3 of the payload: checked by the broker, stored, handed to consumers, checked there.
    checksum: int
    #: Messages live this long; 0 = as long as they are needed.
    ttl_ms: int = 0
    #: Messages become visible at this time; 0 = at once.
    due_ms: int = 0
    #: u64 per message, little-endian, where order per key is wanted; else empty.
    key_hashes: bytes = b""


# Operations: what a Numbered or Keyed command carries.


class Void(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="void"):
    """Use up a number and do nothing: the client gave the command up."""


class CreateTopic(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="create"):
    """Make a topic that stays. Harmless where it exists with the same retention."""

    name: str
    #: Keep messages this long even when all have acked; 0 = no retention by time.
    retain_ms: int = 0
    #: Keep up to that many bytes even when all have acked; 0 = no retention by size.
    retain_bytes: int = 0


class DeleteTopic(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="delete"):
    name: str


class Subscribe(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="subscribe"):
    """Make a durable subscription, and its topic where there is none. Harmless where it exists."""

    topic: str
    subscriber: str
    #: An offset, START_NEW or START_EARLIEST.
    start: int = START_NEW


class Unsubscribe(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="unsubscribe"):
    topic: str
    subscriber: str


class Open(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="open"):
    """Become the owner of a subscription: its epoch rises, the former owner is fenced.

    With `hold_ms`, politely: while another polite owner holds it, the answer is BUSY. The hold ends with
    `Close`, or when its time is over. With `hold_ms` 0, at once.
    """

    topic: str
    subscriber: str
    hold_ms: int = 0


class Close(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="close"):
    """Stop owning a subscription: ends a hold. The subscription stays."""

    topic_id: int
    subscriber: str
    epoch: int


class Put(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="put"):
    """Store a batch. Its payload is the request's next payload frame."""

    topic: str
    envelope: Envelope
    #: Make the topic where there is none; it stays.
    create: bool = False


class Stage(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="stage"):
    """Store a batch that nobody sees before its commit. Batches of one stage keep their order."""

    stage: str
    topic: str
    #: Who will commit, and under which batch number: staging for a committed one is refused.
    writer: str
    batch: int
    envelope: Envelope


class Commit(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="commit"):
    """Publish stages, all or nothing, in the order given. A batch at or below the writer's last one was
    committed before: its stages are dropped and the answer is yes."""

    writer: str
    batch: int
    topic: str
    #: (stage, messages that it must hold)
    stages: tuple[tuple[str, int], ...]


class Abort(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="abort"):
    """Drop stages, those that are there."""

    stages: tuple[str, ...]


class RegistrySet(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="register"):
    """Set (or, with None, remove) an entry of a gateway's registry."""

    namespace: str
    key: str
    value: bytes | None
    #: Only if the entry's version is this one (0: there is no entry); -1 = whatever it is.
    version: int = -1


class RemoveSession(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="remove_session"):
    """Forget a session and its verdicts. Its client, if it still exists, gets SESSION_UNKNOWN."""

    session: str


Operation = (
    Void
    | CreateTopic
    | DeleteTopic
    | Subscribe
    | Unsubscribe
    | Open
    | Close
    | Put
    | Stage
    | Commit
    | Abort
    | RegistrySet
    | RemoveSession
)

# Commands.


class Hello(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="hello"):
    """Begin a session, or take it over, or go on with it.

    `epoch` 0: a user's call. A new session is made, or the old one taken over (epoch + 1).
    `epoch` n: an automatic reconnect goes on with its epoch; FENCED or SESSION_UNKNOWN otherwise.
    """

    session: str
    epoch: int
    #: Random per user's call, so that a repeated hello is recognised.
    nonce: int
    #: Commands in flight at the most.
    window: int
    #: Expires some time after its last command.
    anonymous: bool = False


class Bye(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="bye"):
    """End an anonymous session for good. A named one stays."""

    session: str
    epoch: int


class Numbered(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="n"):
    session: str
    epoch: int
    #: Starts at 1 and rises by one with each command of this session.
    number: int
    #: All answers below this number have been seen: the broker may forget them.
    seen_below: int
    operation: Operation


class Keyed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="k"):
    principal: str
    key: str
    operation: Operation


class Get(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="get"):
    """Read a subscription from a position. Moves nothing, unless an ack rides on it."""

    topic_id: int
    subscriber: str
    epoch: int
    position: int
    bytes_max: int
    #: Wait for something new. Only where the get is alone in its request.
    wait_ms: int = 0
    #: Everything below this offset is done; -1 = no ack.
    ack: int = -1


class Ack(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ack"):
    """Everything below `upto` is done. A maximum: an older one changes nothing."""

    topic_id: int
    subscriber: str
    epoch: int
    upto: int


class Read(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="read"):
    """Read any range that is still stored; moves nothing, belongs to nobody."""

    topic: str
    #: An offset, START_NEW or START_EARLIEST.
    position: int
    bytes_max: int
    wait_ms: int = 0
    #: The topic must have this id; 0 = whichever has the name now.
    topic_id: int = 0


class Topics(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="topics"):
    """A page of topics, by name, those after `after`."""

    after: str = ""
    limit: int = 1000


class Subscriptions(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="subscriptions"):
    """A page of one topic's subscriptions, by subscriber."""

    topic: str
    after: str = ""
    limit: int = 1000


class Sessions(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sessions"):
    after: str = ""
    limit: int = 1000


class RegistryList(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="registry"):
    """A page of a namespace's entries whose keys start with `prefix`."""

    namespace: str
    prefix: str = ""
    after: str = ""
    limit: int = 1000


class Health(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="health"):
    pass


Command = (
    Hello
    | Bye
    | Numbered
    | Keyed
    | Get
    | Ack
    | Read
    | Topics
    | Subscriptions
    | Sessions
    | RegistryList
    | Health
)


def carries_payload(command: Command) -> Envelope | None:
    """The envelope of the payload frame that belongs to a command, if it has one."""
    if isinstance(command, Numbered | Keyed) and isinstance(command.operation, Put | Stage):
        return command.operation.envelope
    return None
