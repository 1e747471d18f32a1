"""What the gateway knows of the addresses that it talks to: who has proved himself, who was heard when. Pure.

Plain packets prove nothing: anybody can send one with somebody else's address. So an address that has not proved
itself gets little: short replies, and so many messages until it says something again; and all such addresses
together so many bytes a second. Everything here is bounded, and nothing has to survive.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from oncemq.gateways.udp.rates import Bucket
from oncemq.gateways.udp.settings import PLAIN_SILENT_MS, SLACK_BYTES, UNPROVED_MESSAGES, UdpSettings
from oncemq.gateways.udp.tokens import Address, is_loopback

#: What a datagram costs on the wire beside its content.
_HEADERS_BYTES = 28
#: An address stays proved for so long after its last packet with a token.
_PROVED_MS = 600_000
_PROVED_MAX = 10_000
#: An address at which nobody listens, by the word of its own host, that often, is gone.
_STRIKES = 3
#: Strikes within this time are one: a program that starts anew is not gone.
_STRIKE_MS = 1000


class Guest(msgspec.Struct):
    """A plain subscriber's address."""

    heard_ms: float
    #: Messages that it may be sent before it says something, while it has not proved itself.
    credit: int = UNPROVED_MESSAGES
    strikes: int = 0
    struck_ms: float = float("-inf")


class Guests:
    def __init__(self, settings: UdpSettings, now_ms: float) -> None:
        self._loopback_is_proved = settings.loopback_is_proved
        self._unproved = Bucket(settings.unproved_bytes_per_s, now_ms)
        self._proved: OrderedDict[Address, float] = OrderedDict()
        self._plain: dict[Address, Guest] = {}

    # Proof.

    def prove(self, now_ms: float, address: Address) -> None:
        self._proved[address] = now_ms + _PROVED_MS
        self._proved.move_to_end(address)
        if len(self._proved) > _PROVED_MAX:
            self._proved.popitem(last=False)

    def is_proved(self, now_ms: float, address: Address) -> bool:
        if self._loopback_is_proved and is_loopback(address):
            return True
        return self._proved.get(address, float("-inf")) > now_ms

    def reply_bytes_max(self, now_ms: float, address: Address, question_bytes: int, bytes_max: int) -> int:
        """How long a reply to a question may be."""
        if self.is_proved(now_ms, address):
            return bytes_max
        return min(bytes_max, question_bytes + SLACK_BYTES)

    def may_send(self, now_ms: float, address: Address, size: int) -> bool:
        """Any packet at all."""
        return self.is_proved(now_ms, address) or self._unproved.take(now_ms, size + _HEADERS_BYTES)

    # Plain subscribers.

    def add(self, now_ms: float, address: Address) -> None:
        self._plain.setdefault(address, Guest(now_ms))

    def remove(self, address: Address) -> None:
        self._plain.pop(address, None)

    def heard(self, now_ms: float, address: Address) -> None:
        guest = self._plain.get(address)
        if guest is not None:
            guest.heard_ms, guest.credit, guest.strikes = now_ms, UNPROVED_MESSAGES, 0

    def take_credit(self, now_ms: float, address: Address) -> bool:
        """For one message. False: it has had too many without a word."""
        guest = self._plain.get(address)
        if guest is None or self.is_proved(now_ms, address):
            return guest is not None
        guest.credit -= 1
        return guest.credit >= 0

    def strike(self, now_ms: float, address: Address) -> bool:
        """Its host says that nobody listens there. True: it is gone."""
        guest = self._plain.get(address)
        if guest is None or now_ms - guest.struck_ms < _STRIKE_MS:
            return False
        guest.strikes += 1
        guest.struck_ms = now_ms
        return guest.strikes >= _STRIKES

    def silent(self, now_ms: float) -> list[Address]:
        """Those that were not heard for too long. On loopback a strike tells who is gone."""
        return [
            address
            for address, guest in self._plain.items()
            if now_ms - guest.heard_ms > PLAIN_SILENT_MS and not self.is_proved(now_ms, address)
        ]
