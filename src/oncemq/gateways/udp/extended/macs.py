"""MACs of extended packets, for brokers that have users. It does no I/O.

A packet with a MAC has the fields of a packet without one (packets.py), another first byte, and 32 bytes at its end:

    0          u8         0xF2 instead of 0xF1
    1          …          as without a MAC
    end - 32   8 bytes    the id of the peer's access token, ASCII
    end - 24   u64        counter: a packet that is sent again gets a new one
    end - 16   16 bytes   MAC: the first half of HMAC-SHA-256(direction key, all bytes before)

The keys follow from the access token, of which only its owner knows more than the SHA-256:

    token key        HMAC-SHA-256(SHA-256(access token), "oncemq udp 1")           auth/tokens.py
    direction key    HMAC-SHA-256(token key, direction · u64 address token · u64 nonce)

The direction is the sender, "peer" or "gateway": a packet that is sent back to its sender is worthless. The gateway
chooses the address token, and the peer the nonce, at random: a recorded packet is worthless in any other session.
"""

from __future__ import annotations

import hmac
import struct

import msgspec

MAGIC = 0xF2
FROM_PEER, FROM_GATEWAY = b"peer", b"gateway"

TOKEN_ID_BYTES = 8
MAC_BYTES = 16

_FIRST = bytes([MAGIC])
_HEAD = struct.Struct(">BBQ")
_NONCES = struct.Struct(">QQ")
_TRAILER = struct.Struct(f">{TOKEN_ID_BYTES}sQ")

#: By how much a MAC makes a packet longer.
TRAILER_BYTES = _TRAILER.size + MAC_BYTES


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """What is known of a packet before it is verified."""

    kind: int
    #: The address token.
    token: int
    token_id: bytes
    counter: int


def has_mac(packet: bytes) -> bool:
    return packet[:1] == _FIRST


def parse(packet: bytes) -> Envelope | None:
    """Return the envelope of a packet that `has_mac`; None if it is too short."""
    if len(packet) < _HEAD.size + TRAILER_BYTES:
        return None
    _, kind, token = _HEAD.unpack_from(packet)
    token_id, counter = _TRAILER.unpack_from(packet, len(packet) - TRAILER_BYTES)
    return Envelope(kind, token, token_id, counter)


def direction_key(token_key: bytes, direction: bytes, token: int, nonce: int) -> bytes:
    """Return the key of one direction of one session. `token`: the address token of the hello, `nonce`: its nonce."""
    return hmac.digest(token_key, direction + _NONCES.pack(token, nonce), "sha256")


def seal(packet: bytes, key: bytes, token_id: bytes, counter: int) -> bytes:
    """Return a packet with its MAC."""
    sealed = b"".join((_FIRST, memoryview(packet)[1:], _TRAILER.pack(token_id, counter)))
    return sealed + _mac(key, sealed)


def is_genuine(packet: bytes, key: bytes) -> bool:
    """Return whether the MAC is right. It takes as long if it is wrong."""
    return hmac.compare_digest(packet[-MAC_BYTES:], _mac(key, memoryview(packet)[:-MAC_BYTES]))


def opened(packet: bytes) -> bytes:
    """Return a packet without its MAC, as packets.py reads it."""
    return packet[:-TRAILER_BYTES]


def _mac(key: bytes, data: bytes | memoryview) -> bytes:
    return hmac.digest(key, data, "sha256")[:MAC_BYTES]
