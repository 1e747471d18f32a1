"""One round's decisions: requests stepped through the engine, gets woken, events drafted. Sends nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from oncemq.broker.draft import Draft
from oncemq.broker.job import Job
from oncemq.broker.waiting import Parked, WaitingRoom, wait_ms_of
from oncemq.broker.waiting import Place as WaitingPlace
from oncemq.engine import commands as co
from oncemq.engine.engine import ApplyFailed, Decision, Engine, need_bytes
from oncemq.engine.events import (
    Acked,
    Delayed,
    Event,
    Extended,
    Leased,
    PatternOwnerChanged,
    PatternSought,
    PatternUnsubscribed,
    Staged,
    Stored,
    Transacted,
)
from oncemq.engine.replies import HealthReply, NotNow, Refusal
from oncemq.engine.ticking import TICK_BYTES_MAX
from oncemq.journal.contract import Place
from oncemq.limits import WAIT_MS_MAX
from oncemq.message import checksum
from oncemq.wire.frames import Frame

log = logging.getLogger("oncemq.broker")

_NO_ROOM = Place(0, 0, 0)
_BRINGING = co.Get | co.GetAny | co.Take | co.Read
#: Nobody waits for these.
_QUIET = Acked | Delayed | Extended | Leased


class Round:
    def __init__(
        self,
        engine: Engine,
        draft: Draft,
        waiting: WaitingRoom,
        counters: Counter[str],
        health: Callable[[int], HealthReply],
    ) -> None:
        self.finished: list[Job] = []
        #: The group can't take the next command: it must wait for the next round.
        self.full = False
        self._engine = engine
        self._draft = draft
        self._waiting = waiting
        self._counters = counters
        self._health = health
        #: Places with somebody waiting at which something happened.
        self._stirred: set[WaitingPlace] = set()
        self._replaced: list[Job] = []

    def advance(self, job: Job) -> None:
        """Step through what is left of a job; it is finished, parked, or the round is full."""
        commands = job.request.commands
        for slot in range(len(job.replies), len(commands)):
            if job.fetch_bytes > self._engine.limits.get_bytes_max and isinstance(commands[slot], _BRINGING):
                text = "the gets of one request return no more than that together"
                job.answer(Decision(NotNow("OVERLOADED", text)))
                continue
            decision = self._step(commands[slot], job.payloads[slot])
            if decision is None:
                self.full = True
                return
            self._counters["commands"] += 1
            if decision.waits_for and (wait_ms := wait_ms_of(job)):
                job.settle_start(decision)
                self._park(job, decision.waits_for, self._draft.now_ms + min(wait_ms, WAIT_MS_MAX))
                return
            job.answer(decision)
        self.finished.append(job)

    def tick(self) -> None:
        """What time has brought about."""
        due_ms = self._engine.next_tick_ms()
        if due_ms is None or due_ms > self._draft.now_ms:
            return
        place = self._draft.place(TICK_BYTES_MAX)
        if place is None or place.room_bytes <= 0:
            return
        need = TICK_BYTES_MAX
        for event in self._engine.tick(self._draft.now_ms):
            self._record(event, need)
            need = 0
        self._stirred |= self._engine.take_ready()

    def wake(self) -> None:
        """Answer the parked requests that have something now, or whose time is over."""
        stirred = self._stirred | self._waiting.unserved
        self._waiting.unserved = set()
        for place in stirred:
            for parked in self._waiting.take_place(place):
                self._look_again(parked)
        for parked in self._waiting.take_expired(self._draft.now_ms):
            self._finish(parked.job)
        for job in self._replaced:
            self._finish(job)

    def _look_again(self, parked: Parked) -> None:
        decision = self._look(parked.job)
        if decision is None or decision.waits_for:
            self._waiting.park(parked.job, parked.key[0], parked.deadline_ms)
            if decision is None:
                self._waiting.unserved.add(parked.key[0])
            return
        parked.job.answer(decision)
        self.finished.append(parked.job)

    def _look(self, job: Job) -> Decision | None:
        command = job.request.commands[0]
        if isinstance(command, co.Take):
            # What it leases is recorded.
            return self._step(command, ())
        # A parked get or read records nothing, so it needs no room in the group.
        return self._engine.step(self._draft.now_ms, _NO_ROOM, command)

    def _finish(self, job: Job) -> None:
        """Answer with what there is, be it nothing."""
        decision = self._look(job)
        job.answer(decision or Decision(NotNow("OVERLOADED", "there is no room in this group; ask again")))
        self.finished.append(job)

    def _park(self, job: Job, place: WaitingPlace, deadline_ms: int) -> None:
        replaced = self._waiting.park(job, place, deadline_ms)
        if replaced is not None:
            self._replaced.append(replaced)

    def _step(self, command: co.Command, payloads: tuple[Frame, ...]) -> Decision | None:
        """None: no room in this group."""
        need = need_bytes(command)
        place = self._draft.place(need)
        if place is None:
            return None
        if isinstance(command, co.Health):
            return Decision(self._health(self._draft.now_ms))
        envelopes = co.payloads_of(command) if payloads else ()
        for envelope, payload in zip(envelopes, payloads, strict=True):
            if checksum(payload) != envelope.checksum:
                return Decision(NotNow("DAMAGED_IN_TRANSIT", "the payload does not match its checksum"))
        try:
            decision = self._engine.step(self._draft.now_ms, place, command)
        except ApplyFailed:
            raise
        except Exception:
            log.exception("a command could not be decided: %s", type(command).__name__)
            return Decision(Refusal("BROKER_BUG", "the broker failed while it decided; its log says more"))
        event = decision.event
        if event is not None:
            self._record(event, need)
            if payloads:
                self._add_payloads(event, envelopes, payloads)
        return decision

    def _add_payloads(self, event: Event, envelopes: tuple[co.Envelope, ...], payloads: tuple[Frame, ...]) -> None:
        stored = [part for part in _parts(event) if isinstance(part, Stored | Staged | Delayed)]
        # A refusal stores nothing; otherwise there is one part for each payload.
        for part, envelope, payload in zip(stored, envelopes, payloads, strict=bool(stored)):
            if part.position:
                self._draft.add_payload(part, envelope.count, envelope.checksum, payload)

    def _record(self, event: Event, need: int) -> None:
        self._draft.add(event, need)
        if self._waiting:
            self._stir(event)

    def _stir(self, event: Event) -> None:
        """Whoever waits for what this is about may look again."""
        for part in _parts(event):
            if isinstance(part, _QUIET):
                continue
            topic_id = getattr(part, "topic_id", 0)
            if topic_id in self._waiting:
                self._stirred.add(topic_id)
            topic = self._engine.state.topics_by_id.get(topic_id)
            patterns = [entry.pattern for entry in topic.attached.values()] if topic is not None else []
            self._stirred |= {
                (entry.pattern, entry.subscriber)
                for entry in patterns
                if entry is not None and (entry.pattern, entry.subscriber) in self._waiting
            }
        if isinstance(event, PatternUnsubscribed | PatternOwnerChanged | PatternSought):
            self._stirred.add((event.pattern, event.subscriber))


def _parts(event: Event) -> tuple[Event, ...]:
    return event.parts if isinstance(event, Transacted) else (event,)
