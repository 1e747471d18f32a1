"""The broker's loop. `run_once` holds the central guarantee: take requests, decide, append, sync, and only then send.

All requests that arrive during one sync share the next one. This module knows neither ZeroMQ nor files nor the wall
clock: network, journal and clock are interfaces, and the simulator runs this same code.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence

from oncemq.broker.clock import Clock, start_clock
from oncemq.broker.group_builder import GroupBuilder
from oncemq.broker.housekeeping import Housekeeping, Policy
from oncemq.broker.network import Arrival, Network
from oncemq.broker.recovery import fitting, recover
from oncemq.broker.request import Request
from oncemq.broker.round import Round
from oncemq.broker.sql_projection import project
from oncemq.broker.waiting import WaitingRequests
from oncemq.journal.contract import Group, Journal
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame, decode_request, encode_refusal
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import HealthReply, NotNow
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
    ) -> None:
        """`trust_clock` confirms a leap of the clock (clock.py)."""
        self.journal = journal
        self.network = network
        self.clock = clock
        self.limits = limits = fitting(limits, journal)
        self.counters: Counter[str] = Counter()
        self.engine = recover(journal, limits, self.counters)
        behind_ms = start_clock(clock, self.engine.state.time_ms, limits.clock_leap_ms_max, is_trusted=trust_clock)
        if behind_ms:
            self.counters["clock_behind_ms"] = behind_ms
        #: Idle time is recorded this often, so that the next start does not take it for a leap of the clock.
        self._record_time_every_ms = limits.clock_leap_ms_max // _TIME_RECORDS_PER_LEAP
        self.started_ms = clock.now_ms()
        self.housekeeping = Housekeeping(journal, self.engine, policy or Policy(), self.counters)
        self.waiting = WaitingRequests()
        self._arrived: deque[Arrival] = deque()
        #: A request of which only a part fitted into the last group.
        self._unfinished: Request | None = None
        #: The last group had no space for the events of a tick: the next group starts with them.
        self._is_tick_late = False
        self._confirm_due_ms: int | None = None

    def run_once(self, wait_ms: int = 0) -> None:
        """Run one round. Raise JournalFailed or ApplyFailed; then no request of this round was answered."""
        if not self._arrived:
            # Otherwise requests stay in ZeroMQ, which pushes back on clients, so that memory stays bounded.
            self._arrived.extend(self.network.take(0 if self.busy else wait_ms))
        builder = GroupBuilder(self.journal, self.clock.now_ms(), self.limits.group_bytes_max)
        finished, refused = self._decide(builder)
        if builder.events:
            rows = project(self.engine.state, builder.events, self.journal.tables_wanted)
            self.journal.append(builder.build(rows))
            self.journal.sync()
        # Nothing is sent before this line: a reply is a promise that its effect is durable.
        for request in finished:
            self._send(request.peer, request.encode_response(self.journal))
        for peer, frames in refused:
            self._send(peer, frames)
        self._after_round(builder)

    def _send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        # Another broker may have taken over this journal. Then the messages that were read may be out of date.
        self.journal.ensure_not_fenced()
        self.network.send(peer, frames)

    def _decide(self, builder: GroupBuilder) -> tuple[list[Request], list[tuple[bytes, list[Frame]]]]:
        """Return the requests that are answered in this round, and refusals of frames that are not a request."""
        current = Round(self.engine, builder, self.waiting, self.counters, self._health)
        refused = []
        if self._is_tick_late:
            current.tick()
        current.wake_unserved()
        while not current.full and (self._unfinished or self._arrived):
            request = self._unfinished
            if request is None:
                peer, frames = self._arrived.popleft()
                try:
                    decoded, payloads = decode_request(frames)
                except errors.Refused as error:
                    self.counters["malformed"] += 1
                    refused.append((peer, encode_refusal(frames, error)))
                    continue
                request = Request(peer, decoded.request_id, decoded.commands, payloads)
            current.advance(request)
            self._unfinished = request if current.full else None
        self._is_tick_late = not current.tick()
        current.wake()
        self.housekeeping.copy_forward(builder)
        return current.finished, refused

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
        self.housekeeping.after_round(builder)

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
        return bool(self._arrived or self._unfinished is not None or self.waiting.unserved or self.housekeeping.busy)

    def wait_ms(self) -> int:
        """Return how long the loop may wait for the network."""
        if self.busy:
            return 0
        now_ms = self.clock.now_ms()
        due = [
            self._confirm_due_ms,
            self.waiting.next_deadline_ms(),
            self.engine.next_tick_ms(),
            self.housekeeping.next_look_ms,
        ]
        soonest_ms = min((time for time in due if time is not None), default=now_ms + LOOP_WAIT_MS_MAX)
        return max(1, min(soonest_ms - now_ms, LOOP_WAIT_MS_MAX))

    def stop(self) -> None:
        """Answer all requests that were taken, write a snapshot, and close the journal. Raise as `run_once`."""
        self.run_once(0)
        for waiting in self.waiting.take_all():
            waiting.request.refuse_rest(NotNow("STOPPING", "the broker is stopping"))
            self._send(waiting.request.peer, waiting.request.encode_response(self.journal))
        self._record_time(self.clock.now_ms(), _RECORD_TIME_AT_STOP_MS)
        self.housekeeping.last_snapshot()
        self.journal.close()

    def _health(self, now_ms: int) -> HealthReply:
        state = self.engine.state
        return HealthReply(
            __version__,
            state.broker_id,
            self.journal.describe(),
            now_ms,
            now_ms - self.started_ms,
            len(state.topics),
            len(state.sessions),
            self.journal.writable_bytes(),
            dict(self.counters),
        )
