"""The commands that clients send. Each is a msgpack array that starts with its tag (docs/protocol.md).

There are three kinds:

- `Numbered` and `Keyed` wrap an operation that changes something. The broker executes it once. It recognises retries
  of a numbered operation by (session, number), with no time limit, and of a keyed one by (principal, key), for seven
  days.
- `Hello` and `Bye` start and end a session.
- All others read, or move a position in an idempotent way (`Ack` is a maximum).
"""

from __future__ import annotations

import msgspec

from oncemq.protocol.commands.operations import *  # noqa: F403
from oncemq.protocol.commands.operations import Envelope, Operation, envelopes_of


class Hello(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="hello"):
    """Start, take over or resume a session.

    `epoch` 0: a user's call. The session is created, or taken over with a higher epoch.
    `epoch` n: an automatic reconnect. The session continues in this epoch; otherwise FENCED or SESSION_UNKNOWN.
    """

    session: str
    epoch: int
    #: Random for each user's call, so that a retried hello is recognised.
    nonce: int
    #: Maximum number of commands in flight.
    window: int
    #: The session expires some time after its last command.
    anonymous: bool = False


class Bye(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="bye"):
    """Delete an anonymous session. A named session is kept unless `for_good` is set."""

    session: str
    epoch: int
    #: Delete a named session, too: it will not be resumed.
    for_good: bool = False


class Numbered(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="n"):
    session: str
    epoch: int
    #: Starts at 1 and increases by one with each command of this session.
    number: int
    #: The client has received all replies below this number: the broker may delete those verdicts.
    seen_below: int
    operation: Operation


class Keyed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="k"):
    principal: str
    key: str
    operation: Operation


class Get(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="get"):
    """Read a subscription from a position. Moves nothing, unless it carries an ack."""

    topic_id: int
    subscriber: str
    epoch: int
    position: int
    #: The first batch may be larger. Negative: it may not be; if it is, the reply has no batch, and its
    #: `next_position` is below its `end_offset`.
    bytes_max: int
    #: Wait for new messages. Valid only if the get is the only command of its request.
    wait_ms: int = 0
    #: Ack everything below this offset; -1 = no ack.
    ack: int = -1


class Ack(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ack"):
    """Ack everything below `upto`. The position is a maximum: a lower ack changes nothing."""

    topic_id: int
    subscriber: str
    epoch: int
    upto: int


class GetAny(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="get_any"):
    """Read a pattern subscription on all of its topics. Moves nothing, unless it carries acks."""

    pattern: str
    subscriber: str
    epoch: int
    #: (topic id, position) where reading continues; other topics are read from their acked position.
    positions: tuple[tuple[int, int], ...]
    #: 0 = only process the acks.
    bytes_max: int
    wait_ms: int = 0
    #: (topic id, ack everything below this offset)
    acks: tuple[tuple[int, int], ...] = ()


class Take(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="take"):
    """Lease messages of a shared subscription. A retry with the same number returns the same lease."""

    topic_id: int
    subscriber: str
    epoch: int
    #: Random, chosen by each consumer that joins.
    member: str
    #: Increases with each new take of the member.
    number: int
    count_max: int
    bytes_max: int
    wait_ms: int = 0


class Extend(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="extend"):
    """Restart leases with their full duration."""

    topic_id: int
    subscriber: str
    epoch: int
    tokens: tuple[int, ...]


class Leave(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="leave"):
    """Remove a member. Its leased messages become available to other members immediately."""

    topic_id: int
    subscriber: str
    epoch: int
    member: str


class Find(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="find"):
    """Find the first offset that was stored at this time or later; the end of the topic if there is none."""

    topic: str
    time_ms: int


class Measure(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="measure"):
    """Ask for the size of a range of messages, without reading it. One reply may cover only a part of the range."""

    topic: str
    start: int
    #: The offset after the last message.
    stop: int
    #: Also divide the range at the ends of batches, into parts of at least this size; 0 = do not divide it.
    part_bytes: int = 0
    #: The id that the topic must have; 0 = any.
    topic_id: int = 0


class Writer(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="writer"):
    """Ask for the last commits of a writer."""

    writer: str


class Read(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="read"):
    """Read any range that is still stored, without a subscription. Moves nothing."""

    topic: str
    #: An offset, START_NEW or START_EARLIEST.
    position: int
    #: As in a get.
    bytes_max: int
    wait_ms: int = 0
    #: The id that the topic must have; 0 = any.
    topic_id: int = 0


class Topics(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="topics"):
    """List topics after `after`, ordered by name, one page at a time."""

    after: str = ""
    limit: int = 1000


class Schemas(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="schemas"):
    """Return versions of the schema of a topic, in order, one page at a time."""

    topic: str
    #: The first version to return; 0 = only the newest one.
    version: int = 0
    limit: int = 1


class Subscriptions(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="subscriptions"):
    """List the subscriptions of a topic after `after`, ordered by subscriber, one page at a time."""

    topic: str
    after: str = ""
    limit: int = 1000


class Patterns(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="patterns"):
    """List pattern subscriptions after `after`, ordered by pattern and subscriber, one page at a time."""

    after: str = ""
    limit: int = 1000


class Sessions(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sessions"):
    after: str = ""
    limit: int = 1000


class RegistryList(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="registry"):
    """List entries of a namespace whose keys start with `prefix`, one page at a time."""

    namespace: str
    prefix: str = ""
    after: str = ""
    limit: int = 1000


class Keys(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="keys"):
    """List the idempotency keys of a principal after `after`, in order, one page at a time."""

    principal: str
    after: str = ""
    limit: int = 1000


#: Tables whose entries have owners: principals of keys, namespaces of the registry.
KEYS = "keys"
REGISTRY = "registry"


class Shares(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="shares"):
    """List the owners of a table after `after`, with the number of their entries, one page at a time."""

    #: KEYS or REGISTRY.
    table: str
    after: str = ""
    limit: int = 1000


class Health(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="health"):
    pass


#: Kinds of credentials: a token; the id of a token that a MAC was made with; the public key of a CURVE client, as text;
#: the name of a user, whom a setting of the gateway names for callers without credentials; nothing.
TOKEN = "token"
MAC = "mac"
CURVE = "curve"
NAMED = "named"
NO_CREDENTIAL = "none"


class Login(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="login"):
    """Only from a gateway: find the user of a credential that a caller of the gateway has presented."""

    #: TOKEN, MAC, CURVE, NAMED or NO_CREDENTIAL.
    kind: str
    credential: str = ""
    #: The caller's address without its port: failed attempts are limited per address.
    address: str = ""
    #: What the caller has connected to, for the audit log: `http`, `text`, `push` or `udp`.
    listener: str = ""


class AuthReload(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="auth_reload"):
    """Read auth.toml, certificates and keys again. Refused if they are not valid: then the former ones stay in
    force."""


class As(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="as"):
    """Only from a gateway: a command of one of its callers."""

    #: `LoginReply.caller`
    caller: str
    command: PlainCommand
    #: The session of the command is the gateway's. Otherwise it is the caller's, like everything else.
    in_own_session: bool = False


PlainCommand = (
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
    | Measure
    | Writer
    | Read
    | Topics
    | Schemas
    | Subscriptions
    | Patterns
    | Sessions
    | RegistryList
    | Keys
    | Shares
    | Health
    | Login
    | AuthReload
)

Command = PlainCommand | As


def payloads_of(command: Command) -> tuple[Envelope, ...]:
    """Return the envelopes of a command's payloads, in the order of the payload frames."""
    if type(command) is As:
        return payloads_of(command.command)
    if type(command) is Numbered or type(command) is Keyed:
        return envelopes_of(command.operation)
    return ()
