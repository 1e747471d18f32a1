"""The messages of the ack socket and of retransmission: one JSON object each, in a frame of its own; the content of a
message is the frame behind it. docs/push.md describes every field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.protocol import errors
from oncemq.protocol.limits import KEY_BYTES_MAX, NAME_BYTES_MAX

#: What a subscriber may name in one hello.
TOPICS_MAX = 1_000
OFFSETS_MAX = 10_000
#: The broker knows an origin by the gateway's name, a slash and this: `push/ORIGIN`, up to 255 bytes.
ORIGIN_BYTES_MAX = 250

#: At the most, since these are characters. What may be a name is asked where it is one.
Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Offset = Annotated[int, Meta(ge=0, lt=2**62)]
Topics = Annotated[tuple[Name, ...], Meta(max_length=TOPICS_MAX)]


class _Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


def _check_bytes(field: str, text: str, bytes_max: int) -> None:
    size = len(text.encode())
    if size > bytes_max:
        raise ValueError(f"`{field}` has up to {bytes_max} bytes of UTF-8, this one has {size}")


# What clients say.


class Hello(_Said, frozen=True, kw_only=True, tag="hello"):
    """Be a reliable subscriber of these topics, with those of former hellos; call me at this address."""

    subscriber: Name
    topics: Topics = ()
    address: Annotated[str, Meta(max_length=255)]
    #: Where a new subscription starts.
    start: Literal["new", "earliest"] = "new"


class Goodbye(_Said, frozen=True, kw_only=True, tag="goodbye"):
    """Not of these topics any more; of none, where they are left out."""

    subscriber: Name
    topics: Topics = ()


class AckReceived(_Said, frozen=True, kw_only=True, tag="ack_received"):
    """One message, or several, or all below an offset."""

    subscriber: Name
    topic: Name
    offset: Offset | UnsetType = UNSET
    offsets: Annotated[tuple[Offset, ...], Meta(max_length=OFFSETS_MAX)] = ()
    upto: Offset | UnsetType = UNSET
    #: As the message had it: of a topic that was deleted since, nothing is acknowledged.
    topic_id: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.offset is UNSET and self.upto is UNSET and not self.offsets:
            raise ValueError("an ack names one of `offset`, `offsets` and `upto`")


class Publish(_Said, frozen=True, kw_only=True, tag="publish"):
    """Store the content behind it, once under this id or number of this origin."""

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


# What the gateway says.


class AckWelcome(_Said, frozen=True, kw_only=True, tag="ack_welcome"):
    subscriber: str
    #: Topic → the offset of the first message that is not acknowledged.
    topics: dict[str, int]


class AckGoodbye(_Said, frozen=True, kw_only=True, tag="ack_goodbye"):
    subscriber: str
    #: What it is still subscribed to.
    topics: tuple[str, ...]


class AckNoted(_Said, frozen=True, kw_only=True, tag="ack_noted"):
    subscriber: str
    topic: str
    #: Everything below is acknowledged, and on the broker's disk.
    acked: int


class AckPublished(_Said, frozen=True, kw_only=True, tag="ack_published"):
    origin: str
    topic: str
    id: str | UnsetType = UNSET
    number: int | UnsetType = UNSET
    offset: int


class Data(_Said, frozen=True, kw_only=True, tag="data"):
    """A retransmission: the content is the next frame."""

    subscriber: str
    topic: str
    offset: int
    time_ms: int
    topic_id: int
    #: Of a message that came by `publish`.
    origin: str | UnsetType = UNSET
    id: str | UnsetType = UNSET


class Error(_Said, frozen=True, kw_only=True, tag="error"):
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
    """Raises Malformed."""
    try:
        return _decode_request(frame)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise errors.Malformed(f"not a request: {error}") from None


def decode_received(frames: list[bytes]) -> AckReceived | None:
    """A subscriber's answer to `data`; None: something else."""
    if len(frames) != 1:
        return None
    try:
        return _decode_received(frames[0])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def error_of(error: errors.OnceMQError) -> Error:
    is_passing = isinstance(error, errors.NotNow | errors.BrokerAway)
    return Error(code=error.code, text=error.text, again=is_passing)
