"""The decisions of one round: commands go through the engine, events into the group, waiting requests are woken.

It sends nothing and syncs nothing; loop.py does that when the round is over.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from oncemq.broker.clock import Clock
from oncemq.broker.event_log import is_logged, log_level, log_lines
from oncemq.broker.group_builder import NO_SPACE, GroupBuilder
from oncemq.broker.requests.request import Request
from oncemq.broker.requests.waiting import (
    EVERYONE,
    WAITING_PER_PEER_MAX,
    WaitingRequest,
    WaitingRequests,
    WaitTarget,
    wait_ms_of,
)
from oncemq.broker.requests.work import ROUND_UNITS_MAX, WorkBudget, units_of
from oncemq.broker.schema_checks import refuse_values
from oncemq.broker.security.caller import Caller
from oncemq.broker.security.security import OPEN, Authorization, Security
from oncemq.engine.decide.decision import Decision
from oncemq.engine.decide.ticks import TICK_BYTES_MAX
from oncemq.engine.engine import ApplyFailed, Engine
from oncemq.engine.event_bytes import need_bytes, owned_bytes
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
    OwnerClosed,
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
from oncemq.protocol.batch import batch_problem, checksum
from oncemq.protocol.commands import Command, Envelope, Get, GetAny, Leave, Read, Take, payloads_of
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import WAIT_MS_MAX
from oncemq.protocol.replies import Done, NotNow, Refusal, Reply, TakeReply

log = logging.getLogger("oncemq.broker")

_RETURNS_MESSAGES = Get | GetAny | Take | Read
#: Nothing was decided: the client sends these commands again.
_REPLY_FULL = Decision(
    NotNow("OVERLOADED", "this request already returns as much as one reply may hold; send the other commands again")
)
_TURN_OVER = NotNow("OVERLOADED", "the messages before it took the rest of this turn; send it again")
_TOO_MANY_WAIT = Decision(NotNow("OVERLOADED", f"{WAITING_PER_PEER_MAX} requests of this connection wait already"))
#: Events that no waiting request can be waiting for.
_WAKES_NOBODY = frozenset((Acked, Delayed, Expired, Extended, Joined, Leased, OwnerClosed, Staged, Trimmed))


class Round:
    def __init__(
        self,
        engine: Engine,
        builder: GroupBuilder,
        waiting: WaitingRequests,
        counters: Counter[str],
        answers: Mapping[type, Callable[[Any, Caller | None], Reply]],
        clock: Clock,
        security: Security | None = None,
    ) -> None:
        """`answers` has the commands that the engine does not decide."""
        #: Of the turns of peers. Waiting requests that are woken have a budget of their own.
        self.budget = WorkBudget(clock, builder.now_ms)
        self.finished: list[Request] = []
        #: The group has no space for the next command, which must wait for the next round.
        self.full = False
        self._engine = engine
        self._builder = builder
        self._waiting = waiting
        self._counters = counters
        self._answers = answers
        self._clock = clock
        #: None if there are no users.
        self._security = security if security is not None and security.users is not None else None
        #: Targets with waiting requests that an event of this round may have served, in the order of the events.
        self._to_wake: dict[WaitTarget, None] = {}
        self._replaced: list[Request] = []

    def advance(self, request: Request) -> bool:
        """Decide the commands that are left. Return True if the request is finished or waits for messages, and False
        if it continues in the next round."""
        commands, budget = request.commands, self.budget
        for index in range(len(request.replies), len(commands)):
            if budget.is_turn_over:
                return self._interrupt(request)
            command = commands[index]
            if index and self._is_reply_full(request, command):
                request.answer(_REPLY_FULL)
                continue
            decision = self._step(request, index)
            if decision is None:
                self.full = True
                return self._interrupt(request)
            self._counters["commands"] += 1
            budget.spend(units_of(self._engine.state, command, decision))
            if type(command) is Leave and isinstance(decision.reply, Done):
                self._end_take(command)
            if decision.waits_for and (wait_ms := wait_ms_of(request)):
                return self._wait(request, decision, wait_ms)
            request.answer(decision)
        self.finished.append(request)
        return True

    def _interrupt(self, request: Request) -> bool:
        """Return False: the request continues in the next round. One that has found messages is finished instead:
        before its next turn they could be moved or deleted."""
        if not request.has_messages:
            return False
        request.refuse_rest(_TURN_OVER)
        self.finished.append(request)
        return True

    def _is_reply_full(self, request: Request, command: Command) -> bool:
        """Return whether the replies to earlier commands leave no space for the reply to this one."""
        bytes_max = self._engine.limits.get_bytes_max
        fetch_bytes = request.fetch_bytes if isinstance(command, _RETURNS_MESSAGES) else 0
        return request.encoded_bytes + fetch_bytes > bytes_max

    def _wait(self, request: Request, decision: Decision, wait_ms: int) -> bool:
        if not self._waiting.can_wait(request.peer):
            request.answer(_TOO_MANY_WAIT)
            self.finished.append(request)
            return True
        request.fix_position(decision)
        deadline_ms = self._builder.now_ms + min(wait_ms, WAIT_MS_MAX)
        replaced = self._waiting.add(request, decision.waits_for, deadline_ms)
        if replaced is not None:
            self._replaced.append(replaced)
        return True

    def _end_take(self, leave: Leave) -> None:
        """Answer the waiting take of a member that has left: it must not get any more messages."""
        waiting = self._waiting.take_member(leave.topic_id, leave.subscriber, leave.member)
        if waiting is not None:
            waiting.request.answer(Decision(TakeReply(leave.topic_id, 0, 0)))
            self.finished.append(waiting.request)

    def tick(self) -> bool:
        """Record the events that are due by time. Return False if there are some and the group has no space."""
        due_ms = self._engine.next_tick_ms()
        if due_ms is None or due_ms > self._builder.now_ms:
            return True
        slot = self._builder.next_slot(TICK_BYTES_MAX)
        if slot is None or slot.free_bytes <= 0:
            return slot is not None
        need = TICK_BYTES_MAX
        for event in self._engine.tick(self._builder.now_ms):
            self._record(event, need)
            need = 0
            if is_logged(event):
                self._log(log_lines(self._engine.state, event))
        self._to_wake.update(dict.fromkeys(self._engine.take_wakeups()))
        return True

    def wake_unserved(self) -> None:
        """Answer waiting requests that the last group had no space for. This comes first in a round: otherwise a
        series of full groups could keep them waiting."""
        if self._waiting.unserved:
            unserved, self._waiting.unserved = self._waiting.unserved, {}
            self._wake_all(unserved)

    def wake(self) -> None:
        """Answer the waiting requests that have messages now, and those whose deadline has passed."""
        if self._to_wake:
            self._wake_all(dict.fromkeys(self._to_wake, EVERYONE))
        if self._waiting:
            for waiting in self._waiting.take_expired(self._builder.now_ms, ROUND_UNITS_MAX):
                self._finish(waiting.request)
        for request in self._replaced:
            self._finish(request)

    def _wake_all(self, targets: Mapping[WaitTarget, int]) -> None:
        """Wake the given number of requests for each target. What exceeds the budget is left to the next round."""
        budget = WorkBudget(self._clock, self._clock.now_ms())
        for target, count in targets.items():
            if budget.is_round_over:
                self._waiting.unserved[target] = count
            else:
                self._wake(target, count, budget)

    def _wake(self, target: WaitTarget, count: int, budget: WorkBudget) -> None:
        #: Shared subscriptions that have no more messages: their other members need no attempt.
        exhausted: set[tuple[str, int]] = set()
        tried: list[WaitingRequest] = []
        untried = 0
        for index, waiting in enumerate(self._waiting.take_target(target)):
            if index >= count:
                tried.append(waiting)
                continue
            if budget.is_round_over:
                untried += 1
                self._waiting.put_back(waiting)
                continue
            command = waiting.request.commands[0]
            shared = (command.subscriber, command.epoch) if isinstance(command, Take) else None
            if shared in exhausted or not self._retry(waiting, budget):
                tried.append(waiting)
                if shared is not None:
                    exhausted.add(shared)
        # Those that were not tried come first in the next round.
        for waiting in tried:
            self._waiting.put_back(waiting)
        if untried:
            unserved = self._waiting.unserved
            unserved[target] = max(untried, unserved.get(target, 0))

    def _retry(self, waiting: WaitingRequest, budget: WorkBudget) -> bool:
        """Answer a waiting request. Return False if there are no messages for it, or no space in the group."""
        decision = self._decide_again(waiting.request)
        if decision is None:
            self._waiting.unserved[waiting.key[0]] = EVERYONE
            return False
        budget.spend(units_of(self._engine.state, waiting.request.commands[0], decision))
        if decision.waits_for:
            return False
        waiting.request.answer(decision)
        self.finished.append(waiting.request)
        return True

    def _decide_again(self, request: Request) -> Decision | None:
        """Return None if the group has no space."""
        command = request.commands[0]
        if isinstance(command, Take):
            # The leases of a take are recorded.
            return self._step(request, 0)
        caller, refusal, _ = self._authorize(request, 0) if self._security is not None else OPEN
        if refusal is not None:
            return Decision(refusal)
        # A waiting get or read records nothing, so it needs no space in the group.
        return self._decide(NO_SPACE, command, None, caller)

    def _finish(self, request: Request) -> None:
        """Answer with the messages that there are, even if there are none."""
        decision = self._decide_again(request)
        request.answer(decision or Decision(NotNow("OVERLOADED", "the group has no space left; ask again")))
        self.finished.append(request)

    def _authorize(self, request: Request, index: int) -> Authorization:
        assert self._security is not None
        return self._security.authorize(
            request.caller, request.behalf_of(index), request.commands[index], self._builder.now_ms
        )

    def _step(self, request: Request, index: int) -> Decision | None:
        """Decide a command and record its event. Return None if the group has no space."""
        builder = self._builder
        command, payloads = request.commands[index], request.payloads[index]
        need = need_bytes(command)
        if self._security is not None:
            need += owned_bytes(command) if need else 0
        if need > builder.capacity_bytes:
            return Decision(_too_large(need, builder.capacity_bytes))
        slot = builder.next_slot(need)
        if slot is None:
            return None
        caller: Caller | None = None
        refusal: Refusal | NotNow | None = None
        if self._security is not None:
            # Once there is space: a command that waits for the next group is counted once.
            caller, refusal, is_recorded = self._authorize(request, index)
            if refusal is not None and not is_recorded:
                return Decision(refusal)
        if (answer := self._answers.get(type(command))) is not None:
            return Decision(answer(command, caller))
        envelopes = payloads_of(command) if payloads else ()
        for envelope, payload in zip(envelopes, payloads, strict=True):
            if checksum(payload) != envelope.checksum:
                return Decision(NotNow("DAMAGED_IN_TRANSIT", "the payload does not match its checksum"))
            if (problem := batch_problem(payload, envelope.count, envelope.schema_version)) is not None:
                return Decision(Refusal(problem.code, problem.text))
        if refusal is None:
            try:
                refusal = refuse_values(self._engine.state, command, payloads)
            except Exception:
                return _failed(command)
        assert not isinstance(refusal, NotNow)
        decision = self._decide(slot, command, refusal, caller)
        event = decision.event
        if event is not None:
            self._record(event, need)
            if payloads:
                self._add_payloads(event, envelopes, payloads)
            if decision.owned is not None:
                self._builder.add(decision.owned, 0)
            if self._security is not None and type(event) is not Stored:
                self._security.note_change(caller, command, event, builder.now_ms)
        return decision

    def _decide(
        self, slot: WriteSlot, command: Command, refusal: Refusal | None = None, caller: Caller | None = None
    ) -> Decision:
        try:
            decision = self._engine.step(self._builder.now_ms, slot, command, refusal, caller)
        except ApplyFailed:
            raise
        except Exception:
            return _failed(command)
        if is_logged(decision.event, decision.reply):
            self._log(log_lines(self._engine.state, decision.event, decision.reply, command), log_level(command))
        return decision

    def _log(self, lines: list[str], level: int = logging.INFO) -> None:
        self._builder.log_lines += [(level, line) for line in lines]

    def _add_payloads(self, event: Event, envelopes: tuple[Envelope, ...], payloads: tuple[Frame, ...]) -> None:
        if type(event) is Stored:
            if event.position:
                self._builder.add_payload(event, envelopes[0].count, envelopes[0].checksum, payloads[0])
            return
        stored = [part for part in _parts(event) if isinstance(part, Stored | Staged | Delayed)]
        # A refusal stores nothing; otherwise there is one part for each payload.
        for part, envelope, payload in zip(stored, envelopes, payloads, strict=bool(stored)):
            if part.position:
                self._builder.add_payload(part, envelope.count, envelope.checksum, payload)

    def _record(self, event: Event, need: int) -> None:
        self._builder.add(event, need)
        if self._waiting:
            self._note_woken(event)

    def _note_woken(self, event: Event) -> None:
        """Note which waiting requests the event may serve."""
        if isinstance(event, PatternUnsubscribed | PatternOwnerChanged | PatternSought):
            self._to_wake[(event.pattern, event.subscriber)] = None
        if isinstance(event, PatternUnsubscribed):
            # Topics may have been deleted together with it.
            known = self._engine.state.topics_by_id
            self._to_wake.update((topic_id, None) for topic_id in self._waiting.topics() if topic_id not in known)
        for part in _parts(event):
            # Each settle of a worker must not wake all workers that wait for messages: only one that makes some ready.
            if type(part) not in _WAKES_NOBODY and not (
                isinstance(part, Settled) and not self._engine.has_work(self._builder.now_ms, part)
            ):
                self._note_woken_topic(getattr(part, "topic_id", 0))

    def _note_woken_topic(self, topic_id: int) -> None:
        if topic_id in self._waiting:
            self._to_wake[topic_id] = None
        topic = self._engine.state.topics_by_id.get(topic_id)
        for subscription in topic.attached.values() if topic is not None else ():
            pattern = subscription.pattern
            if pattern is not None and (target := (pattern.pattern, pattern.subscriber)) in self._waiting:
                self._to_wake[target] = None


def _failed(command: Command) -> Decision:
    """Log the exception that is handled, and return the reply. Nothing was changed."""
    log.exception("a command could not be decided: %s", type(command).__name__)
    return Decision(Refusal("BROKER_BUG", "the broker failed while it decided; see the broker's log"))


def _too_large(need: int, capacity: int) -> Refusal:
    text = f"the command may need {need} bytes of the journal; a segment of this journal has space for {capacity}"
    return Refusal("TOO_LARGE", text)


def _parts(event: Event) -> tuple[Event | CommittedPart, ...]:
    if isinstance(event, Transacted):
        return event.parts
    return (event.parts or (event,)) if isinstance(event, Committed) else (event,)
