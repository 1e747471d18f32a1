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
GATEWAY = "gateway"
#: The network between push clients and the gateway.
PUSH_NETWORK = "push network"
#: Before the first fault, so that there are messages that can be lost.
_FIRST_S = 0.6
_GAP_S = 0.8

ClientKind = Literal["outbox", "plain publisher", "inbox", "plain subscriber", "push publisher", "push subscriber"]
Action = Literal["kill", "leave", "start", "network"]


class ClientPlan(msgspec.Struct, frozen=True):
    """A publisher or subscriber. It runs as several processes, one after the other."""

    name: str
    kind: ClientKind

    @property
    def publishes(self) -> bool:
        return self.kind in ("outbox", "plain publisher", "push publisher")


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
#: Clients of the push gateway, in addition. The subscriber stores what it gets in a file.
PUSH_CLIENTS = (ClientPlan("pub-4", "push publisher"), ClientPlan("sub-5", "push subscriber"))


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
    #: The name of a client, BROKER, GATEWAY or NETWORK.
    target: str
    network: NetworkFaults | None = None


class Plan(msgspec.Struct, frozen=True):
    """The schedule of a run."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    clients: tuple[ClientPlan, ...] = CLIENTS

    @property
    def has_push(self) -> bool:
        return self.clients != CLIENTS


def make_plan(seed: int, seconds: float, *, push: bool = False) -> Plan:
    """Return a schedule of faults for this duration. `push`: with clients of the push gateway."""
    random = Random(f"chaos/{seed}")
    clients = CLIENTS + PUSH_CLIENTS if push else CLIENTS
    faults = [Fault(0.0, "network", NETWORK, _network_faults(random)), *_faults(random, seconds, clients)]
    return Plan(seed, seconds, tuple(sorted(faults, key=lambda fault: fault.at_s)), clients)


def _faults(random: Random, seconds: float, clients: tuple[ClientPlan, ...]) -> Iterator[Fault]:
    at_s = min(_FIRST_S, seconds / 5)
    kinds = ["broker", "publisher", "inbox", "leave", "network"]
    if clients != CLIENTS:
        kinds += ["push publisher", "push subscriber", "gateway"]
    order = _shuffled(random, kinds)
    # Each kind of fault occurs, even in a short run.
    gap_s = min(_GAP_S, (seconds - at_s) / (len(kinds) + 2))
    while at_s < seconds:
        yield from _fault(random, next(order), at_s, clients)
        at_s += gap_s * random.uniform(0.6, 1.4)


def _shuffled(random: Random, kinds: list[str]) -> Iterator[str]:
    while True:
        order = [*kinds]
        random.shuffle(order)
        yield from order


def _fault(random: Random, kind: str, at_s: float, clients: tuple[ClientPlan, ...]) -> Iterator[Fault]:
    if kind == "network":
        yield Fault(at_s, "network", NETWORK, _network_faults(random))
        return
    if kind == "gateway":
        # The broker starts it again.
        yield Fault(at_s, "kill", GATEWAY)
        return
    target = BROKER if kind == "broker" else random.choice([client.name for client in clients if _is_hit(client, kind)])
    yield Fault(at_s, "leave" if kind == "leave" else "kill", target)
    yield Fault(at_s + random.uniform(0.1, 0.6), "start", target)


def _is_hit(client: ClientPlan, kind: str) -> bool:
    if kind == "publisher":
        return client.kind in ("outbox", "plain publisher")
    return client.kind == ("plain subscriber" if kind == "leave" else kind)


def _network_faults(random: Random) -> NetworkFaults:
    return NetworkFaults(
        lost=random.choice((0.02, 0.05, 0.1, 0.15)),
        duplicated=random.choice((0.02, 0.05, 0.1)),
        delayed=random.choice((0.05, 0.1, 0.2)),
        delay_ms_max=random.choice((5.0, 20.0, 60.0)),
    )
