"""Serves packets of the extended form: proofs of addresses, hellos, puts, acks.

A packet without the token that was sent to its address gets only a challenge, which is shorter than any request.
Publishers and subscribers are identified by their epochs, which are unique at the broker. authenticator.py verifies
packets with a MAC before they come here.
"""

from __future__ import annotations

from collections.abc import Coroutine

from oncemq.gateways.subscription import open_subscription
from oncemq.gateways.udp.callers import Callers
from oncemq.gateways.udp.context import FAILED, UdpContext, clock_ms
from oncemq.gateways.udp.extended import packets
from oncemq.gateways.udp.extended.channel import OPEN, Channel, MacChannel
from oncemq.gateways.udp.extended.delivery import Delivery
from oncemq.gateways.udp.extended.peer_table import Identity, Peer, PeerTable
from oncemq.gateways.udp.extended.publisher import Publisher
from oncemq.gateways.udp.plain.feed import find_topic_end
from oncemq.gateways.udp.settings import PUBLISHER_SILENT_MS, SUBSCRIBER_SILENT_MS, WINDOW
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import commands, errors
from oncemq.protocol.names import refuse_name, refuse_topic_name
from oncemq.protocol.replies import HelloReply


class ExtendedServer:
    def __init__(self, context: UdpContext, callers: Callers) -> None:
        self._context = context
        self._callers = callers
        self.peers = PeerTable(context.settings)

    # Packets without a MAC.

    def receive(self, packet: bytes, address: Address, *, is_cut: bool = False) -> None:
        """Handle a packet without a MAC. `is_cut`: it is the beginning of a packet that was too long."""
        try:
            request = packets.parse_cut(packet) if is_cut else packets.parse(packet)
        except errors.Refused as error:
            self._context.counters["malformed"] += 1
            self._refuse_malformed(packet, address, error)
            return
        if self._is_validated(request, address):
            self.handle(request, address, OPEN)

    def _refuse_malformed(self, packet: bytes, address: Address, error: errors.OnceMQError) -> None:
        """Only addresses that are validated get an answer."""
        token = packets.token_of(packet)
        if self._context.tokens.is_valid(clock_ms(), address, token):
            refused = packets.Refused(0, error.code, error.text)
            self._context.send(packets.answer(token, refused), address)

    def _is_validated(self, request: packets.Request, address: Address) -> bool:
        now_ms = clock_ms()
        if self._context.tokens.is_valid(now_ms, address, request.token):
            self._context.peers.validate(now_ms, address)
            self._context.peers.note_heard(now_ms, address)
            return True
        self._context.counters["unvalidated"] += 1
        self._challenge(request, address)
        return False

    def _challenge(self, request: packets.Request, address: Address) -> None:
        """Tell a peer to say hello with this token."""
        echo = request.nonce if isinstance(request, packets.Hello) else request.token
        token = self._context.tokens.token(clock_ms(), address)
        self._context.send_short(packets.challenge(echo, token), address)

    def handle(self, request: packets.Request, address: Address, channel: Channel) -> None:
        """Handle a request from an address that is validated. If it is not a hello, the channel is that of a peer."""
        if isinstance(request, packets.Hello):
            self._hello(request, address, channel)
        elif isinstance(request, packets.Bye):
            self._bye(request, address, channel)
        else:
            self._serve(request, address, channel)

    # Hellos.

    def is_known(self, hello: packets.Hello, channel: Channel) -> bool:
        """Return whether a hello is a repetition of one whose peer is served, or will be."""
        if hello.role == packets.PROVE:
            return False
        identity = self._identity(hello, channel)
        peer = self.peers.of_identity(identity)
        return (peer is not None and peer.nonce == hello.nonce) or self.peers.is_greeting(identity, hello.nonce)

    def _hello(self, hello: packets.Hello, address: Address, channel: Channel) -> None:
        identity = self._identity(hello, channel)
        known = self.peers.of_identity(identity)
        if hello.role == packets.PROVE and not hello.topic:
            self._welcome(hello, address, channel, 0, 0, 0)
        elif hello.role == packets.PROVE:
            self._run(self._tell_end(hello, address, channel), hello.nonce, address, channel)
        elif known is not None and known.nonce == hello.nonce:
            self._hello_again(hello, address, channel, known)
        elif (error := self._refuse(hello, identity)) is not None:
            self._send(packets.answer(hello.nonce, error), address, channel)
        elif known is None and (limit := self.peers.reached_limit(address, channel.user)):
            self._send(packets.not_now(hello.nonce, 0, errors.LimitReached.code, limit), address, channel)
        elif not self.peers.is_greeting(identity, hello.nonce):
            self.peers.begin_greeting(identity, hello.nonce, address)
            if not self._run(self._greet(hello, address, channel), hello.nonce, address, channel):
                self.peers.end_greeting(identity, hello.nonce, address)

    def _hello_again(self, hello: packets.Hello, address: Address, channel: Channel, peer: Peer) -> None:
        if peer.channel.caller != channel.caller:
            refused = packets.Refused(0, errors.Unauthenticated.code, "a peer with another access token has this nonce")
            self._send(packets.answer(hello.nonce, refused), address, channel)
            return
        if isinstance(peer.channel, MacChannel) and isinstance(channel, MacChannel) and not peer.channel.renew(channel):
            self._context.counters["replayed"] += 1
            return
        self.peers.move(peer, address)
        self._welcome_peer(hello, peer)

    def _send(self, packet: bytes, address: Address, channel: Channel) -> None:
        self._context.send(channel.seal(packet), address)

    def _run(self, work: Coroutine[None, None, None], nonce: int, address: Address, channel: Channel) -> bool:
        """Start the work for a packet of a peer that is not served yet, or is about to leave."""
        refused = packets.answer(nonce, packets.Refused(0, FAILED.code, FAILED.text))

        def tell(_: BaseException) -> None:
            self._send(refused, address, channel)

        return self._context.run_for_packet(work, "an extended packet", tell, address)

    def _refuse(self, hello: packets.Hello, identity: Identity) -> packets.Refused | None:
        refusal = refuse_name(hello.name, "name", 200)
        if hello.role == packets.SUBSCRIBER:
            refusal = refusal or refuse_topic_name(hello.topic)
        if refusal is not None:
            return packets.Refused(0, refusal.code, refusal.text)
        if hello.role == packets.SUBSCRIBER and hello.name == self._context.settings.feed_name:
            return packets.Refused(0, errors.NameInvalid.code, f"'{hello.name}' is the gateway's own name")
        if hello.epoch == 0 and self.peers.is_succeeded(identity, hello.nonce):
            return packets.Refused(0, errors.Fenced.code, f"another '{hello.name}' has taken over")
        return None

    async def _greet(self, hello: packets.Hello, address: Address, channel: Channel) -> None:
        identity = self._identity(hello, channel)
        try:
            start = self._start_publisher if hello.role == packets.PUBLISHER else self._start_subscriber
            peer = await start(hello, address, channel, identity)
        except errors.OnceMQError as error:
            self._decline(hello, address, channel, error)
        else:
            former = self.peers.of_identity(identity)
            if former is not None:
                self._retire(former)
            self.peers.add(peer)
            self._welcome_peer(hello, peer)
        finally:
            self.peers.end_greeting(identity, hello.nonce, address)

    async def _tell_end(self, hello: packets.Hello, address: Address, channel: Channel) -> None:
        """Answer a hello that asks for the end of a topic."""
        try:
            found = await find_topic_end(self._callers.link(channel.caller), hello.topic)
        except errors.OnceMQError as error:
            self._decline(hello, address, channel, error)
        else:
            self._welcome(hello, address, channel, 0, found.topic_id, found.end_offset)

    def _decline(self, hello: packets.Hello, address: Address, channel: Channel, error: errors.OnceMQError) -> None:
        if isinstance(error, errors.Refused):
            packet = packets.answer(hello.nonce, packets.Refused(0, error.code, error.text))
        else:
            packet = packets.not_now(hello.nonce, 0, error.code, error.text)
        self._send(packet, address, channel)

    async def _start_publisher(
        self, hello: packets.Hello, address: Address, channel: Channel, identity: Identity
    ) -> Publisher:
        link = self._callers.link(channel.caller)
        _, session = identity
        reply = await link.query(commands.Hello(session, hello.epoch, hello.nonce, WINDOW), HelloReply)
        return Publisher(self._context, link, channel, identity, hello, reply, address, self._drop)

    async def _start_subscriber(
        self, hello: packets.Hello, address: Address, channel: Channel, identity: Identity
    ) -> Delivery:
        link = self._callers.link(channel.caller)
        # As with plain packets, only publishers create topics.
        _check_topic(hello, (await find_topic_end(link, hello.topic)).topic_id)
        if not hello.epoch:
            await link.operate(commands.Subscribe(hello.topic, hello.name, hello.position))
        subscription = await open_subscription(link, hello.topic, hello.name, former=hello.epoch)
        _check_topic(hello, subscription.topic_id)
        return Delivery(self._context, channel, identity, hello, subscription, address, self._drop)

    def _identity(self, hello: packets.Hello, channel: Channel) -> Identity:
        if hello.role == packets.PUBLISHER:
            # No user's name contains a slash, so two users never have the same session.
            owner = f"{channel.user}/" if channel.user else ""
            return channel.user, f"{self._context.settings.name}/{owner}{hello.name}"
        return channel.user, hello.topic, hello.name

    def _welcome_peer(self, hello: packets.Hello, peer: Peer) -> None:
        self._welcome(hello, peer.address, peer.channel, peer.epoch, peer.topic_id, peer.position)

    def _welcome(
        self, hello: packets.Hello, address: Address, channel: Channel, epoch: int, topic_id: int, position: int
    ) -> None:
        limit = self._context.settings.packet_bytes_max
        self._send(packets.welcome(hello.nonce, epoch, topic_id, position, WINDOW, limit), address, channel)

    # Requests of known peers.

    def _serve(self, request: packets.Put | packets.Ack, address: Address, channel: Channel) -> None:
        peer = self.peers.of_epoch(request.epoch)
        if peer is None or peer.address != address or peer.channel is not channel:
            self._challenge(request, address)
        elif isinstance(peer, Publisher) and isinstance(request, packets.Put):
            peer.receive(request)
        elif isinstance(peer, Delivery) and isinstance(request, packets.Ack):
            peer.note_ack(request)
        else:
            self._context.counters["malformed"] += 1

    def _bye(self, bye: packets.Bye, address: Address, channel: Channel) -> None:
        peer = self.peers.of_epoch(bye.epoch)
        if peer is not None and (peer.address != address or peer.channel is not channel):
            self._challenge(bye, address)
        elif isinstance(peer, Delivery) and bye.unsubscribes:
            self._run(self._unsubscribe(peer), peer.nonce, address, channel)
        elif peer is None and bye.unsubscribes:
            self._challenge(bye, address)
        else:
            if peer is not None:
                self._retire(peer)
            echo = peer.nonce if peer is not None else bye.token
            self._send(packets.over(echo, bye.epoch), address, channel)

    async def _unsubscribe(self, peer: Delivery) -> None:
        link = self._callers.link(peer.channel.caller)
        await link.operate(commands.Unsubscribe(peer.topic, peer.subscriber))
        self._retire(peer)
        self._send(packets.over(peer.nonce, peer.epoch), peer.address, peer.channel)

    # The end.

    def _drop(self, peer: Peer) -> None:
        """Stop serving a peer. Its session or subscription stays at the broker."""
        peer.end()
        self.peers.remove(peer)

    def _retire(self, peer: Peer) -> None:
        """A peer has left or was replaced: a late copy of its hello must be refused."""
        self._drop(peer)
        self.peers.note_succeeded(peer)

    def end(self) -> None:
        """Stop serving all peers."""
        for peer in self.peers:
            self._drop(peer)

    def sweep(self) -> None:
        """Stop serving peers that were silent for too long, and those without a MAC, if there are users."""
        now_ms = clock_ms()
        for peer in self.peers:
            silent_ms = PUBLISHER_SILENT_MS if isinstance(peer, Publisher) else SUBSCRIBER_SILENT_MS
            if now_ms - peer.heard_ms > silent_ms:
                self._context.counters["peers_silent"] += 1
                self._drop(peer)
            elif peer.channel is OPEN and not self._callers.is_open:
                self._drop(peer)


def _check_topic(hello: packets.Hello, topic_id: int) -> None:
    """A position is valid for one topic only. Raises TopicGone."""
    if hello.topic_id not in (0, topic_id):
        raise errors.TopicGone(f"'{hello.topic}' was deleted and created again; its offsets start at 0 again")
