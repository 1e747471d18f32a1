"""Random operations on a journal in a real PostgreSQL, with crashes and take-overs, compared with a model.

After any crash everything that was synced is there, and nothing else, except the one group whose sync had failed. Live
records can be read. An older term writes nothing.
"""

from __future__ import annotations

from random import Random

import psycopg
import pytest

from oncemq.journal.contract import RecordRef
from oncemq.journal.postgres.journal import PostgresJournal
from oncemq.journal.postgres.standby import open_postgres
from oncemq.journal.worker import StepWorker
from oncemq.protocol import errors
from tests.journal.model import RandomOperations
from tests.journal.rig import SEGMENT_BYTES, begin


class RandomRun(RandomOperations):
    journal: PostgresJournal

    def __init__(self, dsn: str, seed: int) -> None:
        self.random = Random(seed)
        self.dsn = dsn
        self.database = psycopg.connect(dsn, autocommit=True)
        self.guaranteed = []
        self.doubtful: list[bytes] = []
        self.live = {}
        self.doubtful_live: dict[int, tuple[RecordRef, bytes]] = {}
        self.number = 0
        self.former: PostgresJournal | None = None
        self.restart()

    def restart(self) -> None:
        self.worker = StepWorker()
        self.journal = open_postgres(self.dsn, lease_ms=60_000, extent_bytes=SEGMENT_BYTES, worker=self.worker)
        state = self.state_of(self.journal.load())
        with_doubtful = [*self.guaranteed, *self.doubtful]
        assert state in (self.guaranteed, with_doubtful)
        if state == with_doubtful:
            self.guaranteed = state
            self.live.update(self.doubtful_live)
        self.doubtful, self.doubtful_live = [], {}
        found = self.journal.read([wanted for wanted, _ in self.live.values()])
        assert [payload for payload, _ in found] == [payload for _, payload in self.live.values()]

    def crash(self) -> None:
        """Kill the broker, or suspend it while another one takes over."""
        forget = ", backend_pid = 0" if self.random.random() < 0.5 else ""
        self.database.execute(f"update oncemq.journal_lease set expires_at = 'epoch'{forget}".encode())
        self.former = self.journal
        self.journal._stop_renewer()
        self.restart()

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.55:
            self.put()
        elif choice < 0.65:
            self.snapshot()
        elif choice < 0.72:
            self.journal.release(self.live_extents())
        elif choice < 0.85:
            self.worker.advance()
            self.journal.maintain()
        elif choice < 0.9:
            self.forget()
        elif choice < 0.95:
            self.wake_former()
        else:
            self.crash()

    def put(self) -> None:
        self.number += 1
        event = b"event %d" % self.number
        sizes = self.random.choices((10, 300, 3_000, 9_000), k=self.random.choice((0, 1, 1, 2, 3)))
        payloads = [self.random.randbytes(size) for size in sizes]
        self.doubtful = [event]
        wanted = begin(self.journal, payloads, event)
        self.doubtful_live = {one.position: (one, payload) for one, payload in zip(wanted, payloads, strict=True)}
        if self.random.random() < 0.05:
            self.database.execute("select pg_terminate_backend(backend_pid, 10000) from oncemq.journal_lease")
        if self.random.random() < 0.03:
            self.crash()
            return
        try:
            self.journal.sync()
        except errors.JournalFailed:
            self.crash()
            return
        self.guaranteed.append(event)
        self.live.update(self.doubtful_live)
        self.doubtful, self.doubtful_live = [], {}

    def wake_former(self) -> None:
        former, self.former = self.former, None
        if former is not None:
            with pytest.raises(errors.JournalFailed):
                if former._unsynced is None:
                    begin(former, [b"too late"])
                former.sync()

    def close(self) -> None:
        self.crash()
        self.journal.close()
        self.database.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_keep_every_guarantee(postgres: str, seed: int) -> None:
    run = RandomRun(postgres, seed)
    for _ in range(180):
        run.step()
    assert run.journal.term > 3
    run.close()
