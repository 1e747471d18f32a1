"""Requests that wait for messages (long polls). They are lost in a crash: the client sends them again."""

from __future__ import annotations

import sys
from heapq import heapify, heappop, heappush

from oncemq.broker.requests.request import Request
from oncemq.protocol.commands import Get, GetAny, Read, Take

#: Heap entries of answered requests are removed once there are this many of them and they are half of all entries.
_STALE_MIN = 1_000
#: Requests of one peer that wait at the same time. A gateway is one peer with many callers.
WAITING_PER_PEER_MAX = 10_000

#: Try all requests that wait for a target.
EVERYONE = sys.maxsize

#: What a request waits for: the id of a topic, or a pattern and its subscriber.
WaitTarget = int | tuple[str, str]
_Key = tuple[WaitTarget, object, object]


class WaitingRequest:
    __slots__ = ("deadline_ms", "key", "request")

    def __init__(self, request: Request, key: _Key, deadline_ms: int) -> None:
        self.request = request
        self.key = key
        self.deadline_ms = deadline_ms


def _key(request: Request, target: WaitTarget) -> _Key:
    command = request.commands[0]
    if isinstance(command, Get):
        return target, command.subscriber, None
    if isinstance(command, GetAny):
        return target, None, None
    if isinstance(command, Take):
        return target, command.subscriber, command.member
    return target, request.peer, request.request_id


class WaitingRequests:
    def __init__(self) -> None:
        self._by_target: dict[WaitTarget, dict[_Key, WaitingRequest]] = {}
        #: Targets with requests that the last round did not try, because its budget was used up or its group was full.
        #: The number says how many of them, from the first one on, the next round tries.
        self.unserved: dict[WaitTarget, int] = {}
        #: By deadline. An entry may belong to a request that was answered in the meantime.
        self._heap: list[tuple[int, int, WaitingRequest]] = []
        self._entries = 0
        self._count = 0
        self._by_peer: dict[bytes, dict[WaitingRequest, None]] = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, target: WaitTarget) -> bool:
        return target in self._by_target

    def add(self, request: Request, target: WaitTarget, deadline_ms: int) -> Request | None:
        """Let a request wait. A newer get of the same subscription, or a newer take of the same member, replaces the
        one that waits; the replaced request is returned."""
        key = _key(request, target)
        waiting = self._by_target.setdefault(target, {})
        replaced = waiting.pop(key, None)
        added = waiting[key] = WaitingRequest(request, key, deadline_ms)
        self._entries += 1
        heappush(self._heap, (deadline_ms, self._entries, added))
        self._counted(added)
        if replaced is not None:
            self._uncounted(replaced)
        if len(self._heap) > 2 * self._count + _STALE_MIN:
            self._heap = [entry for entry in self._heap if self._is_waiting(entry[2])]
            heapify(self._heap)
        return replaced.request if replaced is not None else None

    def put_back(self, taken: WaitingRequest) -> None:
        """Let a request wait again that was taken and for which there is nothing yet."""
        self._by_target.setdefault(taken.key[0], {})[taken.key] = taken
        self._counted(taken)

    def take_target(self, target: WaitTarget) -> list[WaitingRequest]:
        """Remove and return all requests that wait for a target."""
        taken = list(self._by_target.pop(target, {}).values())
        for waiting in taken:
            self._uncounted(waiting)
        return taken

    def drop_peer(self, peer: bytes) -> None:
        """Remove all requests of a peer that is gone: nobody would get the replies."""
        for waiting in list(self._by_peer.get(peer, ())):
            self._remove(waiting)

    def take_member(self, topic_id: int, subscriber: str, member: str) -> WaitingRequest | None:
        """Remove and return the waiting take of one member of a shared subscription."""
        taken = self._by_target.get(topic_id, {}).get((topic_id, subscriber, member))
        if taken is not None:
            self._remove(taken)
        return taken

    def _remove(self, waiting: WaitingRequest) -> None:
        target = waiting.key[0]
        del self._by_target[target][waiting.key]
        if not self._by_target[target]:
            del self._by_target[target]
        self._uncounted(waiting)

    def _counted(self, waiting: WaitingRequest) -> None:
        self._count += 1
        self._by_peer.setdefault(waiting.request.peer, {})[waiting] = None

    def _uncounted(self, waiting: WaitingRequest) -> None:
        self._count -= 1
        peer = waiting.request.peer
        del self._by_peer[peer][waiting]
        if not self._by_peer[peer]:
            del self._by_peer[peer]

    def can_wait(self, peer: bytes) -> bool:
        """Return whether one more request of the peer may wait."""
        return len(self._by_peer.get(peer, ())) < WAITING_PER_PEER_MAX

    def take_expired(self, now_ms: int, count_max: int) -> list[WaitingRequest]:
        """Remove and return at most `count_max` requests whose deadline has passed."""
        expired: list[WaitingRequest] = []
        while len(expired) < count_max:
            deadline_ms = self.next_deadline_ms()
            if deadline_ms is None or deadline_ms > now_ms:
                break
            expired.append(heappop(self._heap)[2])
            self._remove(expired[-1])
        return expired

    def next_deadline_ms(self) -> int | None:
        while self._heap:
            deadline_ms, _, waiting = self._heap[0]
            if self._is_waiting(waiting):
                return deadline_ms
            heappop(self._heap)
        return None

    def _is_waiting(self, waiting: WaitingRequest) -> bool:
        return self._by_target.get(waiting.key[0], {}).get(waiting.key) is waiting

    def topics(self) -> list[int]:
        """Return the ids of topics for which a request waits."""
        return [target for target in self._by_target if isinstance(target, int)]

    def try_all(self) -> None:
        """Let the next round decide all of them again."""
        self.unserved.update(dict.fromkeys(self._by_target, EVERYONE))

    def take_all(self) -> list[WaitingRequest]:
        return [waiting for target in list(self._by_target) for waiting in self.take_target(target)]


def wait_ms_of(request: Request) -> int:
    """Return how long a request may wait: 0 unless its only command is one that returns messages."""
    command = request.commands[0]
    if len(request.commands) == 1 and isinstance(command, Get | GetAny | Take | Read):
        return command.wait_ms
    return 0
