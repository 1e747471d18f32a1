"""Planted bugs in the fencing of two brokers on one journal."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.broker.loop import Broker
from oncemq.client.core.failover import Failover
from oncemq.journal.memory import MemoryJournal
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from tests.simulation.bugs.registry import Patch, bug


@bug("a fenced broker still writes")
def append_without_the_term_check() -> Sequence[Patch]:
    def ensure_not_fenced(self: MemoryJournal) -> None:
        if self.term != self._store.term:
            raise errors.JournalFenced

    return [(MemoryJournal, "_check_term", lambda _: None), (MemoryJournal, "ensure_not_fenced", ensure_not_fenced)]


@bug("a fenced broker still answers")
def answer_without_fencing_check() -> Sequence[Patch]:
    def send(self: Broker, peer: bytes, frames: Sequence[Frame]) -> None:
        self.network.send(peer, frames)

    return [(Broker, "_send", send)]


@bug("a client stays connected to a standby until it is active")
def client_stays_with_a_standby() -> Sequence[Patch]:
    def objection(_self: Failover, _replies: object) -> None: ...

    return [(Failover, "objection", objection)]
