"""The loop. The central promise stands in `run_once`: take what has arrived, decide, append, sync, then send.

Everything that arrived during one sync shares the next one. Nothing here knows ZeroMQ, files or the wall
clock: those are seams, and the simulator runs this very code.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence

from oncemq.broker.clock import Clock
from oncemq.broker.group_builder import GroupBuilder
from oncemq.broker.housekeeping import Housekeeping, Policy
from oncemq.broker.network import Arrival, Network
from oncemq.broker.recovery import recover
from oncemq.broker.request import Job
from oncemq.broker.round import Round
from oncemq.broker.sql_projection import project
from oncemq.broker.waiting import WaitingRequests
from oncemq.journal.contract import Journal
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame, decode_request, encode_refusal
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import HealthReply, NotNow
from oncemq.protocol.version import __version__

log = logging.getLogger("oncemq.broker")

#: After so much quiet an empty group confirms the last one (docs/journal.md).
CONFIRM_IDLE_MS = 50
#: The longest wait of the loop: housekeeping looks in that often.
LOOP_WAIT_MS_MAX = 500


class Broker:
    def __init__(
        self, journal: Journal, network: Network, clock: Clock, limits: Limits, policy: Policy | None = None
    ) -> None:
        self.journal = journal
        self.network = network
        self.clock = clock
        self.limits = limits
        self.counters: Counter[str] = Counter()
        self.engine = recover(journal, limits, self.counters)
        clock.not_before(self.engine.state.time_ms)
        self.started_ms = clock.now_ms()
        self.housekeeping = Housekeeping(journal, self.engine, policy or Policy(), self.counters)
        self.waiting = WaitingRequests()
        self._arrived: deque[Arrival] = deque()
        #: A request that did not fit into the last group as a whole.
        self._unfinished: Job | None = None
        #: The last group had no room for what time has brought about: the next begins with it.
        self._is_tick_late = False
        self._confirm_due_ms: int | None = None

    def run_once(self, wait_ms: int = 0) -> None:
        """One round. Raises JournalFailed or ApplyFailed: then nothing of this round was answered."""
        if not self._arrived:
            # Else ZeroMQ holds back what comes, and memory stays bounded.
            self._arrived.extend(self.network.take(0 if self.busy else wait_ms))
        group = GroupBuilder(self.journal, self.clock.now_ms(), self.limits.group_bytes_max)
        finished, refused = self._decide(group)
        if group.events:
            rows = project(self.engine.state, group.events, self.journal.tables_wanted)
            self.journal.append(group.build(rows))
            self.journal.sync()
        # Nothing leaves before this line: a reply is a promise.
        for job in finished:
            self._send(job.peer, job.encode(self.journal))
        for peer, frames in refused:
            self._send(peer, frames)
        self._after_round(group)

    def _send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        # Somebody else may serve this journal by now: then what was read is not ours to tell.
        self.journal.ensure_not_fenced()
        self.network.send(peer, frames)

    def _decide(self, group: GroupBuilder) -> tuple[list[Job], list[tuple[bytes, list[Frame]]]]:
        decider = Round(self.engine, group, self.waiting, self.counters, self._health)
        refused = []
        if self._is_tick_late:
            decider.tick()
        decider.wake_unserved()
        while not decider.full and (self._unfinished or self._arrived):
            job = self._unfinished
            if job is None:
                peer, frames = self._arrived.popleft()
                try:
                    job = Job(peer, *decode_request(frames))
                except errors.Refused as error:
                    self.counters["malformed"] += 1
                    refused.append((peer, encode_refusal(frames, error)))
                    continue
            decider.advance(job)
            self._unfinished = job if decider.full else None
        self._is_tick_late = not decider.tick()
        decider.wake()
        self.housekeeping.copy_forward(group)
        return decider.finished, refused

    def _after_round(self, group: GroupBuilder) -> None:
        for level, line in group.log_lines:
            log.log(level, line)
        if group.events:
            self._confirm_due_ms = group.now_ms + CONFIRM_IDLE_MS
            self.counters["groups"] += 1
            self.counters["events"] += len(group.events)
            self.counters["record_bytes"] += group.record_bytes()
        elif self._confirm_due_ms is not None and group.now_ms >= self._confirm_due_ms:
            self.journal.confirm()
            self._confirm_due_ms = None
        self.housekeeping.after_round(group)

    @property
    def busy(self) -> bool:
        """There is work that waits for nothing."""
        return bool(self._arrived or self._unfinished is not None or self.waiting.unserved or self.housekeeping.busy)

    def wait_ms(self) -> int:
        """How long the loop may wait for the network."""
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
        """Answer what is in hand, and leave a snapshot behind. Raises as `run_once`."""
        self.run_once(0)
        for parked in self.waiting.take_all():
            parked.job.refuse(NotNow("STOPPING", "the broker is stopping"))
            self._send(parked.job.peer, parked.job.encode(self.journal))
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
