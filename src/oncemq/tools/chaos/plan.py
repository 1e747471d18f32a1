"""The processes of a run and the schedule of faults, derived from the seed alone: no clock, no processes.

The same seed gives the same schedule. What a fault hits at its moment depends on the machine, so two runs with the same
seed are similar, not identical.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

import msgspec

TOPICS = ("orders", "payments", "shipping", "Cooking Recipes")
BROKER = "broker"
NETWORK = "network"
#: Before the first fault, so that there are messages that can be lost.
_FIRST_S = 0.6
_GAP_S = 0.8

ClientKind = Literal["outbox", "plain publisher", "inbox", "plain subscriber"]
Action = Literal["kill", "leave", "start", "network"]


class ClientPlan(msgspec.Struct, frozen=True):
    """A publisher or subscriber. It runs as several processes, one after the other."""

    name: str
    kind: ClientKind

    @property
    def publishes(self) -> bool:
        return self.kind in ("outbox", "plain publisher")


#: Clients whose guarantee includes their own crash are killed; a plain subscriber leaves and comes back.
CLIENTS = (
    ClientPlan("pub-1", "outbox"),
    ClientPlan("pub-2", "outbox"),
    ClientPlan("pub-3", "plain publisher"),
    ClientPlan("sub-1", "inbox"),
    ClientPlan("sub-2", "inbox"),
    ClientPlan("sub-3", "plain subscriber"),
    ClientPlan("sub-4", "plain subscriber"),
)


class NetworkFaults(msgspec.Struct, frozen=True):
    """Shares of packets, for requests and replies alike."""

    lost: float = 0.0
    duplicated: float = 0.0
    delayed: float = 0.0
    delay_ms_max: float = 0.0

    def __str__(self) -> str:
        if self == NO_FAULTS:
            return "works without faults"
        return f"loses {self.lost:.0%}, duplicates {self.duplicated:.0%}, delays {self.delayed:.0%} of all packets"


NO_FAULTS = NetworkFaults()


class Fault(msgspec.Struct, frozen=True):
    """One step of the schedule."""

    at_s: float
    action: Action
    #: The name of a client, BROKER or NETWORK.
    target: str
    network: NetworkFaults | None = None


class Plan(msgspec.Struct, frozen=True):
    """The schedule of a run."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]


def make_plan(seed: int, seconds: float) -> Plan:
    """Return a schedule of faults for this duration."""
    random = Random(f"chaos/{seed}")
    faults = [Fault(0.0, "network", NETWORK, _network_faults(random)), *_faults(random, seconds)]
    return Plan(seed, seconds, tuple(sorted(faults, key=lambda fault: fault.at_s)))


def _faults(random: Random, seconds: float) -> Iterator[Fault]:
    at_s = min(_FIRST_S, seconds / 5)
    kinds = _kinds(random)
    # Each kind of fault occurs, even in a short run.
    gap_s = min(_GAP_S, (seconds - at_s) / 7)
    while at_s < seconds:
        yield from _fault(random, next(kinds), at_s)
        at_s += gap_s * random.uniform(0.6, 1.4)


def _kinds(random: Random) -> Iterator[str]:
    while True:
        kinds = ["broker", "publisher", "inbox", "leave", "network"]
        random.shuffle(kinds)
        yield from kinds


def _fault(random: Random, kind: str, at_s: float) -> Iterator[Fault]:
    if kind == "network":
        yield Fault(at_s, "network", NETWORK, _network_faults(random))
        return
    target = BROKER if kind == "broker" else random.choice([client.name for client in CLIENTS if _is_hit(client, kind)])
    yield Fault(at_s, "leave" if kind == "leave" else "kill", target)
    yield Fault(at_s + random.uniform(0.1, 0.6), "start", target)


def _is_hit(client: ClientPlan, kind: str) -> bool:
    if kind == "publisher":
        return client.publishes
    return client.kind == ("inbox" if kind == "inbox" else "plain subscriber")


def _network_faults(random: Random) -> NetworkFaults:
    return NetworkFaults(
        lost=random.choice((0.02, 0.05, 0.1, 0.15)),
        duplicated=random.choice((0.02, 0.05, 0.1)),
        delayed=random.choice((0.05, 0.1, 0.2)),
        delay_ms_max=random.choice((5.0, 20.0, 60.0)),
    )
