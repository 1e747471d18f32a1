"""What every client process of a run has: an event log, counters, and options for a patient client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from oncemq.tools.chaos.counters import Counters
from oncemq.tools.chaos.plan import ClientPlan
from oncemq.tools.faults.event_log import EventLog
from oncemq.tools.faults.processes import StopRequest

#: Retries are quick, and go on for longer than a run lasts.
TIMEOUT_S = 0.25
TRIES = 400
#: Kinds of counted messages.
ATTEMPTED, ACKNOWLEDGED, DELIVERED = "attempted", "acknowledged", "delivered"
#: The file with the end offsets of the topics. It exists when all messages have been put.
END_OFFSETS = "ends.json"


def log_path(folder: Path, name: str) -> Path:
    """Return the path of a process's event log."""
    return folder / f"{name}.events"


class RunContext(msgspec.Struct, frozen=True):
    """What all processes of a run share."""

    folder: Path
    seed: int
    #: The address of the proxy.
    url: str
    broker_url: str
    counters: Counters
    #: The folder in which clients record what they do; "" for none.
    record: str
    #: The addresses of the push gateway, if it runs: its feed, and the proxy in front of its ack socket.
    feed: str
    acks: str

    def log_path(self, name: str) -> Path:
        return log_path(self.folder, name)


class Worker:
    """One process of a client. `incarnation` counts them."""

    def __init__(self, context: RunContext, client: ClientPlan, incarnation: int) -> None:
        self.context = context
        self.name = client.name
        self.incarnation = incarnation
        self.random = Random(f"{context.seed}/{client.name}/{incarnation}")
        self.log = EventLog(context.log_path(client.name))
        self.stop = StopRequest()

    def run(self, body: Callable[[Worker], None]) -> int:
        """Run, and return the exit code."""
        with self.log.errors():
            body(self)
        return 0

    def count(self, kind: str, number: int) -> None:
        self.context.counters.add(self.name, kind, number)

    def connect_options(self) -> dict[str, Any]:
        return {"timeout_s": TIMEOUT_S, "tries": TRIES, "linger_ms": 2.0, "record": self.context.record}

    def end_offsets(self) -> dict[str, int] | None:
        """Return the end offsets of the topics, or None before the end of the run."""
        if not self.stop.is_set or not self.is_last_process():
            return None
        return msgspec.json.decode((self.context.folder / END_OFFSETS).read_bytes(), type=dict[str, int])

    def is_last_process(self) -> bool:
        """Whether all messages of the run have been put."""
        return (self.context.folder / END_OFFSETS).exists()
