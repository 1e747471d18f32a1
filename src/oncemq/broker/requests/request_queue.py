"""Requests that have arrived and are not finished: one queue per peer, and the order in which peers take turns.

The requests of one peer are decided in the order of their arrival, because sessions number their commands. Different
peers take turns, so that the requests of one peer do not keep the others waiting. A command is never interrupted, so a
peer whose commands overdraw its turns by far has to wait between them, unless it is alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from oncemq.broker.requests.request import Request
from oncemq.protocol.frames import Frame

#: When this many requests or bytes wait, a peer can add only what its share allows. A client has at most 24 MiB in
#: flight, and the HTTP gateway 64 MiB by default, so one that is alone is never refused.
QUEUE_REQUESTS_MAX = 1_000
QUEUE_BYTES_MAX = 96 * 1024 * 1024

#: How long a peer pays back for each unit beyond its turn. This is twenty times the work (work.py), so repeated heavy
#: commands of one peer get about a twentieth of the time.
PAYBACK_US_PER_UNIT = 200
PAYBACK_MS_MAX = 1_000
#: A peer is active if it had a request within this time.
ACTIVE_MS = 200


class Overdrafts:
    """Peers that have overdrawn a turn. Each one pays back by waiting.

    The first overdraft delays nothing: a client that subscribes to a pattern reads at once, and a gateway, which is one
    peer for many clients, goes on. A further overdraft before the first one is paid back holds the peer.
    """

    def __init__(self) -> None:
        #: Until when each peer pays back.
        self._until_ms: dict[bytes, int] = {}
        self._held: set[bytes] = set()
        #: The peer that was active last, and when one of the others was.
        self._last_peer = b""
        self._last_ms = self._others_ms = -ACTIVE_MS

    def note_active(self, peer: bytes, now_ms: int) -> None:
        if peer != self._last_peer:
            self._others_ms = self._last_ms
            self._last_peer = peer
        self._last_ms = now_ms

    def charge(self, peer: bytes, units: int, now_ms: int) -> None:
        """Let a peer pay back these units, in addition to what it has not paid back yet."""
        self._forget_paid(now_ms)
        paid_ms = self._until_ms.get(peer)
        if paid_ms is not None:
            self._held.add(peer)
        payback_ms = units * PAYBACK_US_PER_UNIT // 1_000
        self._until_ms[peer] = min((paid_ms or now_ms) + payback_ms, now_ms + PAYBACK_MS_MAX)

    def _forget_paid(self, now_ms: int) -> None:
        for peer in [peer for peer, until_ms in self._until_ms.items() if until_ms <= now_ms]:
            del self._until_ms[peer]
            self._held.discard(peer)

    def admits(self, peer: bytes, now_ms: int) -> bool:
        """Return whether a peer may have a turn now."""
        return peer not in self._held or self.held_until_ms(peer) <= now_ms

    def held_until_ms(self, peer: bytes) -> int:
        """Return the time from which a peer may have a turn; 0 = any time. It is held only while others are active."""
        if peer not in self._held:
            return 0
        others_ms = self._others_ms if peer == self._last_peer else self._last_ms
        return min(self._until_ms[peer], others_ms + ACTIVE_MS)


class PeerQueue:
    """The requests of one peer. Only `RequestQueue` changes it, except for `unfinished`."""

    __slots__ = ("arrivals", "arrived_bytes", "peer", "unfinished")

    def __init__(self, peer: bytes) -> None:
        self.peer = peer
        #: The frames of each request, and their size.
        self.arrivals: deque[tuple[Sequence[Frame], int]] = deque()
        self.arrived_bytes = 0
        #: The request that was begun in an earlier turn. It comes before all others.
        self.unfinished: Request | None = None

    def __len__(self) -> int:
        return len(self.arrivals) + (self.unfinished is not None)


class RequestQueue:
    def __init__(self) -> None:
        self._by_peer: dict[bytes, PeerQueue] = {}
        #: Peers that have not had their turn in this round, and those that have and are not finished.
        self._turns: deque[PeerQueue] = deque()
        self._after_turn: deque[PeerQueue] = deque()
        #: Peers that have no turn in this round, because they pay back.
        self._held: deque[PeerQueue] = deque()
        self._overdrafts = Overdrafts()
        self._requests = 0
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of requests that have not been begun."""
        return self._requests

    def has(self, peer: bytes) -> bool:
        """Return whether a peer has requests here."""
        return peer in self._by_peer

    @property
    def has_turns(self) -> bool:
        """Whether a peer can have a turn without waiting for time to pass."""
        return bool(self._turns or self._after_turn)

    @property
    def is_round_open(self) -> bool:
        """Whether a peer has not had its turn in this round."""
        return bool(self._turns)

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    @property
    def is_full(self) -> bool:
        return self._requests >= QUEUE_REQUESTS_MAX or self._bytes >= QUEUE_BYTES_MAX

    def is_share_used(self, peer: bytes) -> bool:
        """Return whether a peer has as many requests or bytes as it may have while the queue is full."""
        queue = self._by_peer.get(peer)
        if queue is None:
            return False
        peers = len(self._by_peer)
        return len(queue) >= QUEUE_REQUESTS_MAX // peers or queue.arrived_bytes >= QUEUE_BYTES_MAX // peers

    def add(self, peer: bytes, frames: Sequence[Frame], now_ms: int) -> None:
        self._overdrafts.note_active(peer, now_ms)
        queue = self._by_peer.get(peer)
        if queue is None:
            queue = self._by_peer[peer] = PeerQueue(peer)
            self._turns.append(queue)
        size = sum(map(len, frames))
        queue.arrivals.append((frames, size))
        queue.arrived_bytes += size
        self._requests += 1
        self._bytes += size

    def take(self, queue: PeerQueue) -> Sequence[Frame]:
        """Remove and return the frames of the next request of a peer."""
        frames, size = queue.arrivals.popleft()
        queue.arrived_bytes -= size
        self._requests -= 1
        self._bytes -= size
        return frames

    # Turns.

    def start_round(self) -> None:
        """Let all peers have a turn. Those that had none in the last round come first, and those that pay back last."""
        if self._after_turn:
            self._turns += self._after_turn
            self._after_turn.clear()
        if self._held:
            self._turns += self._held
            self._held.clear()

    def continue_round(self) -> None:
        """Let peers have another turn if there are no others."""
        if not self._turns:
            self.start_round()

    def next_turn(self, now_ms: int) -> PeerQueue | None:
        """Return a peer that has had no turn in this round, and does not have to wait."""
        while self._turns:
            queue = self._turns.popleft()
            if self._overdrafts.admits(queue.peer, now_ms):
                self._overdrafts.note_active(queue.peer, now_ms)
                return queue
            self._held.append(queue)
        return None

    def next_release_ms(self) -> int | None:
        """Return when the next peer that pays back may have a turn."""
        if not self._held:
            return None
        return min((self._overdrafts.held_until_ms(queue.peer) for queue in self._held), default=None)

    def charge(self, peer: bytes, overdraft_units: int, now_ms: int) -> None:
        """Let a peer pay back what its turn was overdrawn by."""
        self._overdrafts.charge(peer, overdraft_units, now_ms)

    def end_turn(self, queue: PeerQueue, *, is_blocked: bool = False) -> None:
        """End a turn. With `is_blocked`, there was no space for the peer's first command: it is the first one again."""
        if not queue.arrivals and queue.unfinished is None:
            del self._by_peer[queue.peer]
        elif is_blocked:
            self._turns.appendleft(queue)
        else:
            self._after_turn.append(queue)

    def take_all(self) -> list[PeerQueue]:
        """Remove and return the queues of all peers."""
        queues = list(self._by_peer.values())
        self._by_peer.clear()
        self._turns.clear()
        self._after_turn.clear()
        self._held.clear()
        self._requests = self._bytes = 0
        return queues
