"""Gets that wait for something new. Forgotten in a crash: the client asks again."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from oncemq.broker.request import Job
from oncemq.protocol.commands import Get, GetAny, Read, Take

#: Entries of requests that were answered are kept until they are that many and half of all.
_STALE_MIN = 1_000

#: What is waited for: a topic's id, or a pattern and its subscriber.
WaitTarget = int | tuple[str, str]
_Key = tuple[WaitTarget, object, object]


class WaitingRequest:
    __slots__ = ("deadline_ms", "job", "key")

    def __init__(self, job: Job, key: _Key, deadline_ms: int) -> None:
        self.job = job
        self.key = key
        self.deadline_ms = deadline_ms


def _key(job: Job, place: WaitTarget) -> _Key:
    command = job.request.commands[0]
    if isinstance(command, Get):
        return place, command.subscriber, None
    if isinstance(command, GetAny):
        return place, None, None
    if isinstance(command, Take):
        return place, command.subscriber, command.member
    return place, job.peer, job.request.request_id


class WaitingRequests:
    def __init__(self) -> None:
        self._by_place: dict[WaitTarget, dict[_Key, WaitingRequest]] = {}
        #: Places where somebody could not be answered for lack of room in the group: the next round looks again.
        self.unserved: dict[WaitTarget, None] = {}
        #: By deadline. Entries may be of requests that were answered meanwhile.
        self._heap: list[tuple[int, int, WaitingRequest]] = []
        self._entries = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, place: WaitTarget) -> bool:
        return place in self._by_place

    def park(self, job: Job, place: WaitTarget, deadline_ms: int) -> Job | None:
        """A newer get of the same subscription, or take of the same member, replaces a parked one, which is
        returned."""
        key = _key(job, place)
        waiting = self._by_place.setdefault(place, {})
        replaced = waiting.pop(key, None)
        parked = waiting[key] = WaitingRequest(job, key, deadline_ms)
        self._entries += 1
        heappush(self._heap, (deadline_ms, self._entries, parked))
        self._count += replaced is None
        if len(self._heap) > 2 * self._count + _STALE_MIN:
            self._heap = [entry for entry in self._heap if self._is_here(entry[2])]
            heapify(self._heap)
        return replaced.job if replaced is not None else None

    def put_back(self, parked: WaitingRequest) -> None:
        """It was taken, and there is nothing for it yet."""
        self._by_place.setdefault(parked.key[0], {})[parked.key] = parked
        self._count += 1

    def take_place(self, place: WaitTarget) -> list[WaitingRequest]:
        """Everyone who waits there: something happened."""
        taken = list(self._by_place.pop(place, {}).values())
        self._count -= len(taken)
        return taken

    def take_member(self, topic_id: int, subscriber: str, member: str) -> WaitingRequest | None:
        """The take that a member of a shared subscription has parked."""
        waiting = self._by_place.get(topic_id, {})
        parked = waiting.pop((topic_id, subscriber, member), None)
        if parked is not None:
            self._count -= 1
            if not waiting:
                del self._by_place[topic_id]
        return parked

    def take_expired(self, now_ms: int) -> list[WaitingRequest]:
        expired = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            parked = heappop(self._heap)[2]
            waiting = self._by_place[parked.key[0]]
            del waiting[parked.key]
            if not waiting:
                del self._by_place[parked.key[0]]
            self._count -= 1
            expired.append(parked)
        return expired

    def next_deadline_ms(self) -> int | None:
        while self._heap:
            deadline_ms, _, parked = self._heap[0]
            if self._is_here(parked):
                return deadline_ms
            heappop(self._heap)
        return None

    def _is_here(self, parked: WaitingRequest) -> bool:
        return self._by_place.get(parked.key[0], {}).get(parked.key) is parked

    def topics(self) -> list[int]:
        """Ids of topics at which somebody waits."""
        return [place for place in self._by_place if isinstance(place, int)]

    def take_all(self) -> list[WaitingRequest]:
        return [parked for place in list(self._by_place) for parked in self.take_place(place)]


def wait_ms_of(job: Job) -> int:
    """How long a request may wait: only what brings messages, and is alone in it."""
    command = job.request.commands[0]
    if len(job.request.commands) == 1 and isinstance(command, Get | GetAny | Take | Read):
        return command.wait_ms
    return 0
