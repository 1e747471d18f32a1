"""Answers packets of the extended form: proof of an address, hellos, puts, acks.

Who can't show the token that was sent to his address gets a challenge, which is shorter than any question, and nothing
else. Publishers and subscribers are told apart by their epochs, which the broker gives to one of them only, ever.
"""

from __future__ import annotations

from collections import OrderedDict

from oncemq.gateways.link import expect
from oncemq.gateways.udp.context import Station, clock_ms
from oncemq.gateways.udp.extended import packets
from oncemq.gateways.udp.extended.delivery import Delivery
from oncemq.gateways.udp.extended.publisher import Publisher
from oncemq.gateways.udp.plain.feed import look_up
from oncemq.gateways.udp.settings import PUBLISHER_SILENT_MS, SUBSCRIBER_SILENT_MS, WINDOW
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import commands, errors
from oncemq.protocol.names import refuse_name, refuse_topic_name
from oncemq.protocol.replies import HelloReply, OpenReply

Peer = Publisher | Delivery
Identity = tuple[str, ...]

#: Hellos whose peers were succeeded: a late copy of one must not take over again.
_SUCCEEDED_MAX = 10_000


class ExtendedDesk:
    def __init__(self, station: Station) -> None:
        self._station = station
        self._by_epoch: dict[int, Peer] = {}
        #: Session, or topic and subscriber → whoever is served as such.
        self._by_identity: dict[Identity, Peer] = {}
        self._greeting: set[tuple[Identity, int]] = set()
        self._succeeded: OrderedDict[tuple[Identity, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_epoch)

    def receive(self, packet: bytes, address: Address, *, is_cut: bool = False) -> None:
        """`is_cut`: this is the beginning of a packet that was too long."""
        try:
            request = packets.parse_cut(packet) if is_cut else packets.parse(packet)
        except errors.Refused as error:
            self._station.counters["malformed"] += 1
            self._object(packet, address, error)
            return
        if not self._is_proved(request, address):
            return
        if isinstance(request, packets.Hello):
            self._hello(request, address)
        elif isinstance(request, packets.Bye):
            self._bye(request, address)
        else:
            self._serve(request, address)

    def _object(self, packet: bytes, address: Address, error: errors.OnceMQError) -> None:
        """To whoever has proved himself."""
        token = packets.token_of(packet)
        if self._station.tokens.is_valid(clock_ms(), address, token):
            refused = packets.Refused(0, error.code, error.text)
            self._station.send(packets.answer(token, refused), address)

    def _is_proved(self, request: packets.Request, address: Address) -> bool:
        now_ms = clock_ms()
        if self._station.tokens.is_valid(now_ms, address, request.token):
            self._station.guests.prove(now_ms, address)
            self._station.guests.heard(now_ms, address)
            return True
        self._station.counters["unproved"] += 1
        self._challenge(request, address)
        return False

    def _challenge(self, request: packets.Request, address: Address) -> None:
        """Say hello, with this token."""
        echo = request.nonce if isinstance(request, packets.Hello) else request.token
        token = self._station.tokens.token(clock_ms(), address)
        self._station.send_short(packets.challenge(echo, token), address)

    # Hellos.

    def _hello(self, hello: packets.Hello, address: Address) -> None:
        identity = self._identity(hello)
        known = self._by_identity.get(identity)
        if hello.role == packets.PROVE:
            self._welcome(hello, address, 0, 0, 0)
        elif known is not None and known.nonce == hello.nonce:
            known.move(address)
            self._welcome_peer(hello, known)
        elif (error := self._refuse(hello)) is not None:
            self._station.send(packets.answer(hello.nonce, error), address)
        elif known is None and len(self._by_epoch) + len(self._greeting) >= self._station.settings.peers_max:
            text = f"{self._station.settings.peers_max} peers are served, the limit"
            self._station.send(packets.not_now(hello.nonce, 0, errors.LimitReached.code, text), address)
        elif (identity, hello.nonce) not in self._greeting:
            self._greeting.add((identity, hello.nonce))
            if not self._station.run_errand(self._greet(hello, address)):
                self._greeting.discard((identity, hello.nonce))

    def _refuse(self, hello: packets.Hello) -> packets.Refused | None:
        refusal = refuse_name(hello.name, "name", 200)
        if hello.role == packets.SUBSCRIBER:
            refusal = refusal or refuse_topic_name(hello.topic)
        if refusal is not None:
            return packets.Refused(0, refusal.code, refusal.text)
        if hello.role == packets.SUBSCRIBER and hello.name == self._station.settings.feed_name:
            return packets.Refused(0, errors.NameInvalid.code, f"'{hello.name}' is the gateway itself")
        if hello.epoch == 0 and (self._identity(hello), hello.nonce) in self._succeeded:
            return packets.Refused(0, errors.Fenced.code, f"another '{hello.name}' took over")
        return None

    async def _greet(self, hello: packets.Hello, address: Address) -> None:
        try:
            begin = self._begin_publisher if hello.role == packets.PUBLISHER else self._begin_subscriber
            peer = await begin(hello, address)
        except errors.Refused as error:
            refused = packets.Refused(0, error.code, error.text)
            self._station.send(packets.answer(hello.nonce, refused), address)
        except errors.OnceMQError as error:
            self._station.send(packets.not_now(hello.nonce, 0, error.code, error.text), address)
        else:
            self._admit(peer)
            self._welcome_peer(hello, peer)
        finally:
            self._greeting.discard((self._identity(hello), hello.nonce))

    async def _begin_publisher(self, hello: packets.Hello, address: Address) -> Publisher:
        session = f"{self._station.settings.name}/{hello.name}"
        begun = await self._station.link.ask(commands.Hello(session, hello.epoch, hello.nonce, WINDOW))
        return Publisher(self._station, (session,), hello, expect(begun[0], HelloReply), address, self._drop)

    async def _begin_subscriber(self, hello: packets.Hello, address: Address) -> Delivery:
        link = self._station.link
        # As with plain packets, publishers make topics.
        _check_topic(hello, (await look_up(self._station, hello.topic)).topic_id)
        if not hello.epoch:
            await link.operate(commands.Subscribe(hello.topic, hello.name, hello.position))
        opened = expect(await link.operate(commands.Open(hello.topic, hello.name, former=hello.epoch)), OpenReply)
        _check_topic(hello, opened.topic_id)
        return Delivery(self._station, hello, opened, address, self._drop)

    def _identity(self, hello: packets.Hello) -> Identity:
        if hello.role == packets.PUBLISHER:
            return (f"{self._station.settings.name}/{hello.name}",)
        return (hello.topic, hello.name)

    def _admit(self, peer: Peer) -> None:
        former = self._by_identity.get(peer.identity)
        if former is not None:
            self._retire(former)
        self._by_identity[peer.identity] = self._by_epoch[peer.epoch] = peer

    def _welcome_peer(self, hello: packets.Hello, peer: Peer) -> None:
        self._welcome(hello, peer.address, peer.epoch, peer.topic_id, peer.position)

    def _welcome(self, hello: packets.Hello, address: Address, epoch: int, topic_id: int, position: int) -> None:
        most = self._station.settings.packet_bytes_max
        self._station.send(packets.welcome(hello.nonce, epoch, topic_id, position, WINDOW, most), address)

    # Those who are known.

    def _serve(self, request: packets.Put | packets.Ack, address: Address) -> None:
        peer = self._by_epoch.get(request.epoch)
        if peer is None or peer.address != address:
            self._challenge(request, address)
        elif isinstance(peer, Publisher) and isinstance(request, packets.Put):
            peer.receive(request)
        elif isinstance(peer, Delivery) and isinstance(request, packets.Ack):
            peer.heard(request)
        else:
            self._station.counters["malformed"] += 1

    def _bye(self, bye: packets.Bye, address: Address) -> None:
        peer = self._by_epoch.get(bye.epoch)
        if peer is not None and peer.address != address:
            self._challenge(bye, address)
        elif isinstance(peer, Delivery) and bye.unsubscribes:
            self._station.run_errand(self._unsubscribe(peer))
        elif peer is None and bye.unsubscribes:
            self._challenge(bye, address)
        else:
            if peer is not None:
                self._retire(peer)
            echo = peer.nonce if peer is not None else bye.token
            self._station.send(packets.over(echo, bye.epoch), address)

    async def _unsubscribe(self, peer: Delivery) -> None:
        await self._station.link.operate(commands.Unsubscribe(peer.topic, peer.subscriber))
        self._retire(peer)
        self._station.send(packets.over(peer.nonce, peer.epoch), peer.address)

    def _drop(self, peer: Peer) -> None:
        """Its session, or its subscription, stays at the broker."""
        peer.end()
        if self._by_identity.get(peer.identity) is peer:
            del self._by_identity[peer.identity]
            del self._by_epoch[peer.epoch]

    def _retire(self, peer: Peer) -> None:
        """It left, or another one took its place: a late copy of its hello is not to be followed."""
        self._drop(peer)
        self._succeeded[peer.identity, peer.nonce] = None
        if len(self._succeeded) > _SUCCEEDED_MAX:
            self._succeeded.popitem(last=False)

    def end(self) -> None:
        for peer in list(self._by_epoch.values()):
            self._drop(peer)

    def sweep(self) -> None:
        """Those that have said nothing for too long."""
        now_ms = clock_ms()
        for peer in list(self._by_epoch.values()):
            silent_ms = PUBLISHER_SILENT_MS if isinstance(peer, Publisher) else SUBSCRIBER_SILENT_MS
            if now_ms - peer.heard_ms > silent_ms:
                self._station.counters["peers_silent"] += 1
                self._drop(peer)


def _check_topic(hello: packets.Hello, topic_id: int) -> None:
    """A position belongs to one topic."""
    if hello.topic_id not in (0, topic_id):
        raise errors.TopicGone(f"'{hello.topic}' is another topic by now; its offsets begin anew")
