"""One round's decisions: requests stepped through the engine, gets woken, events drafted. Sends nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from oncemq.broker.event_log import is_logged, log_level, log_lines
from oncemq.broker.group_builder import GroupBuilder
from oncemq.broker.request import Job
from oncemq.broker.waiting import WaitingRequest, WaitingRequests, WaitTarget, wait_ms_of
from oncemq.engine.decide.ticks import TICK_BYTES_MAX
from oncemq.engine.engine import ApplyFailed, Decision, Engine, need_bytes
from oncemq.engine.events import (
    Acked,
    Committed,
    CommittedPart,
    Delayed,
    Event,
    Expired,
    Extended,
    Joined,
    Leased,
    OwnerLeft,
    PatternOwnerChanged,
    PatternSought,
    PatternUnsubscribed,
    Settled,
    Staged,
    Stored,
    Transacted,
    Trimmed,
)
from oncemq.journal.contract import WriteSlot
from oncemq.protocol.batch import checksum
from oncemq.protocol.commands import Command, Envelope, Get, GetAny, Health, Leave, Read, Take, payloads_of
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import WAIT_MS_MAX
from oncemq.protocol.replies import Done, HealthReply, NotNow, Refusal, TakeReply

log = logging.getLogger("oncemq.broker")

_NO_ROOM = WriteSlot(0, 0, 0)
_BRINGING = Get | GetAny | Take | Read
#: Nobody waits for these.
_QUIET = frozenset((Acked, Delayed, Expired, Extended, Joined, Leased, OwnerLeft, Staged, Trimmed))


class Round:
    def __init__(
        self,
        engine: Engine,
        group: GroupBuilder,
        waiting: WaitingRequests,
        counters: Counter[str],
        health: Callable[[int], HealthReply],
    ) -> None:
        self.finished: list[Job] = []
        #: The group can't take the next command: it must wait for the next round.
        self.full = False
        self._engine = engine
        self._group = group
        self._waiting = waiting
        self._counters = counters
        self._health = health
        #: Places with somebody waiting at which something happened, in its order.
        self._stirred: dict[WaitTarget, None] = {}
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
            if isinstance(command := commands[slot], Leave) and isinstance(decision.reply, Done):
                self._dismiss(command)
            if decision.waits_for and (wait_ms := wait_ms_of(job)):
                job.settle_start(decision)
                self._park(job, decision.waits_for, self._group.now_ms + min(wait_ms, WAIT_MS_MAX))
                return
            job.answer(decision)
        self.finished.append(job)

    def _dismiss(self, leave: Leave) -> None:
        """Who has left must not be given anything more."""
        parked = self._waiting.take_member(leave.topic_id, leave.subscriber, leave.member)
        if parked is not None:
            parked.job.answer(Decision(TakeReply(leave.topic_id, 0, 0)))
            self.finished.append(parked.job)

    def tick(self) -> bool:
        """What time has brought about. False: something has, and there is no room in this group."""
        due_ms = self._engine.next_tick_ms()
        if due_ms is None or due_ms > self._group.now_ms:
            return True
        place = self._group.next_slot(TICK_BYTES_MAX)
        if place is None or place.room_bytes <= 0:
            return place is not None
        need = TICK_BYTES_MAX
        for event in self._engine.tick(self._group.now_ms):
            self._record(event, need)
            need = 0
            if is_logged(event):
                self._tell(log_lines(self._engine.state, event))
        self._stirred.update(dict.fromkeys(self._engine.take_ready()))
        return True

    def wake_unserved(self) -> None:
        """Before anything else needs room, or one full group after the other would keep them waiting."""
        unserved, self._waiting.unserved = self._waiting.unserved, {}
        for place in unserved:
            self._wake(place)

    def wake(self) -> None:
        """Answer the parked requests that have something now, or whose time is over."""
        for place in list(self._stirred):
            self._wake(place)
        for parked in self._waiting.take_expired(self._group.now_ms):
            self._finish(parked.job)
        for job in self._replaced:
            self._finish(job)

    def _wake(self, place: WaitTarget) -> None:
        #: Shared subscriptions that have nothing more: their other members need not look.
        exhausted: set[tuple[str, int]] = set()
        for parked in self._waiting.take_place(place):
            command = parked.job.request.commands[0]
            group = (command.subscriber, command.epoch) if isinstance(command, Take) else None
            if group in exhausted or not self._look_again(parked):
                self._waiting.put_back(parked)
                if group is not None:
                    exhausted.add(group)

    def _look_again(self, parked: WaitingRequest) -> bool:
        """False: there is nothing for it, or no room in the group."""
        decision = self._look(parked.job)
        if decision is None:
            self._waiting.unserved[parked.key[0]] = None
        if decision is None or decision.waits_for:
            return False
        parked.job.answer(decision)
        self.finished.append(parked.job)
        return True

    def _look(self, job: Job) -> Decision | None:
        """None: no room in this group."""
        command = job.request.commands[0]
        if isinstance(command, Take):
            # What it leases is recorded.
            return self._step(command, ())
        # A parked get or read records nothing, so it needs no room in the group.
        return self._decide(_NO_ROOM, command)

    def _finish(self, job: Job) -> None:
        """Answer with what there is, be it nothing."""
        decision = self._look(job)
        job.answer(decision or Decision(NotNow("OVERLOADED", "there is no room in this group; ask again")))
        self.finished.append(job)

    def _park(self, job: Job, place: WaitTarget, deadline_ms: int) -> None:
        replaced = self._waiting.park(job, place, deadline_ms)
        if replaced is not None:
            self._replaced.append(replaced)

    def _step(self, command: Command, payloads: tuple[Frame, ...]) -> Decision | None:
        """None: no room in this group."""
        need = need_bytes(command)
        place = self._group.next_slot(need)
        if place is None:
            return None
        if isinstance(command, Health):
            return Decision(self._health(self._group.now_ms))
        envelopes = payloads_of(command) if payloads else ()
        for envelope, payload in zip(envelopes, payloads, strict=True):
            if checksum(payload) != envelope.checksum:
                return Decision(NotNow("DAMAGED_IN_TRANSIT", "the payload does not match its checksum"))
        decision = self._decide(place, command)
        event = decision.event
        if event is not None:
            self._record(event, need)
            if payloads:
                self._add_payloads(event, envelopes, payloads)
        return decision

    def _decide(self, place: WriteSlot, command: Command) -> Decision:
        try:
            decision = self._engine.step(self._group.now_ms, place, command)
        except ApplyFailed:
            raise
        except Exception:
            log.exception("a command could not be decided: %s", type(command).__name__)
            return Decision(Refusal("BROKER_BUG", "the broker failed while it decided; its log says more"))
        if is_logged(decision.event, decision.reply):
            self._tell(log_lines(self._engine.state, decision.event, decision.reply, command), log_level(command))
        return decision

    def _tell(self, lines: list[str], level: int = logging.INFO) -> None:
        self._group.log_lines += [(level, line) for line in lines]

    def _add_payloads(self, event: Event, envelopes: tuple[Envelope, ...], payloads: tuple[Frame, ...]) -> None:
        stored = [part for part in _parts(event) if isinstance(part, Stored | Staged | Delayed)]
        # A refusal stores nothing; otherwise there is one part for each payload.
        for part, envelope, payload in zip(stored, envelopes, payloads, strict=bool(stored)):
            if part.position:
                self._group.add_payload(part, envelope.count, envelope.checksum, payload)

    def _record(self, event: Event, need: int) -> None:
        self._group.add(event, need)
        if self._waiting:
            self._stir(event)

    def _stir(self, event: Event) -> None:
        """Whoever waits for what this is about may look again."""
        if isinstance(event, PatternUnsubscribed | PatternOwnerChanged | PatternSought):
            self._stirred[(event.pattern, event.subscriber)] = None
        if isinstance(event, PatternUnsubscribed):
            # Topics may have gone with it.
            known = self._engine.state.topics_by_id
            self._stirred.update((topic_id, None) for topic_id in self._waiting.topics() if topic_id not in known)
        for part in _parts(event):
            if type(part) not in _QUIET and not self._leaves_nothing(part):
                self._stir_topic(getattr(part, "topic_id", 0))

    def _leaves_nothing(self, part: Event | CommittedPart) -> bool:
        """Workers that settle must not wake those that wait for work each time."""
        return isinstance(part, Settled) and not self._engine.has_work(self._group.now_ms, part)

    def _stir_topic(self, topic_id: int) -> None:
        if topic_id in self._waiting:
            self._stirred[topic_id] = None
        topic = self._engine.state.topics_by_id.get(topic_id)
        for subscription in topic.attached.values() if topic is not None else ():
            pattern = subscription.pattern
            if pattern is not None and (place := (pattern.pattern, pattern.subscriber)) in self._waiting:
                self._stirred[place] = None


def _parts(event: Event) -> tuple[Event | CommittedPart, ...]:
    if isinstance(event, Transacted):
        return event.parts
    return (event.parts or (event,)) if isinstance(event, Committed) else (event,)
