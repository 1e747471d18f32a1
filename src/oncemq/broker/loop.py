"""The broker's loop. `run_once` holds the central guarantee: take requests, decide, append, sync, and only then send.

All requests that arrive during one sync share the next one. This module knows neither sockets nor files nor the wall
clock: network, journal and clock are interfaces, and the simulator runs this same code.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from oncemq.broker.batch_reader import BatchReader
from oncemq.broker.clock import Clock, start_clock
from oncemq.broker.group_builder import GroupBuilder
from oncemq.broker.housekeeping import Housekeeping, Policy
from oncemq.broker.network import Network
from oncemq.broker.recovery import count_missing_extents, fitting, recover
from oncemq.broker.requests.request import Request
from oncemq.broker.requests.request_queue import PeerQueue, RequestQueue
from oncemq.broker.requests.waiting import WaitingRequests
from oncemq.broker.requests.work import RefusalBudget, units_of_header
from oncemq.broker.round import Round
from oncemq.broker.security.caller import Caller
from oncemq.broker.security.security import Security
from oncemq.broker.sql_projection import project
from oncemq.journal.contract import Group, Journal
from oncemq.protocol import errors
from oncemq.protocol.commands import As, AuthReload, Command, Health, Login, PlainCommand
from oncemq.protocol.frames import Frame, decode_request, encode_not_now, encode_refusal
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import Done, HealthReply, LoginReply, NotNow, Refusal, Reply
from oncemq.protocol.text_hint import hint_for_text
from oncemq.protocol.version import __version__

log = logging.getLogger("oncemq.broker")

#: After this long without a new group, an empty group confirms the last one (docs/journal.md).
CONFIRM_IDLE_MS = 50
#: The longest wait of the loop, so that housekeeping runs at least this often.
LOOP_WAIT_MS_MAX = 500
#: How often idle time is recorded while `clock_leap_ms_max` passes.
_TIME_RECORDS_PER_LEAP = 4
#: A clean stop records the time if nothing was recorded for this long.
_RECORD_TIME_AT_STOP_MS = 60_000
#: While more requests than this wait, a peer that is alone goes on without a look at what has arrived.
_RECEIVE_BELOW = 100
_QUEUE_FULL = errors.Overloaded("too many requests of this connection wait; send it again later")
_WARN_OF_TEXT_EVERY_MS = 60_000


class Broker:
    def __init__(
        self,
        journal: Journal,
        network: Network,
        clock: Clock,
        limits: Limits,
        policy: Policy | None = None,
        *,
        trust_clock: bool = False,
        security: Security | None = None,
    ) -> None:
        """`trust_clock` confirms a leap of the clock (clock.py). Without `security`, everybody may do everything."""
        self.journal = journal
        self.network = network
        self.clock = clock
        self.limits = limits = fitting(limits, journal)
        self.counters: Counter[str] = Counter()
        self.engine = recover(journal, limits, self.counters)
        count_missing_extents(self.engine, journal, self.counters)
        behind_ms = start_clock(clock, self.engine.state.time_ms, limits.clock_leap_ms_max, is_trusted=trust_clock)
        if behind_ms:
            self.counters["clock_behind_ms"] = behind_ms
        #: Idle time is recorded this often, so that the next start does not take it for a leap of the clock.
        self._record_time_every_ms = limits.clock_leap_ms_max // _TIME_RECORDS_PER_LEAP
        self.started_ms = clock.now_ms()
        self.housekeeping = Housekeeping(journal, self.engine, policy or Policy(), self.counters)
        self.reader = BatchReader(journal, self.engine)
        self.waiting = WaitingRequests()
        #: Peers whose connections have ended since the last round, or that have requests in the queue.
        self._gone: list[bytes] = []
        network.when_gone(self._gone.append)
        self.security = security
        if security is not None:
            security.attach(self.engine.state, self.counters, self._users_changed)
        self._answers: dict[type, Callable[[Any, Caller | None], Reply]] = {
            Health: self._health,
            Login: self._login,
            AuthReload: self._reload,
        }
        self._queue = RequestQueue()
        #: Replies to requests that were refused without a decision.
        self._refused: list[tuple[bytes, list[Frame]]] = []
        self._refusal_budget = RefusalBudget()
        #: The last group had no space for the events of a tick: the next group starts with them.
        self._is_tick_late = False
        self._confirm_due_ms: int | None = None
        self._warn_of_text_ms = 0

    def run_once(self, wait_ms: int = 0) -> None:
        """Run one round. Raise JournalFailed or ApplyFailed; then no request of this round was answered."""
        now_ms = self._receive(0 if wait_ms and self.busy else wait_ms)
        journal, network = self.journal, self.network
        builder = GroupBuilder(journal, now_ms, self.limits.group_bytes_max)
        finished, refused = self._decide(builder)
        if builder.events:
            wanted = journal.tables_wanted
            journal.append(builder.build(project(self.engine.state, builder.events, wanted) if wanted else None))
            journal.sync()
        # Nothing is sent before this line: a reply is a promise that its effect is durable.
        for request in finished:
            if network.is_reading(request.peer):
                self._send(request.peer, request.encode_response(self.reader))
        for peer, frames in refused:
            if network.is_reading(peer):
                self._send(peer, frames)
        self._after_round(builder)

    def _send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        # Another broker may have taken over this journal. Then the messages that were read may be out of date.
        self.journal.ensure_not_fenced()
        self.network.send(peer, frames)

    def _receive(self, wait_ms: int) -> int:
        """Take what has arrived, and return the time. What exceeds a peer's share of a full queue is refused at once:
        the requests of other peers may be behind it."""
        queue = self._queue
        is_full = queue.is_full
        arrivals = self.network.take(wait_ms)
        now_ms = self.clock.now_ms()
        security = self.security if self.security is not None and self.security.limits_in_flight else None
        for peer, frames in arrivals:
            if is_full and queue.is_share_used(peer):
                self._refuse(peer, frames)
            elif security is not None and (refusal := security.refuse_in_flight(self.network.caller_of(peer), frames)):
                self._refuse(peer, frames, errors.RateLimited(refusal.text))
            else:
                queue.add(peer, frames, now_ms)
        return now_ms

    def _refuse(self, peer: bytes, frames: Sequence[Frame], why: errors.NotNow = _QUEUE_FULL) -> None:
        """Answer that there are too many requests. What exceeds the budget gets no answer: clients send it again."""
        self.counters["overloaded"] += 1
        if not self._refusal_budget.is_over(peer):
            reply = encode_not_now(frames, why)
            self._refusal_budget.spend(peer, sum(map(len, (*frames[:1], *reply))))
            self._refused.append((peer, reply))

    def _decide(self, builder: GroupBuilder) -> tuple[list[Request], list[tuple[bytes, list[Frame]]]]:
        """Return the requests that are answered in this round, and refusals of requests that were not decided."""
        current = Round(self.engine, builder, self.waiting, self.counters, self._answers, self.clock, self.security)
        if self._is_tick_late:
            current.tick()
        current.wake_unserved()
        self._take_turns(current)
        self._is_tick_late = not current.tick()
        current.wake()
        self.housekeeping.copy_forward(builder)
        refused = self._refused
        if refused:
            self._refused = []
            self._refusal_budget = RefusalBudget()
        return current.finished, refused

    def _take_turns(self, current: Round) -> None:
        """Let each peer with requests have one turn. A peer that is alone goes on until the budget is used up or
        another peer's request arrives."""
        served: set[bytes] = set()
        requests = self._queue
        requests.start_round()
        while not current.full and not current.budget.is_round_over:
            queue = None
            if requests.is_round_open:
                now_ms = self.clock.now_ms()
                current.budget.start_turn(now_ms)
                queue = requests.next_turn(now_ms)
            if queue is not None:
                served.add(queue.peer)
                self._take_turn(current, queue)
            elif requests.has_turns and len(served) == 1:
                if len(requests) < _RECEIVE_BELOW:
                    self._receive(0)
                requests.continue_round()
            else:
                break

    def _take_turn(self, current: Round, queue: PeerQueue) -> None:
        budget = current.budget
        while (queue.arrivals or queue.unfinished) and not current.full and not budget.is_turn_over:
            request = queue.unfinished or self._next_request(current, queue)
            if request is not None:
                queue.unfinished = None if current.advance(request) else request
        # A peer that found no space in the group is the first one in the next round. One that filled it is not.
        self._queue.end_turn(queue, is_blocked=current.full and budget.is_turn_unused)
        if budget.overdraft_units:
            self._queue.charge(queue.peer, budget.overdraft_units, self.clock.now_ms())

    def _next_request(self, current: Round, queue: PeerQueue) -> Request | None:
        """Return the next request of a peer, or None if it can't be decoded."""
        frames = self._queue.take(queue)
        caller = ""
        if self.security is not None:
            caller = self.network.caller_of(queue.peer)
            if self.security.limits_in_flight:
                self.security.note_decided(caller, frames)
        units = units_of_header(frames)
        if units:
            current.budget.spend(units)
        try:
            decoded, payloads = decode_request(frames)
        except errors.Refused as error:
            self.counters["malformed"] += 1
            self._warn_of_text(frames)
            current.budget.spend(1)
            self._refused.append((queue.peer, encode_refusal(frames, error)))
            return None
        commands: tuple[Command, ...] = decoded.commands
        behalves: tuple[As | None, ...] = ()
        if As in map(type, commands):
            commands, behalves = _unwrapped(commands)
        return Request(queue.peer, decoded.request_id, commands, payloads, caller, behalves)

    def _warn_of_text(self, frames: Sequence[Frame]) -> None:
        """Log that a peer uses the wrong listener, at most once a minute."""
        if self.clock.now_ms() >= self._warn_of_text_ms and hint_for_text(frames) is not None:
            self._warn_of_text_ms = self.clock.now_ms() + _WARN_OF_TEXT_EVERY_MS
            log.warning(
                "a peer sends text requests to the native listener; the text listener (--text) understands them"
            )

    def _after_round(self, builder: GroupBuilder) -> None:
        for level, line in builder.log_lines:
            log.log(level, line)
        if builder.events:
            self._confirm_due_ms = builder.now_ms + CONFIRM_IDLE_MS
            self.counters["groups"] += 1
            self.counters["events"] += len(builder.events)
            self.counters["record_bytes"] += builder.record_bytes()
        elif self._confirm_due_ms is not None and builder.now_ms >= self._confirm_due_ms:
            self.journal.confirm()
            self._confirm_due_ms = None
        else:
            self._record_time(builder.now_ms, self._record_time_every_ms)
        if self._gone:
            self._forget_gone()
        if self.security is not None:
            self.security.audit.flush()
        self.housekeeping.after_round(builder)

    def _forget_gone(self) -> None:
        """Drop the waiting requests of peers that are gone. What they have put is executed."""
        gone = self._gone[:]
        self._gone.clear()
        for peer in gone:
            if self._queue.has(peer):
                self._gone.append(peer)
            else:
                self.waiting.drop_peer(peer)

    def _record_time(self, now_ms: int, every_ms: int) -> None:
        """Record the time in an empty group, if nothing was recorded for this long and there is space."""
        recorded_ms = self.engine.state.time_ms
        if recorded_ms and now_ms - recorded_ms >= every_ms and self.journal.next_slot(1).free_bytes:
            self.journal.append(Group(now_ms, b"", ()))
            self.journal.sync()
            self.engine.pass_time(now_ms)

    @property
    def busy(self) -> bool:
        """Whether there is work that can be done without waiting for the network or for time to pass."""
        return bool(self._queue.has_turns or self.waiting.unserved or self.housekeeping.busy)

    @property
    def waiting_bytes(self) -> int:
        """The size of the requests that have arrived and wait for their turn."""
        return self._queue.waiting_bytes

    def wait_ms(self) -> int:
        """Return how long the loop may wait for the network."""
        if self.busy:
            return 0
        soonest_ms = self.housekeeping.next_look_ms
        for due_ms in (
            self._confirm_due_ms,
            self.waiting.next_deadline_ms(),
            self._queue.next_release_ms(),
            self.engine.next_tick_ms(),
        ):
            if due_ms is not None and due_ms < soonest_ms:
                soonest_ms = due_ms
        return max(1, min(soonest_ms - self.clock.now_ms(), LOOP_WAIT_MS_MAX))

    def stop(self) -> None:
        """Answer all requests that were taken, write a snapshot, and close the journal. Raise as `run_once`."""
        self.run_once(0)
        for queue in self._queue.take_all():
            if queue.unfinished is not None:
                self._refuse_rest(queue.unfinished)
            for frames, _ in queue.arrivals:
                self._send(queue.peer, encode_not_now(frames, errors.Stopping("the broker is stopping")))
        for waiting in self.waiting.take_all():
            self._refuse_rest(waiting.request)
        self._record_time(self.clock.now_ms(), _RECORD_TIME_AT_STOP_MS)
        self.housekeeping.last_snapshot()
        self.journal.close()

    def _refuse_rest(self, request: Request) -> None:
        request.refuse_rest(NotNow("STOPPING", "the broker is stopping"))
        self._send(request.peer, request.encode_response(self.reader))

    def _users_changed(self) -> None:
        """Check again what was admitted before: connections, and requests that wait."""
        self.network.drop_invalid()
        self.waiting.try_all()

    def _login(self, command: Login, _: Caller | None) -> Reply:
        return self.security.login(command) if self.security is not None else LoginReply("")

    def _reload(self, _: AuthReload, caller: Caller | None) -> Reply:
        if self.security is None:
            return Refusal("UNSUPPORTED", "this broker has no auth.toml")
        return self.security.reload(caller.name if caller is not None else "") or Done()

    def _health(self, _: Health, caller: Caller | None) -> HealthReply:
        state = self.engine.state
        now_ms = self.clock.now_ms()
        is_viewer = caller is None or caller.is_viewer or caller.is_gateway
        return HealthReply(
            __version__,
            state.broker_id,
            self.journal.describe() if is_viewer else "",
            now_ms,
            now_ms - self.started_ms,
            len(state.topics),
            len(state.sessions),
            self.journal.writable_bytes(),
            dict(self.counters) if is_viewer else {},
        )


def _unwrapped(commands: Sequence[Command]) -> tuple[tuple[PlainCommand, ...], tuple[As | None, ...]]:
    """Return commands without those for whom a gateway sends them, and whom it sends each of them for."""
    plain = tuple(command.command if isinstance(command, As) else command for command in commands)
    return plain, tuple(command if isinstance(command, As) else None for command in commands)
