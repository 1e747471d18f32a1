"""One round's decisions: requests stepped through the engine, gets woken, events drafted. Sends nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from oncemq.broker.draft import Draft
from oncemq.broker.job import Job
from oncemq.broker.waiting import Parked, WaitingRoom, wait_ms_of
from oncemq.engine import commands as co
from oncemq.engine.engine import ApplyFailed, Decision, Engine, need_bytes
from oncemq.engine.events import Acked, Event, Staged, Stored
from oncemq.engine.replies import GetReply, HealthReply, NotNow, Refusal
from oncemq.engine.ticking import TICK_BYTES_MAX
from oncemq.journal.contract import Place
from oncemq.limits import WAIT_MS_MAX
from oncemq.message import checksum
from oncemq.wire.frames import Frame

log = logging.getLogger("oncemq.broker")

_NO_ROOM = Place(0, 0, 0)


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
        #: Topics with somebody waiting to which something happened.
        self._stirred: set[int] = set()
        self._replaced: list[Job] = []

    def advance(self, job: Job) -> None:
        """Step through what is left of a job; it is finished, parked, or the round is full."""
        commands = job.request.commands
        for slot in range(len(job.replies), len(commands)):
            if job.fetch_bytes > self._engine.limits.get_bytes_max and isinstance(commands[slot], co.Get | co.Read):
                job.answer(NotNow("OVERLOADED", "the gets of one request return no more than that together"))
                continue
            decision = self._step(commands[slot], job.payloads[slot])
            if decision is None:
                self.full = True
                return
            self._counters["commands"] += 1
            if decision.waits_for and (wait_ms := wait_ms_of(job)):
                assert isinstance(decision.reply, GetReply)
                job.settle_start(decision.waits_for, decision.reply.next_position)
                self._park(job, decision.waits_for, self._draft.now_ms + min(wait_ms, WAIT_MS_MAX))
                return
            job.answer(decision.reply, decision.slices)
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

    def wake(self) -> None:
        """Answer the parked gets that have something now, or whose time is over."""
        for topic_id in self._stirred:
            for parked in self._waiting.take_topic(topic_id):
                self._look_again(parked)
        for parked in self._waiting.take_expired(self._draft.now_ms):
            self._finish(parked.job, self._look(parked.job))
        for job in self._replaced:
            self._finish(job, self._look(job))

    def _look_again(self, parked: Parked) -> None:
        decision = self._look(parked.job)
        if decision.waits_for:
            self._waiting.park(parked.job, parked.key[0], parked.deadline_ms)
        else:
            self._finish(parked.job, decision)

    def _look(self, job: Job) -> Decision:
        """A parked get or read records nothing, so it needs no room in the group."""
        return self._engine.step(self._draft.now_ms, _NO_ROOM, job.request.commands[0])

    def _finish(self, job: Job, decision: Decision) -> None:
        job.answer(decision.reply, decision.slices)
        self.finished.append(job)

    def _park(self, job: Job, topic_id: int, deadline_ms: int) -> None:
        replaced = self._waiting.park(job, topic_id, deadline_ms)
        if replaced is not None:
            self._replaced.append(replaced)

    def _step(self, command: co.Command, payload: Frame | None) -> Decision | None:
        """None: no room in this group."""
        need = need_bytes(command)
        place = self._draft.place(need)
        if place is None:
            return None
        if isinstance(command, co.Health):
            return Decision(self._health(self._draft.now_ms))
        envelope = co.carries_payload(command)
        if envelope is not None and payload is not None and checksum(payload) != envelope.checksum:
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
            if envelope is not None and payload is not None and isinstance(event, Stored | Staged) and event.position:
                self._draft.add_payload(event, envelope.count, envelope.checksum, payload)
        return decision

    def _record(self, event: Event, need: int) -> None:
        self._draft.add(event, need)
        if self._waiting and not isinstance(event, Acked):
            topic_id = getattr(event, "topic_id", 0)
            if topic_id in self._waiting:
                self._stirred.add(topic_id)
