"""The phases of a run, its clients and its faults, derived from the seed alone: no clock, no processes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

import msgspec

#: A client finishes its work after all clients of the stages before.
Stage = Literal["producer", "transformer", "consumer"]
STAGES: tuple[Stage, ...] = ("producer", "transformer", "consumer")
Phase = Literal["storm", "steady", "gateway kills"]
Victim = Literal["broker", "broker group", "broker stop", "gateway", "client"]

#: Topics, one set for each round.
NATIVE, COPIED, OUTBOX, TASKS, RESULTS, DEAD = "native", "copied", "outbox", "tasks", "results", "tasks.dead"
BRIEF, LATER, WEB, QUEUE, TEXT, PUSH, UDP = "brief", "later", "web", "queue", "text", "push", "udp"
#: Topics that the auditor keeps and reads. The messages of BRIEF expire.
AUDITED = (NATIVE, COPIED, OUTBOX, TASKS, RESULTS, DEAD, LATER, WEB, QUEUE, TEXT, PUSH, UDP)

#: Where the phases end, as shares of the run. The long phase in the middle has no kills of broker or gateway, so that
#: their memory can be compared.
_STORM_END, _STEADY_END, _GATEWAY_END = 1 / 8, 3 / 4, 7 / 8
#: Mean pause between two faults.
_GAP_S = 4.0
_VICTIMS: dict[Phase, tuple[Victim, ...]] = {
    "storm": ("broker", "broker group", "broker stop", "gateway", "client", "client", "client"),
    "steady": ("client",),
    "gateway kills": ("gateway", "client", "client"),
}


class ClientPlan(msgspec.Struct, frozen=True):
    """A client. It runs as several processes, one after the other, if it is killed."""

    name: str
    stage: Stage
    #: The topic that it puts to, or gets from.
    topic: str


CLIENTS = (
    ClientPlan("put-blocking", "producer", NATIVE),
    ClientPlan("put-asyncio", "producer", NATIVE),
    ClientPlan("outbox-1", "producer", OUTBOX),
    ClientPlan("put-tasks", "producer", TASKS),
    ClientPlan("put-brief", "producer", BRIEF),
    ClientPlan("put-later", "producer", LATER),
    ClientPlan("post-v1", "producer", WEB),
    ClientPlan("enqueue", "producer", QUEUE),
    ClientPlan("text-put", "producer", TEXT),
    ClientPlan("push-publish", "producer", PUSH),
    ClientPlan("udp-put", "producer", UDP),
    ClientPlan("copier", "transformer", NATIVE),
    ClientPlan("worker-1", "transformer", TASKS),
    ClientPlan("worker-2", "transformer", TASKS),
    ClientPlan("get-blocking", "consumer", NATIVE),
    ClientPlan("get-asyncio", "consumer", COPIED),
    ClientPlan("get-outbox", "consumer", OUTBOX),
    ClientPlan("get-brief", "consumer", BRIEF),
    ClientPlan("get-later", "consumer", LATER),
    ClientPlan("get-v1", "consumer", WEB),
    ClientPlan("dequeue", "consumer", QUEUE),
    ClientPlan("text-get", "consumer", TEXT),
    ClientPlan("push-acks", "consumer", PUSH),
    ClientPlan("push-client", "consumer", PUSH),
    ClientPlan("udp-get", "consumer", UDP),
)
#: Messages with a time to live are judged by what one process got.
_IMMORTAL = ("put-brief", "get-brief")


class Fault(msgspec.Struct, frozen=True):
    """One kill. The victim starts again after a pause."""

    at_s: float
    victim: Victim
    #: The client's name.
    client: str = ""
    pause_s: float = 0.0


def phase_at(share: float) -> Phase:
    """Return the phase at a share of the run."""
    if _STORM_END <= share < _STEADY_END:
        return "steady"
    return "gateway kills" if _STEADY_END <= share < _GATEWAY_END else "storm"


def topic_of(name: str, number: int) -> str:
    """Return the name of a topic in a round."""
    base, dot, suffix = name.partition(".")
    return f"{base}-{number}{dot}{suffix}"


def faults_of(seed: int, number: int, phase: Phase, load_s: float) -> Iterator[Fault]:
    """Yield the faults of a round, in order. A short round has at least one of each kind of victim."""
    random = Random(f"soak/{seed}/{number}")
    victims = list(_VICTIMS[phase])
    random.shuffle(victims)
    gap_s = min(_GAP_S, load_s / (len(victims) + 1))
    at_s = gap_s
    while at_s < load_s:
        victims.append(victim := victims.pop(0))
        mortal = [client.name for client in CLIENTS if client.name not in _IMMORTAL]
        name = random.choice(mortal) if victim == "client" else ""
        yield Fault(at_s, victim, name, random.uniform(0.05, 1.0))
        at_s += gap_s * random.uniform(0.6, 1.4)
