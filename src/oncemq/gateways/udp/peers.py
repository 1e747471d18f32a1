"""The addresses that the gateway talks to: whether they are validated, and when they were last heard. It does
no I/O: the time is an argument.

A plain packet proves nothing: anybody can send one with a forged address. So an address that is not validated gets
only short replies, a limited number of messages until it sends a packet again, and, together with all other such
addresses, a limited number of bytes per second. All data here is bounded, and none of it needs to survive a restart.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from oncemq.gateways.udp.rates import Bucket
from oncemq.gateways.udp.settings import PLAIN_SILENT_MS, SLACK_BYTES, UNPROVED_MESSAGES, UdpSettings
from oncemq.gateways.udp.tokens import Address, is_loopback

#: Size of a datagram's headers.
_HEADERS_BYTES = 28
#: How long an address stays validated after its last packet with a token.
_VALIDATED_MS = 600_000
_VALIDATED_MAX = 10_000
#: After this many reports of its own host that nobody listens there, an address is gone.
_STRIKES = 3
#: Reports within this time count as one: a program that is being restarted is not gone.
_STRIKE_MS = 1000


class PlainPeer(msgspec.Struct):
    """A plain subscriber's address."""

    heard_ms: float
    #: How many messages it may still get before it must send a packet, while it is not validated.
    credit: int = UNPROVED_MESSAGES
    strikes: int = 0
    struck_ms: float = float("-inf")


class Peers:
    def __init__(self, settings: UdpSettings, now_ms: float) -> None:
        self._loopback_is_validated = settings.loopback_is_validated
        self._unvalidated = Bucket(settings.unvalidated_bytes_per_s, now_ms)
        self._validated: OrderedDict[Address, float] = OrderedDict()
        self._plain: dict[Address, PlainPeer] = {}

    # Proof.

    def validate(self, now_ms: float, address: Address) -> None:
        self._validated[address] = now_ms + _VALIDATED_MS
        self._validated.move_to_end(address)
        if len(self._validated) > _VALIDATED_MAX:
            self._validated.popitem(last=False)

    def is_validated(self, now_ms: float, address: Address) -> bool:
        if self._loopback_is_validated and is_loopback(address):
            return True
        return self._validated.get(address, float("-inf")) > now_ms

    def reply_bytes_max(self, now_ms: float, address: Address, question_bytes: int, bytes_max: int) -> int:
        """Return the maximum length of a reply to a packet."""
        if self.is_validated(now_ms, address):
            return bytes_max
        return min(bytes_max, question_bytes + SLACK_BYTES)

    def may_send(self, now_ms: float, address: Address, size: int) -> bool:
        """Return whether the rate limit allows a packet."""
        return self.is_validated(now_ms, address) or self._unvalidated.take(now_ms, size + _HEADERS_BYTES)

    # Plain subscribers.

    def add(self, now_ms: float, address: Address) -> None:
        self._plain.setdefault(address, PlainPeer(now_ms))

    def remove(self, address: Address) -> None:
        self._plain.pop(address, None)

    def note_heard(self, now_ms: float, address: Address) -> None:
        """The address has sent a packet."""
        peer = self._plain.get(address)
        if peer is not None:
            peer.heard_ms, peer.credit, peer.strikes = now_ms, UNPROVED_MESSAGES, 0

    def take_credit(self, now_ms: float, address: Address) -> bool:
        """Count one message to the address. False: it got too many without sending a packet."""
        peer = self._plain.get(address)
        if peer is None or self.is_validated(now_ms, address):
            return peer is not None
        peer.credit -= 1
        return peer.credit >= 0

    def strike(self, now_ms: float, address: Address) -> bool:
        """Its host reports that nobody listens there. Returns whether it is gone."""
        peer = self._plain.get(address)
        if peer is None or now_ms - peer.struck_ms < _STRIKE_MS:
            return False
        peer.strikes += 1
        peer.struck_ms = now_ms
        return peer.strikes >= _STRIKES

    def silent(self, now_ms: float) -> list[Address]:
        """Return addresses that were not heard for too long. On loopback, strikes tell who is gone."""
        return [
            address
            for address, peer in self._plain.items()
            if now_ms - peer.heard_ms > PLAIN_SILENT_MS and not self.is_validated(now_ms, address)
        ]
