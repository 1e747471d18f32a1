"""Who takes part and what happens to them when. Drawn from the seed alone: no clock, no processes.

The same seed gives the same schedule. What the schedule hits at each moment depends on the machine, so a run is
repeated, not replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

import msgspec

TOPICS = ("orders", "payments", "shipping", "Cooking Recipes")
BROKER = "broker"
NETWORK = "network"
#: Before the first fault, so that there is something to lose.
_FIRST_S = 0.6
_GAP_S = 0.8

Kind = Literal["outbox", "plain publisher", "inbox", "plain subscriber"]
What = Literal["kill", "leave", "start", "weather"]


class Actor(msgspec.Struct, frozen=True):
    """A publisher or subscriber; it has several lives."""

    name: str
    kind: Kind

    @property
    def publishes(self) -> bool:
        return self.kind in ("outbox", "plain publisher")


#: Those whose own crash is survived without a trace are killed; a plain subscriber leaves and comes back.
ACTORS = (
    Actor("pub-1", "outbox"),
    Actor("pub-2", "outbox"),
    Actor("pub-3", "plain publisher"),
    Actor("sub-1", "inbox"),
    Actor("sub-2", "inbox"),
    Actor("sub-3", "plain subscriber"),
    Actor("sub-4", "plain subscriber"),
)


class Weather(msgspec.Struct, frozen=True):
    """Of the network: shares of packets, requests and replies alike."""

    lost: float = 0.0
    doubled: float = 0.0
    delayed: float = 0.0
    delay_ms_max: float = 0.0

    def __str__(self) -> str:
        if self == CALM:
            return "calm"
        return f"loses {self.lost:.0%}, doubles {self.doubled:.0%}, delays {self.delayed:.0%} of all packets"


CALM = Weather()


class Act(msgspec.Struct, frozen=True):
    at_s: float
    what: What
    #: An actor's name, BROKER or NETWORK.
    whom: str
    weather: Weather | None = None


class Plan(msgspec.Struct, frozen=True):
    seed: int
    seconds: float
    acts: tuple[Act, ...]


def draw(seed: int, seconds: float) -> Plan:
    """A schedule of faults for so many seconds."""
    random = Random(f"chaos/{seed}")
    acts = [Act(0.0, "weather", NETWORK, _weather(random)), *_faults(random, seconds)]
    return Plan(seed, seconds, tuple(sorted(acts, key=lambda act: act.at_s)))


def _faults(random: Random, seconds: float) -> Iterator[Act]:
    at_s = min(_FIRST_S, seconds / 5)
    kinds = _kinds(random)
    # Each kind of fault has its turn, however short the run.
    gap_s = min(_GAP_S, (seconds - at_s) / 7)
    while at_s < seconds:
        yield from _fault(random, next(kinds), at_s)
        at_s += gap_s * random.uniform(0.6, 1.4)


def _kinds(random: Random) -> Iterator[str]:
    while True:
        kinds = ["broker", "publisher", "inbox", "leave", "weather"]
        random.shuffle(kinds)
        yield from kinds


def _fault(random: Random, kind: str, at_s: float) -> Iterator[Act]:
    if kind == "weather":
        yield Act(at_s, "weather", NETWORK, _weather(random))
        return
    whom = BROKER if kind == "broker" else random.choice([actor.name for actor in ACTORS if _is_hit_by(actor, kind)])
    yield Act(at_s, "leave" if kind == "leave" else "kill", whom)
    yield Act(at_s + random.uniform(0.1, 0.6), "start", whom)


def _is_hit_by(actor: Actor, kind: str) -> bool:
    if kind == "publisher":
        return actor.publishes
    return actor.kind == ("inbox" if kind == "inbox" else "plain subscriber")


def _weather(random: Random) -> Weather:
    return Weather(
        lost=random.choice((0.02, 0.05, 0.1, 0.15)),
        doubled=random.choice((0.02, 0.05, 0.1)),
        delayed=random.choice((0.05, 0.1, 0.2)),
        delay_ms_max=random.choice((5.0, 20.0, 60.0)),
    )
