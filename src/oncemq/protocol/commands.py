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


#: At a topic's quota: puts have to wait,
REFUSE = "refuse"
#: or the oldest messages go, whoever needs them,
DROP = "drop"
#: or the slowest subscription ends.
EXPIRE = "expire"

#: Between a subscriber's name and the pattern by which it is attached to a topic. No name holds it.
BY_PATTERN = "\n"


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
    """Make a topic that stays. Harmless where it exists with the same settings."""

    name: str
    #: Keep messages this long even when all have acked; 0 = no retention by time.
    retain_ms: int = 0
    #: Keep up to that many bytes even when all have acked; 0 = no retention by size.
    retain_bytes: int = 0
    #: Store no more than that many bytes; 0 = as much as the disk takes.
    quota_bytes: int = 0
    #: What happens at the quota: REFUSE, DROP or EXPIRE.
    overflow: str = REFUSE
    #: Where the topic exists with other settings: give it these.
    alter: bool = False


class DeleteTopic(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="delete"):
    name: str


class Sharing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a shared subscription hands out its messages: each to one member, for the time of a lease."""

    #: A member has so long to settle a message, or to extend its lease.
    lease_ms: int = 30_000
    #: After so many deliveries a message goes to the dead-letter topic; 0 = never. The clients see to it.
    tries_max: int = 0
    dead_topic: str = ""
    #: Of messages with the same key only one is out at a time, the oldest.
    key_order: bool = False


class Subscribe(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="subscribe"):
    """Make a durable subscription, and its topic where there is none. Harmless where it exists.

    A topic with `*` or `#` in it is a pattern: the subscription holds for all topics that match, and will match.
    """

    topic: str
    subscriber: str
    #: An offset, START_NEW or START_EARLIEST.
    start: int = START_NEW
    #: Competing consumers; None = one owner, who gets everything in order.
    sharing: Sharing | None = None


class Unsubscribe(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="unsubscribe"):
    topic: str
    subscriber: str


class Open(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="open"):
    """Become the owner of a subscription: its epoch rises, the former owner is fenced. A shared one has no owner:
    whoever opens it learns its epoch, and becomes a member with the first `Take`.

    With `hold_ms`, politely: while another polite owner holds it, the answer is BUSY. The hold ends with
    `Close`, or when its time is over. With `hold_ms` 0, at once.
    """

    topic: str
    subscriber: str
    hold_ms: int = 0
    #: Only if the caller's former epoch is still the owner's, or a seek has moved it since: an owner that opens
    #: again must not take it back from a successor. 0 = whoever owns it.
    former: int = 0


class Close(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="close"):
    """Stop owning a subscription: ends a hold. The subscription stays."""

    topic_id: int
    subscriber: str
    epoch: int


class Seek(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="seek"):
    """Move a subscription. Its epoch rises, so that no late ack undoes it; the owner is told SOUGHT and opens again."""

    #: Or a pattern; then by time, START_NEW or START_EARLIEST only.
    topic: str
    subscriber: str
    #: An offset, START_NEW or START_EARLIEST.
    to: int = START_EARLIEST
    #: In place of `to`: the first message that was stored at this time or later; 0 = not by time.
    time_ms: int = 0


class Put(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="put"):
    """Store a batch. Its payload is the request's next payload frame."""

    topic: str
    envelope: Envelope
    #: Make the topic where there is none; it stays.
    create: bool = False


class AckUpto(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Of a subscription with one owner: everything below `upto` is done."""

    topic_id: int
    subscriber: str
    epoch: int
    upto: int


class Settle(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="settle"):
    """Of a shared subscription: messages that are done, and messages that are given back.

    A range is (token, first offset, count); those that the token's lease does not hold are refused, each for itself.
    """

    topic_id: int
    subscriber: str
    epoch: int
    done: tuple[tuple[int, int, int], ...] = ()
    #: (token, first offset, count, deliver again after so many milliseconds)
    returned: tuple[tuple[int, int, int, int], ...] = ()


class Transact(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="transact"):
    """Acks and puts over any topics: all of it, or nothing. One payload frame per put, in their order."""

    acks: tuple[AckUpto, ...] = ()
    settles: tuple[Settle, ...] = ()
    puts: tuple[Put, ...] = ()


class Stage(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="stage"):
    """Store a batch that nobody sees before its commit. Batches of one stage keep their order."""

    stage: str
    topic: str
    #: Who will commit, and under which batch number: staging for a committed one is refused. "" and 0: nobody in
    #: particular, by a commit that is not remembered.
    writer: str
    batch: int
    envelope: Envelope


#: (stage, messages that it must hold)
Stages = tuple[tuple[str, int], ...]


class Commit(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="commit"):
    """Publish stages of one topic or of several, all or nothing, in the order given. A batch at or below the writer's
    last one was committed before: its stages are dropped and the answer is yes.

    Writer "" with batch 0 is a one-off: nobody remembers it but the session whose number it has.
    """

    writer: str
    batch: int
    #: "" where there are `parts`: whoever does not know them must not take the commit for a smaller one.
    topic: str
    stages: Stages
    #: (topic, its stages) for each of several topics, in place of `topic` and `stages`.
    parts: tuple[tuple[str, Stages], ...] = ()

    def by_topic(self) -> tuple[tuple[str, Stages], ...]:
        """The same for one topic and for several."""
        if self.parts or not (self.topic or self.stages):
            return self.parts
        return ((self.topic, self.stages),)


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
    | Seek
    | Put
    | Settle
    | Transact
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
    """End an anonymous session for good. A named one stays, unless its client says that nothing of it is left."""

    session: str
    epoch: int
    #: A named one, too: it is not to be gone on with.
    for_good: bool = False


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


class GetAny(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="get_any"):
    """Read a subscription by pattern: whatever is there on any of its topics. Moves nothing, unless acks ride on it."""

    pattern: str
    subscriber: str
    epoch: int
    #: (topic id, position) where reading goes on; other topics are read from their acked position.
    positions: tuple[tuple[int, int], ...]
    #: 0: only the acks.
    bytes_max: int
    wait_ms: int = 0
    #: (topic id, everything below is done)
    acks: tuple[tuple[int, int], ...] = ()


class Take(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="take"):
    """Lease messages of a shared subscription. Repeated under the same number it returns the same lease."""

    topic_id: int
    subscriber: str
    epoch: int
    #: Drawn at random by each consumer that joins.
    member: str
    #: Rises with each new take of the member.
    number: int
    count_max: int
    bytes_max: int
    wait_ms: int = 0


class Extend(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="extend"):
    """Begin leases anew."""

    topic_id: int
    subscriber: str
    epoch: int
    tokens: tuple[int, ...]


class Leave(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="leave"):
    """A member goes: what it still has is given back at once."""

    topic_id: int
    subscriber: str
    epoch: int
    member: str


class Find(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="find"):
    """The first offset that was stored at a time or later; the end, if there is none."""

    topic: str
    time_ms: int


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


class Patterns(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="patterns"):
    """A page of the subscriptions by pattern, by pattern and subscriber, those after `after`."""

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
    | GetAny
    | Take
    | Extend
    | Leave
    | Find
    | Read
    | Topics
    | Subscriptions
    | Patterns
    | Sessions
    | RegistryList
    | Health
)


def envelopes_of(operation: Operation) -> tuple[Envelope, ...]:
    """Of the payloads that travel with an operation, in their order."""
    if isinstance(operation, Put | Stage):
        return (operation.envelope,)
    if isinstance(operation, Transact):
        return tuple(put.envelope for put in operation.puts)
    return ()


def payloads_of(command: Command) -> tuple[Envelope, ...]:
    """Of the payload frames that belong to a command, in their order."""
    return envelopes_of(command.operation) if isinstance(command, Numbered | Keyed) else ()
