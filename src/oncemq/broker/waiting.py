"""Gets that wait for something new. Forgotten in a crash: the client asks again."""

from __future__ import annotations

from heapq import heappop, heappush

from oncemq.broker.job import Job
from oncemq.engine.commands import Get, Read

_Key = tuple[int, object, object]


class Parked:
    __slots__ = ("deadline_ms", "job", "key")

    def __init__(self, job: Job, key: _Key, deadline_ms: int) -> None:
        self.job = job
        self.key = key
        self.deadline_ms = deadline_ms


def _key(job: Job, topic_id: int) -> _Key:
    command = job.request.commands[0]
    if isinstance(command, Get):
        return topic_id, command.subscriber, None
    return topic_id, job.peer, job.request.request_id


class WaitingRoom:
    def __init__(self) -> None:
        self._by_topic: dict[int, dict[_Key, Parked]] = {}
        #: By deadline; entries whose request was answered meanwhile are skipped when their turn comes.
        self._heap: list[tuple[int, int, Parked]] = []
        self._entries = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._by_topic

    def park(self, job: Job, topic_id: int, deadline_ms: int) -> Job | None:
        """A newer get of the same subscription replaces a parked one, which is returned."""
        key = _key(job, topic_id)
        waiting = self._by_topic.setdefault(topic_id, {})
        replaced = waiting.pop(key, None)
        parked = waiting[key] = Parked(job, key, deadline_ms)
        self._entries += 1
        heappush(self._heap, (deadline_ms, self._entries, parked))
        self._count += replaced is None
        return replaced.job if replaced is not None else None

    def take_topic(self, topic_id: int) -> list[Parked]:
        """Everyone who waits for a topic: something happened to it."""
        taken = list(self._by_topic.pop(topic_id, {}).values())
        self._count -= len(taken)
        return taken

    def take_expired(self, now_ms: int) -> list[Parked]:
        expired = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            parked = heappop(self._heap)[2]
            waiting = self._by_topic[parked.key[0]]
            del waiting[parked.key]
            if not waiting:
                del self._by_topic[parked.key[0]]
            self._count -= 1
            expired.append(parked)
        return expired

    def next_deadline_ms(self) -> int | None:
        while self._heap:
            deadline_ms, _, parked = self._heap[0]
            if self._by_topic.get(parked.key[0], {}).get(parked.key) is parked:
                return deadline_ms
            heappop(self._heap)
        return None

    def take_all(self) -> list[Parked]:
        return [parked for topic_id in list(self._by_topic) for parked in self.take_topic(topic_id)]


def wait_ms_of(job: Job) -> int:
    """How long a request may wait: only a get or read that is alone in it."""
    command = job.request.commands[0]
    if len(job.request.commands) == 1 and isinstance(command, Get | Read):
        return command.wait_ms
    return 0
