"""The publishers and subscribers that are served, and those that have said hello. It does no I/O."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

from oncemq.gateways.udp.extended.delivery import Delivery
from oncemq.gateways.udp.extended.publisher import Publisher
from oncemq.gateways.udp.settings import UdpSettings
from oncemq.gateways.udp.tokens import Address, source_of

Peer = Publisher | Delivery
#: The user ("" = there are none), and the session, or topic and subscriber.
Identity = tuple[str, ...]

#: Hellos of peers that were replaced: a late copy of one must not take over again.
_SUCCEEDED_MAX = 10_000


class PeerTable:
    def __init__(self, settings: UdpSettings) -> None:
        self._settings = settings
        self._by_epoch: dict[int, Peer] = {}
        self._by_identity: dict[Identity, Peer] = {}
        #: (identity, nonce) of hellos in progress.
        self._greeting: set[tuple[Identity, int]] = set()
        #: Peers and hellos in progress, by source and by user.
        self._source_counts: Counter[str] = Counter()
        self._user_counts: Counter[str] = Counter()
        self._succeeded: OrderedDict[tuple[Identity, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_epoch)

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._by_epoch.values()))

    def of_epoch(self, epoch: int) -> Peer | None:
        return self._by_epoch.get(epoch)

    def of_identity(self, identity: Identity) -> Peer | None:
        return self._by_identity.get(identity)

    def reached_limit(self, address: Address, user: str) -> str:
        """Return which limit prevents another peer; empty if none does."""
        settings = self._settings
        if len(self._by_epoch) + len(self._greeting) >= settings.peers_max:
            return f"the limit of {settings.peers_max} peers is reached"
        if self._source_counts[source_of(address)] >= settings.source_peers_max:
            return f"the limit of {settings.source_peers_max} peers per source is reached"
        if self._user_counts[user] >= settings.user_peers_max:
            return f"the limit of {settings.user_peers_max} peers per user is reached"
        return ""

    # Hellos.

    def begin_greeting(self, identity: Identity, nonce: int, address: Address) -> None:
        self._greeting.add((identity, nonce))
        self._count(identity, address, 1)

    def is_greeting(self, identity: Identity, nonce: int) -> bool:
        return (identity, nonce) in self._greeting

    def end_greeting(self, identity: Identity, nonce: int, address: Address) -> None:
        self._greeting.remove((identity, nonce))
        self._count(identity, address, -1)

    def is_succeeded(self, identity: Identity, nonce: int) -> bool:
        """Return whether the peer with this nonce has left or was replaced."""
        return (identity, nonce) in self._succeeded

    # Peers.

    def add(self, peer: Peer) -> None:
        assert peer.identity not in self._by_identity
        self._by_identity[peer.identity] = self._by_epoch[peer.epoch] = peer
        self._count(peer.identity, peer.address, 1)

    def move(self, peer: Peer, address: Address) -> None:
        self._count(peer.identity, peer.address, -1)
        peer.move(address)
        self._count(peer.identity, address, 1)

    def remove(self, peer: Peer) -> None:
        if self._by_identity.get(peer.identity) is peer:
            del self._by_identity[peer.identity]
            del self._by_epoch[peer.epoch]
            self._count(peer.identity, peer.address, -1)

    def note_succeeded(self, peer: Peer) -> None:
        """A late copy of the peer's hello must be refused."""
        self._succeeded[peer.identity, peer.nonce] = None
        if len(self._succeeded) > _SUCCEEDED_MAX:
            self._succeeded.popitem(last=False)

    def _count(self, identity: Identity, address: Address, change: int) -> None:
        _change(self._source_counts, source_of(address), change)
        if identity[0]:
            _change(self._user_counts, identity[0], change)


def _change(counts: Counter[str], key: str, change: int) -> None:
    counts[key] += change
    if not counts[key]:
        del counts[key]
