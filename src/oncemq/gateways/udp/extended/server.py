"""Answers packets of the extended form: proofs of addresses, hellos, puts, acks.

A packet without the token that was sent to its address gets only a challenge, which is shorter than any request.
Publishers and subscribers are identified by their epochs, which are unique at the broker.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Coroutine

from oncemq.gateways.subscription import open_subscription
from oncemq.gateways.udp.context import FAILED, UdpContext, clock_ms
from oncemq.gateways.udp.extended import packets
from oncemq.gateways.udp.extended.delivery import Delivery
from oncemq.gateways.udp.extended.publisher import Publisher
from oncemq.gateways.udp.plain.feed import find_topic_end
from oncemq.gateways.udp.settings import PUBLISHER_SILENT_MS, SUBSCRIBER_SILENT_MS, WINDOW
from oncemq.gateways.udp.tokens import Address, source_of
from oncemq.protocol import commands, errors
from oncemq.protocol.names import refuse_name, refuse_topic_name
from oncemq.protocol.replies import HelloReply

Peer = Publisher | Delivery
Identity = tuple[str, ...]

#: Hellos of peers that were replaced: a late copy of one must not take over again.
_SUCCEEDED_MAX = 10_000


class ExtendedServer:
    def __init__(self, context: UdpContext) -> None:
        self._context = context
        self._by_epoch: dict[int, Peer] = {}
        #: Session, or topic and subscriber → the peer.
        self._by_identity: dict[Identity, Peer] = {}
        #: (identity, nonce) of hellos in progress.
        self._greeting: set[tuple[Identity, int]] = set()
        #: Peers and hellos in progress.
        self._source_counts: Counter[str] = Counter()
        self._succeeded: OrderedDict[tuple[Identity, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_epoch)

    def receive(self, packet: bytes, address: Address, *, is_cut: bool = False) -> None:
        """Handle a packet. `is_cut`: it is the beginning of a packet that was too long."""
        try:
            request = packets.parse_cut(packet) if is_cut else packets.parse(packet)
        except errors.Refused as error:
            self._context.counters["malformed"] += 1
            self._refuse_malformed(packet, address, error)
            return
        if not self._is_validated(request, address):
            return
        if isinstance(request, packets.Hello):
            self._hello(request, address)
        elif isinstance(request, packets.Bye):
            self._bye(request, address)
        else:
            self._serve(request, address)

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

    # Hellos.

    def _hello(self, hello: packets.Hello, address: Address) -> None:
        identity = self._identity(hello)
        known = self._by_identity.get(identity)
        if hello.role == packets.PROVE and not hello.topic:
            self._welcome(hello, address, 0, 0, 0)
        elif hello.role == packets.PROVE:
            self._run(self._tell_end(hello, address), hello.nonce, address)
        elif known is not None and known.nonce == hello.nonce:
            self._count(known.address, -1)
            known.move(address)
            self._count(address, 1)
            self._welcome_peer(hello, known)
        elif (error := self._refuse(hello)) is not None:
            self._context.send(packets.answer(hello.nonce, error), address)
        elif known is None and (limit := self._reached_limit(address)):
            self._context.send(packets.not_now(hello.nonce, 0, errors.LimitReached.code, limit), address)
        elif (identity, hello.nonce) not in self._greeting:
            self._greeting.add((identity, hello.nonce))
            self._count(address, 1)
            if not self._run(self._greet(hello, address), hello.nonce, address):
                self._end_greeting(hello, address)

    def _reached_limit(self, address: Address) -> str:
        """Return which limit prevents another peer; empty if none does."""
        settings, source = self._context.settings, source_of(address)
        if len(self._by_epoch) + len(self._greeting) >= settings.peers_max:
            return f"the limit of {settings.peers_max} peers is reached"
        if self._source_counts[source] >= settings.source_peers_max:
            return f"the limit of {settings.source_peers_max} peers per source is reached"
        return ""

    def _count(self, address: Address, change: int) -> None:
        source = source_of(address)
        self._source_counts[source] += change
        if not self._source_counts[source]:
            del self._source_counts[source]

    def _end_greeting(self, hello: packets.Hello, address: Address) -> None:
        self._greeting.remove((self._identity(hello), hello.nonce))
        self._count(address, -1)

    def _run(self, work: Coroutine[None, None, None], nonce: int, address: Address) -> bool:
        """Start the work for a packet of a peer that is not served yet, or is about to leave."""
        refused = packets.answer(nonce, packets.Refused(0, FAILED.code, FAILED.text))

        def tell(_: BaseException) -> None:
            self._context.send(refused, address)

        return self._context.run_for_packet(work, "an extended packet", tell, address)

    def _refuse(self, hello: packets.Hello) -> packets.Refused | None:
        refusal = refuse_name(hello.name, "name", 200)
        if hello.role == packets.SUBSCRIBER:
            refusal = refusal or refuse_topic_name(hello.topic)
        if refusal is not None:
            return packets.Refused(0, refusal.code, refusal.text)
        if hello.role == packets.SUBSCRIBER and hello.name == self._context.settings.feed_name:
            return packets.Refused(0, errors.NameInvalid.code, f"'{hello.name}' is the gateway's own name")
        if hello.epoch == 0 and (self._identity(hello), hello.nonce) in self._succeeded:
            return packets.Refused(0, errors.Fenced.code, f"another '{hello.name}' has taken over")
        return None

    async def _greet(self, hello: packets.Hello, address: Address) -> None:
        try:
            start = self._start_publisher if hello.role == packets.PUBLISHER else self._start_subscriber
            peer = await start(hello, address)
        except errors.OnceMQError as error:
            self._decline(hello, address, error)
        else:
            self._admit(peer)
            self._welcome_peer(hello, peer)
        finally:
            self._end_greeting(hello, address)

    async def _tell_end(self, hello: packets.Hello, address: Address) -> None:
        """Answer a hello that asks for the end of a topic."""
        try:
            found = await find_topic_end(self._context, hello.topic)
        except errors.OnceMQError as error:
            self._decline(hello, address, error)
        else:
            self._welcome(hello, address, 0, found.topic_id, found.end_offset)

    def _decline(self, hello: packets.Hello, address: Address, error: errors.OnceMQError) -> None:
        if isinstance(error, errors.Refused):
            packet = packets.answer(hello.nonce, packets.Refused(0, error.code, error.text))
        else:
            packet = packets.not_now(hello.nonce, 0, error.code, error.text)
        self._context.send(packet, address)

    async def _start_publisher(self, hello: packets.Hello, address: Address) -> Publisher:
        session = f"{self._context.settings.name}/{hello.name}"
        command = commands.Hello(session, hello.epoch, hello.nonce, WINDOW)
        reply = await self._context.link.query(command, HelloReply)
        return Publisher(self._context, (session,), hello, reply, address, self._drop)

    async def _start_subscriber(self, hello: packets.Hello, address: Address) -> Delivery:
        link = self._context.link
        # As with plain packets, only publishers create topics.
        _check_topic(hello, (await find_topic_end(self._context, hello.topic)).topic_id)
        if not hello.epoch:
            await link.operate(commands.Subscribe(hello.topic, hello.name, hello.position))
        subscription = await open_subscription(link, hello.topic, hello.name, former=hello.epoch)
        _check_topic(hello, subscription.topic_id)
        return Delivery(self._context, hello, subscription, address, self._drop)

    def _identity(self, hello: packets.Hello) -> Identity:
        if hello.role == packets.PUBLISHER:
            return (f"{self._context.settings.name}/{hello.name}",)
        return (hello.topic, hello.name)

    def _admit(self, peer: Peer) -> None:
        former = self._by_identity.get(peer.identity)
        if former is not None:
            self._retire(former)
        self._by_identity[peer.identity] = self._by_epoch[peer.epoch] = peer
        self._count(peer.address, 1)

    def _welcome_peer(self, hello: packets.Hello, peer: Peer) -> None:
        self._welcome(hello, peer.address, peer.epoch, peer.topic_id, peer.position)

    def _welcome(self, hello: packets.Hello, address: Address, epoch: int, topic_id: int, position: int) -> None:
        limit = self._context.settings.packet_bytes_max
        self._context.send(packets.welcome(hello.nonce, epoch, topic_id, position, WINDOW, limit), address)

    # Requests of known peers.

    def _serve(self, request: packets.Put | packets.Ack, address: Address) -> None:
        peer = self._by_epoch.get(request.epoch)
        if peer is None or peer.address != address:
            self._challenge(request, address)
        elif isinstance(peer, Publisher) and isinstance(request, packets.Put):
            peer.receive(request)
        elif isinstance(peer, Delivery) and isinstance(request, packets.Ack):
            peer.note_ack(request)
        else:
            self._context.counters["malformed"] += 1

    def _bye(self, bye: packets.Bye, address: Address) -> None:
        peer = self._by_epoch.get(bye.epoch)
        if peer is not None and peer.address != address:
            self._challenge(bye, address)
        elif isinstance(peer, Delivery) and bye.unsubscribes:
            self._run(self._unsubscribe(peer), peer.nonce, address)
        elif peer is None and bye.unsubscribes:
            self._challenge(bye, address)
        else:
            if peer is not None:
                self._retire(peer)
            echo = peer.nonce if peer is not None else bye.token
            self._context.send(packets.over(echo, bye.epoch), address)

    async def _unsubscribe(self, peer: Delivery) -> None:
        await self._context.link.operate(commands.Unsubscribe(peer.topic, peer.subscriber))
        self._retire(peer)
        self._context.send(packets.over(peer.nonce, peer.epoch), peer.address)

    def _drop(self, peer: Peer) -> None:
        """Stop serving a peer. Its session or subscription stays at the broker."""
        peer.end()
        if self._by_identity.get(peer.identity) is peer:
            del self._by_identity[peer.identity]
            del self._by_epoch[peer.epoch]
            self._count(peer.address, -1)

    def _retire(self, peer: Peer) -> None:
        """A peer has left or was replaced: a late copy of its hello must be refused."""
        self._drop(peer)
        self._succeeded[peer.identity, peer.nonce] = None
        if len(self._succeeded) > _SUCCEEDED_MAX:
            self._succeeded.popitem(last=False)

    def end(self) -> None:
        """Stop serving all peers."""
        for peer in list(self._by_epoch.values()):
            self._drop(peer)

    def sweep(self) -> None:
        """Stop serving peers that were silent for too long."""
        now_ms = clock_ms()
        for peer in list(self._by_epoch.values()):
            silent_ms = PUBLISHER_SILENT_MS if isinstance(peer, Publisher) else SUBSCRIBER_SILENT_MS
            if now_ms - peer.heard_ms > silent_ms:
                self._context.counters["peers_silent"] += 1
                self._drop(peer)


def _check_topic(hello: packets.Hello, topic_id: int) -> None:
    """A position is valid for one topic only. Raises TopicGone."""
    if hello.topic_id not in (0, topic_id):
        raise errors.TopicGone(f"'{hello.topic}' was deleted and created again; its offsets start at 0 again")
