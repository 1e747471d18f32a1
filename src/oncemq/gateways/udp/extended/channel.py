"""How the packets of one peer are protected, and for whom the gateway does what they ask for."""

from __future__ import annotations

from oncemq.gateways.udp.extended import macs
from oncemq.gateways.udp.extended.replay_window import ReplayWindow


class Channel:
    """Packets without a MAC: the broker has no users."""

    #: `LoginReply.caller`
    caller = ""
    #: By how much packets become longer.
    overhead_bytes = 0

    @property
    def user(self) -> str:
        """The caller's user; "" = there are none."""
        return self.caller.partition("/")[0]

    def seal(self, packet: bytes) -> bytes:
        """Return a packet of the gateway as it is sent. A packet that is sent again is sealed again."""
        return packet


OPEN = Channel()


class MacChannel(Channel):
    """One session of a peer with an access token. A peer that moves to another address gets new keys, but both sides
    continue to count: no counter is used twice with the same keys."""

    overhead_bytes = macs.TRAILER_BYTES

    def __init__(self, caller: str, token_key: bytes, hello: macs.Envelope, nonce: int) -> None:
        """`hello` and `nonce` are those of the hello that starts the session. It is not verified yet."""
        self.caller = caller
        self.token_id = hello.token_id
        self._hello_counter = hello.counter
        self._sent = 0
        self._received = ReplayWindow()
        self._set_keys(
            hello.token,
            macs.direction_key(token_key, macs.FROM_PEER, hello.token, nonce),
            macs.direction_key(token_key, macs.FROM_GATEWAY, hello.token, nonce),
        )
        self.admit(hello.counter)

    def _set_keys(self, token: int, peer_key: bytes, gateway_key: bytes) -> None:
        #: The address token of the session.
        self.token = token
        self._peer_key, self._gateway_key = peer_key, gateway_key

    def seal(self, packet: bytes) -> bytes:
        self._sent += 1
        return macs.seal(packet, self._gateway_key, self.token_id, self._sent)

    def is_genuine(self, envelope: macs.Envelope, packet: bytes) -> bool:
        """Return whether the peer has made a packet, for this session."""
        return macs.is_genuine(packet, self._peer_key) and envelope.token_id == self.token_id

    def admit(self, counter: int) -> bool:
        """Note a genuine packet. False: it has arrived before."""
        return self._received.admit(counter)

    def renew(self, hello: MacChannel) -> bool:
        """The peer has said hello again, with the same nonce and access token. False: that hello has arrived before."""
        if not self.admit(hello._hello_counter):
            return False
        self._set_keys(hello.token, hello._peer_key, hello._gateway_key)
        return True
