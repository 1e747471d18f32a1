"""Random operations on a journal, with crashes anywhere, compared with a model of what was guaranteed.

The guarantees: after any crash everything that was synced is there, and nothing else, except the one group whose sync
had not returned. What recovery has returned stays. Cut bytes stay. Live records can be read. The loss of a segment is
detected.
"""

from __future__ import annotations

from random import Random

import msgspec

from oncemq.journal.contract import Journal, LoadedJournal, RecordRef
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.worker import StepWorker
from oncemq.protocol import errors
from tests.journal.rig import SEGMENT_BYTES, begin, open_sim
from tests.simulation.environment.disk import SimCrash, SimDisk
from tests.simulation.environment.segment_loss import is_loss_detected

_encode = msgspec.msgpack.encode


class Damage(Exception):
    """The journal broke a guarantee."""


class RandomOperations:
    """The random operations, which are the same for every journal."""

    journal: Journal
    #: Events that were synced, or returned by recovery.
    guaranteed: list[bytes]
    live: dict[int, tuple[RecordRef, bytes]]

    def snapshot(self) -> None:
        writer = self.journal.begin_snapshot()
        if writer is not None:
            state = _encode(self.guaranteed)
            for at in range(0, len(state), 700):
                writer.add(state[at : at + 700])
            writer.finish()

    def forget(self) -> None:
        """As if all old messages had been acked."""
        newest = max(self.live, default=0)
        self.live = {position: entry for position, entry in self.live.items() if newest - position < SEGMENT_BYTES}

    def live_extents(self) -> dict[int, int]:
        return {position // SEGMENT_BYTES: 1 for position in self.live}

    @staticmethod
    def state_of(loaded: LoadedJournal) -> list[bytes]:
        """Return all events, in order."""
        state = msgspec.msgpack.decode(b"".join(loaded.snapshot or [_encode([])]), type=list[bytes])
        return state + [group.events for group in loaded.groups if group.events]


class RandomRun(RandomOperations):
    journal: FileJournal

    def __init__(self, seed: int, skip_labels: frozenset[str] = frozenset()) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(Random(seed + 1))
        self.disk.skip_labels |= skip_labels
        self.guaranteed = []
        self.doubtful: list[bytes] = []
        self.live = {}
        self.doubtful_live: list[tuple[RecordRef, bytes]] = []
        self.cut: dict[str, bytes] = {}
        self.number = 0
        #: The last segment that holds a guaranteed event.
        self.promised_segment = 0
        # Three kinds of runs: with many crashes; with few, so that much is recycled between them; with large payloads.
        self.crash_rate = 0.005 if seed % 3 == 1 else 0.06
        self.sizes = (3000, 9000, 9000, 20_000) if seed % 3 else (10, 300, 3000, 9000)
        self.restart()

    # Crash and recovery.

    def crash(self) -> None:
        if self.random.random() < 0.4:
            self.disk.kill()
        else:
            self.disk.power_loss()
            if not is_loss_detected(self.disk, self.promised_segment):
                raise Damage("the newest segment was taken away, and nobody noticed")
        if self.random.random() < 0.3:
            # Crash again during recovery.
            self.disk.crash_after(self.random.randrange(12))
            try:
                self.restart()
            except SimCrash:
                self.disk.power_loss()
            else:
                return
        self.restart()

    def restart(self) -> None:
        self.worker = StepWorker()
        try:
            self.journal = open_sim(self.disk, self.worker)
            state = self.state_of(self.journal.load())
        except errors.JournalError as error:
            raise Damage(str(error)) from error
        self._check(state)

    def _check(self, state: list[bytes]) -> None:
        with_doubtful = [*self.guaranteed, *self.doubtful]
        if state not in (self.guaranteed, with_doubtful):
            raise Damage(f"{len(self.guaranteed)} events guaranteed, {len(self.doubtful)} in doubt, {len(state)} found")
        if state == with_doubtful:
            self.guaranteed = with_doubtful
            self.live.update((wanted.position, (wanted, payload)) for wanted, payload in self.doubtful_live)
        self.doubtful, self.doubtful_live = [], []
        self._check_live()
        self._check_cut()

    def _check_live(self) -> None:
        entries = list(self.live.values())
        try:
            found = self.journal.read([wanted for wanted, _ in entries])
        except errors.RecordCorrupt as error:
            raise Damage(str(error)) from error
        if [payload for payload, _ in found] != [payload for _, payload in entries]:
            raise Damage("a record has another payload")

    def _check_cut(self) -> None:
        for path, content in self.cut.items():
            if not self.disk.exists(path) or self.disk.open(path).read(0, len(content)) != content:
                raise Damage(f"{path} was lost")
        for warning in self.journal.warnings:
            path = warning.rpartition(" ")[2]
            if path.startswith("cut/"):
                file = self.disk.open(path)
                self.cut[path] = file.read(0, file.size())

    # Operations.

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.random.random() < self.crash_rate:
                self.disk.crash_after(self.random.randrange(6))
            try:
                self.step()
            except SimCrash:
                self.crash()
        self.crash()

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.55:
            self.put()
        elif choice < 0.65:
            self.snapshot()
        elif choice < 0.72:
            self.journal.release(self.live_extents())
        elif choice < 0.85:
            self.journal.maintain()
            self.worker.advance()
        elif choice < 0.9:
            self.journal.confirm()
        elif choice < 0.97:
            self.forget()
        elif self.random.random() < 10 * self.crash_rate:
            self.crash()

    def put(self) -> None:
        self.number += 1
        event = b"event %d" % self.number
        payloads = [self.random.randbytes(self.random.choice(self.sizes)) for _ in range(self.count())]
        self.doubtful = [event]
        wanted = begin(self.journal, payloads, event)
        self.doubtful_live = list(zip(wanted, payloads, strict=True))
        if self.random.random() < self.crash_rate:
            self.crash()
            return
        self.journal.sync()
        self.guaranteed.append(event)
        self.promised_segment = self.journal._segments.active
        self.live.update((one.position, (one, payload)) for one, payload in self.doubtful_live)
        self.doubtful, self.doubtful_live = [], []

    def count(self) -> int:
        return self.random.choice((0, 1, 1)) if self.sizes[-1] > 9000 else self.random.choice((0, 1, 1, 2, 3))
