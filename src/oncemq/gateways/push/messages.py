"""The messages of the ack socket and of retransmission: each is one JSON object in a frame of its own. The content of a
message is the frame after it. docs/push.md describes every field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.protocol import errors
from oncemq.protocol.limits import KEY_BYTES_MAX, NAME_BYTES_MAX

#: Maximum number of topics of a subscriber, and of offsets in one ack.
TOPICS_MAX = 1_000
OFFSETS_MAX = 10_000
#: At the broker an origin's name is the gateway's name, a slash and this: `push/ORIGIN`, up to 255 bytes.
ORIGIN_BYTES_MAX = 250

#: An upper bound, since these are characters, not bytes. Where a name is used, it is checked again.
Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Offset = Annotated[int, Meta(ge=0, lt=2**62)]
Topics = Annotated[tuple[Name, ...], Meta(max_length=TOPICS_MAX)]


class _Tagged(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


def _check_bytes(field: str, text: str, bytes_max: int) -> None:
    size = len(text.encode())
    if size > bytes_max:
        raise ValueError(f"`{field}` may have at most {bytes_max} bytes of UTF-8; this one has {size}")


# Requests of clients.


class Hello(_Tagged, frozen=True, kw_only=True, tag="hello"):
    """Become a reliable subscriber of these topics, in addition to those of former hellos. The gateway sends messages
    again to this address."""

    subscriber: Name
    topics: Topics = ()
    address: Annotated[str, Meta(max_length=255)]
    #: Where a new subscription starts.
    start: Literal["new", "earliest"] = "new"


class Goodbye(_Tagged, frozen=True, kw_only=True, tag="goodbye"):
    """Unsubscribe from these topics; without topics, from all."""

    subscriber: Name
    topics: Topics = ()


class AckReceived(_Tagged, frozen=True, kw_only=True, tag="ack_received"):
    """Ack one message, several messages, or all offsets below `upto`."""

    subscriber: Name
    topic: Name
    offset: Offset | UnsetType = UNSET
    offsets: Annotated[tuple[Offset, ...], Meta(max_length=OFFSETS_MAX)] = ()
    upto: Offset | UnsetType = UNSET
    #: The message's topic id: an ack for a topic that was deleted since is refused.
    topic_id: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.offset is UNSET and self.upto is UNSET and not self.offsets:
            raise ValueError("an ack needs one of `offset`, `offsets` and `upto`")


class Publish(_Tagged, frozen=True, kw_only=True, tag="publish"):
    """Store the content in the next frame, once under this id or number of this origin."""

    origin: Name
    topic: Name
    id: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    number: Annotated[int, Meta(ge=1, lt=2**62)] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Raises ValueError."""
        _check_bytes("origin", self.origin, ORIGIN_BYTES_MAX)
        if isinstance(self.id, str):
            _check_bytes("id", self.id, KEY_BYTES_MAX)


Request = Hello | Goodbye | AckReceived | Publish


# Messages of the gateway.


class AckWelcome(_Tagged, frozen=True, kw_only=True, tag="ack_welcome"):
    subscriber: str
    #: Topic → the offset of the first message that is not acked.
    topics: dict[str, int]


class AckGoodbye(_Tagged, frozen=True, kw_only=True, tag="ack_goodbye"):
    subscriber: str
    #: The topics that it is still subscribed to.
    topics: tuple[str, ...]


class AckNoted(_Tagged, frozen=True, kw_only=True, tag="ack_noted"):
    subscriber: str
    topic: str
    #: All offsets below are acked durably.
    acked: int


class AckPublished(_Tagged, frozen=True, kw_only=True, tag="ack_published"):
    origin: str
    topic: str
    id: str | UnsetType = UNSET
    number: int | UnsetType = UNSET
    offset: int


class Data(_Tagged, frozen=True, kw_only=True, tag="data"):
    """A retransmission: the content is the next frame."""

    subscriber: str
    topic: str
    offset: int
    time_ms: int
    topic_id: int
    #: Only of a message that came by `publish`.
    origin: str | UnsetType = UNSET
    id: str | UnsetType = UNSET


class Error(_Tagged, frozen=True, kw_only=True, tag="error"):
    """`code` is one of docs/reference/errors.md."""

    code: str
    text: str
    #: True: nothing was decided, and the same request may succeed later.
    again: bool


Answer = AckWelcome | AckGoodbye | AckNoted | AckPublished | Error

#: Headers of a stored message that came by `publish`.
ORIGIN_HEADER = "push-origin"
ID_HEADER = "push-id"

_decode_request: Callable[[bytes], Request] = msgspec.json.Decoder(Request).decode
_decode_received = msgspec.json.Decoder(AckReceived).decode
encode = msgspec.json.Encoder().encode


def decode_request(frame: bytes) -> Request:
    """Return a client's request. Raises Malformed."""
    try:
        return _decode_request(frame)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise errors.Malformed(f"this is not a request: {error}") from None


def decode_received(frames: list[bytes]) -> AckReceived | None:
    """Return a subscriber's answer to `data`; None if it is something else."""
    if len(frames) != 1:
        return None
    try:
        return _decode_received(frames[0])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def error_of(error: errors.OnceMQError) -> Error:
    """Return an error as a message."""
    is_transient = isinstance(error, errors.TRANSIENT)
    return Error(code=error.code, text=error.text, again=is_transient)
