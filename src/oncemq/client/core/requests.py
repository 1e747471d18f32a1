"""Which requests are on their way, what they carry, and since when no answer has come.

A request is *live* while its answer is awaited. One that was given up (its commands were sent again, or the
connection was) is still known until its commands are settled: a late answer to it counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from oncemq.client.core.pending import Entry, Sent
from oncemq.protocol.limits import REQUEST_FRAMES_MAX

#: Hellos that were sent in vain and whose late answers are still understood.
_HELLOS_KNOWN_MAX = 4


class Gathering:
    """Which commands share a request: small ones, up to a number of them."""

    def __init__(self, commands_max: int, bytes_max: int) -> None:
        self._commands_max = commands_max
        self._bytes_max = bytes_max
        #: Of the request that is being filled.
        self.entries: list[Entry] = []
        self._bytes = self._frames = 0

    def add(self, entry: Entry) -> list[Entry]:
        """The entries of the request before, if this one begins another."""
        full: list[Entry] = []
        size = entry.payload_bytes
        if self.entries and not self._fits(entry, size):
            full, self.entries = self.entries, []
            self._bytes = self._frames = 0
        self.entries.append(entry)
        self._bytes += size
        self._frames += len(entry.payloads)
        return full

    def _fits(self, entry: Entry, size: int) -> bool:
        return not (
            entry.goes_alone
            or self.entries[-1].goes_alone
            or self._bytes + size > self._bytes_max
            or self._frames + len(entry.payloads) >= REQUEST_FRAMES_MAX
            or len(self.entries) >= self._commands_max
        )


class Requests:
    def __init__(self) -> None:
        self._last_id = 0
        self._known: dict[int, Sent] = {}
        #: In order of sending, so the first is the first to be overdue.
        self._live: dict[int, Sent] = {}
        #: The same for gets that wait: each has its own patience.
        self._parked: dict[int, Sent] = {}
        self._hello_ids: deque[int] = deque()
        self._heard_id = 0
        self._heard_ms = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._live or self._parked)

    def record(self, entries: Sequence[Entry], now_ms: float, patience_ms: float, *, parked: bool = False) -> Sent:
        """A request is about to be sent."""
        self._last_id += 1
        sent = Sent(self._last_id, list(entries), now_ms, patience_ms)
        self._known[sent.request_id] = sent
        (self._parked if parked else self._live)[sent.request_id] = sent
        for entry in entries:
            self._supersede(entry)
            entry.request_ids.append(sent.request_id)
            entry.must_send = False
        return sent

    def record_hello(self, now_ms: float, patience_ms: float, seen: int, *, is_probe: bool = False) -> Sent:
        sent = self.record((), now_ms, patience_ms)
        sent.greeting = seen
        sent.is_probe = is_probe
        self._hello_ids.append(sent.request_id)
        if len(self._hello_ids) > _HELLOS_KNOWN_MAX:
            self._known.pop(self._hello_ids.popleft(), None)
        return sent

    def find(self, request_id: int) -> Sent | None:
        return self._known.get(request_id)

    def is_live(self, sent: Sent) -> bool:
        return sent.request_id in self._live or sent.request_id in self._parked

    def answered(self, sent: Sent, now_ms: float) -> None:
        self._forget_live(sent)
        self._heard_ms = now_ms
        self._heard_id = max(self._heard_id, sent.request_id)
        if sent.greeting >= 0:
            self._known.pop(sent.request_id, None)

    def settled(self, entry: Entry) -> None:
        """Nothing more is expected for this entry."""
        self._supersede(entry)
        for request_id in entry.request_ids:
            sent = self._known.get(request_id)
            if sent is None:
                continue
            sent.open_count -= 1
            if sent.open_count == 0:
                del self._known[request_id]

    def forget(self, entries: Sequence[Entry]) -> None:
        """Answers to what was sent of these, and to hellos, mean nothing any more."""
        for entry in entries:
            self.settled(entry)
            entry.request_ids = []
        while self._hello_ids:
            self._known.pop(self._hello_ids.popleft(), None)

    def _supersede(self, entry: Entry) -> None:
        if not entry.request_ids:
            return
        newest = self._known.get(entry.request_ids[-1])
        if newest is None:
            return
        newest.live_count -= 1
        if newest.live_count == 0:
            self._forget_live(newest)

    def _forget_live(self, sent: Sent) -> None:
        self._live.pop(sent.request_id, None)
        self._parked.pop(sent.request_id, None)

    def abandon(self) -> None:
        """The connection is given up: no answer is awaited any more."""
        self._live.clear()
        self._parked.clear()

    def _due_ms(self, sent: Sent) -> float:
        if self._heard_id > sent.request_id:
            # A later request was answered: this one, or its answer, is probably lost.
            return sent.at_ms + sent.patience_ms
        return max(sent.at_ms, self._heard_ms) + sent.patience_ms

    def next_due_ms(self) -> float:
        """When the first answer is overdue; infinite where none is awaited."""
        due_ms = [self._due_ms(sent) for sent in self._parked.values()]
        first = next(iter(self._live.values()), None)
        if first is not None:
            due_ms.append(self._due_ms(first))
        return min(due_ms, default=float("inf"))

    def overdue(self, now_ms: float) -> list[Sent]:
        return [sent for sent in (*self._live.values(), *self._parked.values()) if self._due_ms(sent) <= now_ms]

    def is_lost_alone(self, sent: Sent) -> bool:
        """The broker answers others: sending this one again will do."""
        return self._heard_id > sent.request_id

    def lose(self, sent: Sent) -> None:
        self._forget_live(sent)
