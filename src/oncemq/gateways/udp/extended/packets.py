"""The extended packet: exactly-once delivery in both directions. It does no I/O: bytes to structs and back.

Integers are big-endian. Every packet begins with ten bytes:

    0   u8    0xF1: no plain packet and no UTF-8 text starts with it; the 1 is the version
    1   u8    kind
    2   u64   from a peer: its token, 0 = none yet
              from the gateway: the nonce of the hello that the packet belongs to; in an answer to a packet of an
              unknown peer: that packet's token
    10        by kind:

    from a peer
    1   HELLO      u8 role · u64 nonce · u64 epoch · u64 topic_id · i64 position · u8 n · n bytes name
                   · u8 n · n bytes topic
    2   PUT        u64 epoch · u64 number · u8 flags · u8 n · n bytes topic · content
    3   ACK        u64 epoch · u64 upto · u64 bitmap
    4   BYE        u64 epoch · u8 flags

    from the gateway
    81  CHALLENGE  u64 token
    82  WELCOME    u64 epoch · u64 topic_id · u64 position · u16 window · u32 packet_bytes_max
    83  DONE       u64 number · i64 offset
    84  REFUSED    u64 number · u8 n · n bytes code · text
    85  NOT_NOW    u64 number · u8 n · n bytes code · text
    86  MESSAGE    u64 first · u64 offset · u8 form · content
    87  ACKED      u64 upto
    88  OVER       u64 epoch
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from oncemq.protocol import errors

MAGIC = 0xF1

HELLO, PUT, ACK, BYE = 1, 2, 3, 4
CHALLENGE, WELCOME, DONE, REFUSED, NOT_NOW, MESSAGE, ACKED, OVER = 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88

#: Roles of a hello.
PROVE, PUBLISHER, SUBSCRIBER = 0, 1, 2
#: Flag of a put: create the topic if it does not exist.
CREATE = 1
#: Flag of a bye: delete the subscription too.
UNSUBSCRIBE = 1
#: Forms of a message. If it does not fit into a datagram, the content is its size, a u64.
WHOLE, TOO_LARGE = 0, 1

_HEAD = struct.Struct(">BBQ")
_HELLO = struct.Struct(">BQQQq")
_PUT = struct.Struct(">QQB")
_ACK = struct.Struct(">QQQ")
_BYE = struct.Struct(">QB")
_WELCOME = struct.Struct(">QQQHI")
_DONE = struct.Struct(">Qq")
_MESSAGE = struct.Struct(">QQB")
_U64 = struct.Struct(">Q")

#: Size of the fields before a message's content.
MESSAGE_HEAD_BYTES = _HEAD.size + _MESSAGE.size
#: The answer to an address that is not validated. It is shorter than any packet of a peer.
CHALLENGE_BYTES = _HEAD.size + _U64.size
#: The broker's maximum of numbers, epochs and offsets.
_INTEGER_MAX = 2**63 - 1


class Hello(msgspec.Struct, frozen=True, gc=False):
    token: int
    role: int
    #: Random per start of the peer: a repetition has the same one.
    nonce: int
    #: 0: start, or take over. Otherwise: resume under this epoch, if no other peer has taken over.
    epoch: int
    #: The topic that the position belongs to; 0: the topic that has the name now.
    topic_id: int
    #: Of a subscriber: all offsets below are acked. Of a new subscription: -1 = new messages, -2 = from the earliest.
    position: int
    name: str
    topic: str


class Put(msgspec.Struct, frozen=True, gc=False):
    token: int
    epoch: int
    number: int
    creates: bool
    topic: str
    content: bytes
    #: The packet was too long: the put is refused, and its number is used.
    is_cut: bool = False


class Ack(msgspec.Struct, frozen=True, gc=False):
    token: int
    epoch: int
    #: All offsets below are acked.
    upto: int
    #: Bit i, the least significant first: offset upto + i has arrived, but is not acked yet.
    bitmap: int


class Bye(msgspec.Struct, frozen=True, gc=False):
    token: int
    epoch: int
    unsubscribes: bool


Request = Hello | Put | Ack | Bye


class Done(msgspec.Struct, frozen=True, gc=False):
    """The message with this number is stored."""

    number: int
    offset: int


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The put with this number is refused. Number 0: the hello was refused, or the delivery has ended."""

    number: int
    code: str
    text: str


Answer = Done | Refused


def is_extended(packet: bytes) -> bool:
    return packet[:1] == b"\xf1"


def parse(packet: bytes) -> Request:
    """Return the request of a peer's packet. Raises Malformed."""
    if len(packet) < _HEAD.size:
        raise errors.Malformed("a packet of the extended form must have at least ten bytes")
    _, kind, token = _HEAD.unpack_from(packet)
    parser = _PARSERS.get(kind)
    if parser is None:
        raise errors.Malformed(f"{kind} is not a kind of packet")
    try:
        return parser(token, packet)
    except (struct.error, UnicodeDecodeError, IndexError):
        raise errors.Malformed(f"a packet of kind {kind} is incomplete, or is not UTF-8") from None


def _parse_hello(token: int, packet: bytes) -> Hello:
    role, nonce, epoch, topic_id, position = _HELLO.unpack_from(packet, _HEAD.size)
    name, at = _short_text(packet, _HEAD.size + _HELLO.size)
    topic, _ = _short_text(packet, at)
    if role > SUBSCRIBER or position < -2:
        raise errors.Malformed("a hello's role must be 0, 1 or 2, and its position at least -2")
    return Hello(token, role, nonce, _countable(epoch), topic_id, position, name, topic)


def _parse_put(token: int, packet: bytes) -> Put:
    epoch, number, flags = _PUT.unpack_from(packet, _HEAD.size)
    topic, at = _short_text(packet, _HEAD.size + _PUT.size)
    if number < 1:
        raise errors.Malformed("the number must be at least 1")
    return Put(token, _countable(epoch), _countable(number), bool(flags & CREATE), topic, packet[at:])


def _parse_ack(token: int, packet: bytes) -> Ack:
    epoch, upto, bitmap = _ACK.unpack_from(packet, _HEAD.size)
    return Ack(token, _countable(epoch), _countable(upto), bitmap)


def _parse_bye(token: int, packet: bytes) -> Bye:
    epoch, flags = _BYE.unpack_from(packet, _HEAD.size)
    return Bye(token, _countable(epoch), bool(flags & UNSUBSCRIBE))


_PARSERS: dict[int, Callable[[int, bytes], Request]] = {
    HELLO: _parse_hello,
    PUT: _parse_put,
    ACK: _parse_ack,
    BYE: _parse_bye,
}


def _short_text(packet: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + packet[at]
    if end > len(packet):
        raise IndexError
    return packet[at + 1 : end].decode(), end


def _countable(number: int) -> int:
    if number > _INTEGER_MAX:
        raise errors.Malformed(f"a number is larger than {_INTEGER_MAX}")
    return number


def parse_cut(packet: bytes) -> Put:
    """Return the put at the beginning of a packet that was too long. Raises Malformed, and TooLarge if it is not a
    put."""
    request = parse(packet)
    if not isinstance(request, Put):
        raise errors.TooLarge("the packet is too long")
    return msgspec.structs.replace(request, content=b"", is_cut=True)


def token_of(packet: bytes) -> int:
    """Return the token of any packet, even a malformed one; 0: none."""
    return int(_HEAD.unpack_from(packet)[2]) if len(packet) >= _HEAD.size else 0


# Packets of the gateway.


def challenge(echo: int, token: int) -> bytes:
    return _HEAD.pack(MAGIC, CHALLENGE, echo) + _U64.pack(token)


def welcome(nonce: int, epoch: int, topic_id: int, position: int, window: int, packet_bytes_max: int) -> bytes:
    return _HEAD.pack(MAGIC, WELCOME, nonce) + _WELCOME.pack(epoch, topic_id, position, window, packet_bytes_max)


def message(nonce: int, first: int, offset: int, content: bytes) -> bytes:
    """Return a packet with the next message at or after `first`."""
    return _HEAD.pack(MAGIC, MESSAGE, nonce) + _MESSAGE.pack(first, offset, WHOLE) + content


def too_large(nonce: int, first: int, offset: int, size: int) -> bytes:
    """Return the packet that replaces a message that does not fit into a packet."""
    return _HEAD.pack(MAGIC, MESSAGE, nonce) + _MESSAGE.pack(first, offset, TOO_LARGE) + _U64.pack(size)


def acked(nonce: int, upto: int) -> bytes:
    return _HEAD.pack(MAGIC, ACKED, nonce) + _U64.pack(upto)


def over(echo: int, epoch: int) -> bytes:
    return _HEAD.pack(MAGIC, OVER, echo) + _U64.pack(epoch)


def answer(nonce: int, decided: Answer) -> bytes:
    if isinstance(decided, Done):
        return _HEAD.pack(MAGIC, DONE, nonce) + _DONE.pack(decided.number, decided.offset)
    return _refusal(REFUSED, nonce, decided.number, decided.code, decided.text)


def not_now(echo: int, number: int, code: str, text: str) -> bytes:
    """Return the answer to a packet without an outcome: the same packet may be sent again."""
    return _refusal(NOT_NOW, echo, number, code, text)


def _refusal(kind: int, echo: int, number: int, code: str, text: str) -> bytes:
    short = code.encode()[:255]
    head = _HEAD.pack(MAGIC, kind, echo) + _U64.pack(number)
    return head + bytes([len(short)]) + short + text.encode()[:512].decode(errors="ignore").encode()
