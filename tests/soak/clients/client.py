"""What every client process has: addresses, an event log, a pace, and when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from oncemq.tools.faults.event_log import EventLog, MessageStream, read_events
from oncemq.tools.faults.processes import StopRequest
from tests.soak.plan import ClientPlan, topic_of

#: Options of native clients. They outlast any restart.
PATIENT: dict[str, Any] = {"timeout_s": 0.5, "tries": 240, "linger_ms": 2.0, "record": ""}
#: The file with the end offsets of topics: a consumer that is asked to stop continues up to there.
ENDS = "ends.json"


class Addresses(msgspec.Struct, frozen=True):
    """Where the broker and its gateways listen."""

    #: The native protocol: the stream transport over TCP and a Unix socket, and ZeroMQ.
    stream: str
    stream_unix: str
    zeromq: str
    http: str
    text: str
    publish: str
    feed: str
    acks: str
    udp: tuple[str, int]


class RoundContext(msgspec.Struct, frozen=True):
    """What all clients of a round share."""

    addresses: Addresses
    folder: Path
    #: The folder of the whole run, for what outlives a round.
    run_folder: Path
    seed: int
    number: int
    #: Mean pause of a producer after each message.
    pause_s: float
    #: The guarantees that a producer violates on purpose.
    sabotage: tuple[str, ...] = ()

    def topic(self, name: str) -> str:
        return topic_of(name, self.number)

    def log_path(self, name: str) -> Path:
        return self.folder / f"{name}.events"

    def ends(self) -> dict[str, int]:
        """Return the end offsets that are known."""
        path = self.folder / ENDS
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}


class SoakClient:
    """One process of a client. `incarnation` counts them."""

    def __init__(self, context: RoundContext, plan: ClientPlan, incarnation: int) -> None:
        self.context = context
        self.addresses = context.addresses
        self.name = plan.name
        self.incarnation = incarnation
        self.topic = context.topic(plan.topic)
        self.log = EventLog(context.log_path(plan.name))
        self.random = Random(f"{context.seed}/{context.number}/{plan.name}/{incarnation}")
        self.stop = StopRequest()
        #: Where native clients connect to. Each process of a client may use another transport.
        self.url = self.random.choice((self.addresses.stream, self.addresses.stream_unix, self.addresses.zeromq))

    def run(self, body: Callable[[SoakClient], None]) -> int:
        """Run, and return the exit code."""
        with self.log.errors():
            body(self)
        return 0

    # Producers.

    def stream(self) -> MessageStream:
        return MessageStream(self.log, f"{self.name}.{self.context.number}.{self.incarnation}")

    def pause(self, messages: int = 1) -> None:
        """Keep the pace."""
        time.sleep(self.context.pause_s * messages * self.random.uniform(0.2, 1.8))

    # Consumers.

    def delivered(self) -> Iterator[tuple[int, str]]:
        """Yield what earlier processes have logged: offset and message."""
        for entry in read_events(self.context.log_path(self.name)):
            if entry[0] == "delivered":
                yield int(entry[2]), entry[3]

    def next_offset(self) -> int:
        """Return the offset after the last one that was logged."""
        return max((offset + 1 for offset, _ in self.delivered()), default=0)

    def is_done(self, position: int) -> bool:
        """Whether it was asked to stop, and has everything up to the end of its topic."""
        if not self.stop.is_set:
            return False
        end = self.context.ends().get(self.topic)
        return end is not None and position >= end

    def deliver(self, offset: int, message: str) -> None:
        self.log.write(("delivered", self.topic, offset, message))
