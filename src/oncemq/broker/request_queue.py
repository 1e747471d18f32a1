"""Requests that have arrived and are not finished: one queue per peer, and the order in which peers take turns.

The requests of one peer are decided in the order of their arrival, because sessions number their commands. Different
peers take turns, so that the requests of one peer do not keep the others waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from oncemq.broker.request import Request
from oncemq.protocol.frames import Frame

#: When this many requests or bytes wait, a peer can add only what its share allows. A client has at most 24 MiB in
#: flight, and the HTTP gateway 64 MiB by default, so one that is alone is never refused.
QUEUE_REQUESTS_MAX = 1_000
QUEUE_BYTES_MAX = 96 * 1024 * 1024


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
        self._requests = 0
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of requests that have not been begun."""
        return self._requests

    def __bool__(self) -> bool:
        return bool(self._by_peer)

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

    def add(self, peer: bytes, frames: Sequence[Frame]) -> None:
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
        """Let all peers have a turn. Those that had none in the last round come first."""
        self._turns += self._after_turn
        self._after_turn.clear()

    def continue_round(self) -> None:
        """Let peers have another turn if there are no others."""
        if not self._turns:
            self.start_round()

    def next_turn(self) -> PeerQueue | None:
        """Return a peer that has had no turn in this round."""
        return self._turns.popleft() if self._turns else None

    def end_turn(self, queue: PeerQueue, *, is_blocked: bool = False) -> None:
        """End a turn. With `is_blocked`, there was no space for the peer's first command: it is the first one again."""
        if not len(queue):
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
        self._requests = self._bytes = 0
        return queues
