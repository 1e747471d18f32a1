"""Verifies packets with a MAC, and passes those that are genuine to the server.

What is not verified changes nothing. It gets no answer, with two exceptions, both shorter than what they answer:

- A hello without a valid address token gets a challenge, before its MAC is verified. So the broker is asked for an
  access token only if its sender receives packets at its address. Otherwise anybody could use up the attempts to log in
  that an address has.
- A limited number of hellos is told that the sender is not authenticated, so that people see why nothing happens.

Neither has a MAC. Because of the first, peers only say hello again. Because of the second, they give up only if they
were never welcome.
"""

from __future__ import annotations

import struct

from oncemq.gateways.udp.callers import Callers, Known
from oncemq.gateways.udp.context import UdpContext, clock_ms, log
from oncemq.gateways.udp.extended import macs, packets
from oncemq.gateways.udp.extended.channel import MacChannel
from oncemq.gateways.udp.extended.server import ExtendedServer
from oncemq.gateways.udp.one_time_tokens import OneTimeTokens
from oncemq.gateways.udp.rates import Bucket, Failures
from oncemq.gateways.udp.settings import FAILURES_PER_S, HINTS_PER_S
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors

_HELLO = struct.Struct(">BQ")
_U64 = struct.Struct(">Q")
_HEAD_BYTES = 10
#: No hello with a MAC is longer.
_HELLO_BYTES_MAX = 640
#: All other requests begin with an epoch.
_OTHERS = (packets.PUT, packets.ACK, packets.BYE)


class Authenticator:
    def __init__(self, context: UdpContext, callers: Callers, server: ExtendedServer) -> None:
        self._context = context
        self._callers = callers
        self._server = server
        self._tokens = OneTimeTokens()
        self._failures = Failures(FAILURES_PER_S)
        self._hints = Bucket(HINTS_PER_S, clock_ms())
        self._warnings = Bucket(1, clock_ms())

    def refuse_open(self, packet: bytes, address: Address) -> None:
        """Drop a packet without a MAC: the broker has users."""
        self._context.counters["unauthenticated"] += 1
        if packet[1:2] == bytes([packets.HELLO]) and len(packet) >= _HEAD_BYTES + _HELLO.size:
            self._hint(_nonce_of(packet), len(packet), address, errors.Unauthenticated.code)

    def receive(self, packet: bytes, address: Address) -> None:
        """Handle a packet with a MAC."""
        envelope = macs.parse(packet)
        size = len(packet) - macs.TRAILER_BYTES - _HEAD_BYTES
        if envelope is None:
            self._context.counters["malformed"] += 1
        elif envelope.kind == packets.HELLO and _HELLO.size <= size <= _HELLO_BYTES_MAX:
            self._hello(packet, envelope, address)
        elif envelope.kind in _OTHERS and size >= _U64.size:
            self._request(packet, envelope, address)
        else:
            self._context.counters["malformed"] += 1

    # Hellos.

    def _hello(self, packet: bytes, envelope: macs.Envelope, address: Address) -> None:
        now_ms = clock_ms()
        if not self._tokens.is_valid(now_ms, address, envelope.token):
            self._challenge(_nonce_of(packet), address)
        elif self._failures.are_too_many(now_ms, address):
            self._context.counters["dropped_failures"] += 1
        elif (known := self._callers.known(_id_of(envelope))) is not None:
            self._verify(packet, envelope, address, known)
        elif self._callers.is_busy:
            self._context.counters["dropped_busy"] += 1
        else:
            # A lookup counts as a failure, whatever its result is: it costs more.
            self._failures.note(now_ms, address)
            work = self._look_up(packet, envelope, address)
            self._context.run_for_packet(work, "looking up an access token", lambda _: None, address, len(packet))

    async def _look_up(self, packet: bytes, envelope: macs.Envelope, address: Address) -> None:
        self._verify(packet, envelope, address, await self._callers.find(_id_of(envelope), address))

    def _verify(self, packet: bytes, envelope: macs.Envelope, address: Address, known: Known) -> None:
        nonce = _nonce_of(packet)
        if known.caller == "":
            self._hint(nonce, len(packet), address, errors.Unsupported.code, "no users: omit the MAC")
            return
        # The MAC of an unknown access token is compared too, so that the time does not tell which ones exist.
        channel = MacChannel(known.caller or "", known.key, envelope, nonce)
        if not channel.is_genuine(envelope, packet) or known.caller is None:
            self._context.counters["unverified"] += 1
            self._failures.note(clock_ms(), address)
            if self._warnings.take(clock_ms()):
                why = "its MAC is wrong" if known.caller is not None else "nobody has this token"
                log.warning("a hello from %s with the token id %r is dropped: %s", address[0], _id_of(envelope), why)
            self._hint(nonce, len(packet), address, errors.Unauthenticated.code)
            return
        self._note_genuine(address)
        hello = self._parse(packet, nonce, address, channel)
        if not isinstance(hello, packets.Hello):
            return
        if not self._server.is_known(hello, channel) and not self._tokens.use(clock_ms(), envelope.token, nonce):
            self._context.counters["replayed"] += 1
            self._challenge(nonce, address)
            return
        self._server.handle(hello, address, channel)

    # Requests of known peers.

    def _request(self, packet: bytes, envelope: macs.Envelope, address: Address) -> None:
        [epoch] = _U64.unpack_from(packet, _HEAD_BYTES)
        peer = self._server.peers.of_epoch(epoch)
        channel = peer.channel if peer is not None and peer.address == address else None
        if not isinstance(channel, MacChannel) or channel.token != envelope.token:
            self._challenge(envelope.token, address)
        elif not channel.is_genuine(envelope, packet):
            # Whoever forges the address of a peer must not be able to silence it, so its packets are still verified
            # when there are many failures.
            self._context.counters["unverified"] += 1
        elif not channel.admit(envelope.counter):
            self._context.counters["replayed"] += 1
        else:
            assert peer is not None
            self._note_genuine(address)
            request = self._parse(packet, peer.nonce, address, channel)
            if request is not None:
                self._server.handle(request, address, channel)

    def _note_genuine(self, address: Address) -> None:
        now_ms = clock_ms()
        self._context.peers.validate(now_ms, address)
        self._context.peers.note_heard(now_ms, address)

    def _parse(self, packet: bytes, nonce: int, address: Address, channel: MacChannel) -> packets.Request | None:
        try:
            return packets.parse(macs.opened(packet))
        except errors.Refused as error:
            self._context.counters["malformed"] += 1
            refused = packets.answer(nonce, packets.Refused(0, error.code, error.text))
            self._context.send(channel.seal(refused), address)
            return None

    # Answers without a MAC.

    def _challenge(self, echo: int, address: Address) -> None:
        self._context.counters["unvalidated"] += 1
        token = self._tokens.token(clock_ms(), address)
        self._context.send_short(packets.challenge(echo, token), address)

    def _hint(self, nonce: int, request_bytes: int, address: Address, code: str, text: str = "") -> None:
        packet = packets.answer(nonce, packets.Refused(0, code, text))
        if len(packet) <= request_bytes and self._hints.take(clock_ms()):
            self._context.send_short(packet, address)


def _nonce_of(hello: bytes) -> int:
    return int(_HELLO.unpack_from(hello, _HEAD_BYTES)[1])


def _id_of(envelope: macs.Envelope) -> str:
    return envelope.token_id.decode("latin-1")
