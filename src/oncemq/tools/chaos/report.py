"""What a run amounts to: numbers while it goes on, and the result at its end, as text and as one object."""

from __future__ import annotations

import msgspec

from oncemq.cli.support.output import count_of
from oncemq.tools.chaos.checker import Verdict

GOOD = "good: every acknowledged message exactly once and in order, at each of its subscribers"


class Survived(msgspec.Struct):
    """What was done to the system."""

    broker_kills: int = 0
    publisher_kills: int = 0
    subscriber_kills: int = 0
    departures: int = 0
    packets_lost: int = 0
    packets_doubled: int = 0
    packets_delayed: int = 0

    @property
    def crashes(self) -> int:
        return self.broker_kills + self.publisher_kills + self.subscriber_kills


class Actors(msgspec.Struct, frozen=True):
    """One row of the live table."""

    name: str
    what: str
    state: str
    #: Put, or given.
    messages: int


class Numbers(msgspec.Struct, frozen=True):
    """A moment of a run."""

    elapsed_s: float
    seconds: float
    attempted: int
    acknowledged: int
    delivered: int
    survived: Survived
    actors: tuple[Actors, ...] = ()

    @property
    def in_flight(self) -> int:
        return max(0, self.attempted - self.acknowledged)


class Result(msgspec.Struct, frozen=True):
    seed: int
    seconds: float
    #: It was ended by Ctrl-C before its time.
    interrupted: bool
    sabotage: str
    verdict: Verdict
    survived: Survived
    #: Where everything lies; "" where it was removed.
    folder: str = ""

    @property
    def is_good(self) -> bool:
        return self.verdict.is_good

    def repeat(self) -> str:
        """The command that does the same again."""
        sabotage = f" --sabotage {self.sabotage}" if self.sabotage else ""
        return f"oncemq chaos --seed {self.seed} --seconds {self.seconds:g}{sabotage}"

    def as_object(self) -> dict[str, object]:
        verdict = msgspec.structs.asdict(self.verdict)
        problems = [msgspec.structs.asdict(problem) for problem in self.verdict.problems]
        return {
            "good": self.is_good,
            "seed": self.seed,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "sabotage": self.sabotage,
            **verdict,
            "problems": problems,
            "survived": msgspec.structs.asdict(self.survived),
            "folder": self.folder,
            "repeat": self.repeat(),
        }


def lines_of(result: Result) -> list[str]:
    """For people; the first line is the verdict."""
    verdict, survived = result.verdict, result.survived
    lines = [
        f"{count_of(verdict.attempted, 'message')} attempted, {verdict.acknowledged:,} acknowledged, "
        f"{verdict.stored:,} stored, {verdict.recovered:,} recovered",
        f"{verdict.delivered:,} delivered to {count_of(verdict.subscriptions, 'subscription')}",
        f"{verdict.lost:,} lost, {verdict.duplicated:,} duplicated, {verdict.unexpected:,} unexpected, "
        f"{verdict.out_of_order:,} out of order",
        f"survived: {count_of(survived.broker_kills, 'kill')} of the broker, {survived.publisher_kills:,} of "
        f"publishers, {survived.subscriber_kills:,} of subscribers, {count_of(survived.departures, 'departure')}, "
        f"{survived.packets_lost:,} packets lost, {survived.packets_doubled:,} doubled, "
        f"{survived.packets_delayed:,} delayed",
    ]
    if result.is_good:
        return [GOOD, *lines]
    return [_bad(verdict), *lines, *map(str, verdict.problems), *_how_to_repeat(result)]


def _bad(verdict: Verdict) -> str:
    total = verdict.lost + verdict.duplicated + verdict.unexpected + verdict.out_of_order + verdict.errors
    return f"BAD: {count_of(total, 'promise')} broken, such as those below"


def _how_to_repeat(result: Result) -> list[str]:
    evidence = [f"The evidence is in {result.folder}"] if result.folder else []
    return [*evidence, f"Repeat it with: {result.repeat()}"]
