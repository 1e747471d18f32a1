"""The numbers of a run while it is going on, and its result, as text and as one JSON object."""

from __future__ import annotations

import msgspec

from oncemq.terminal import count_of
from oncemq.tools.faults.checker import Verdict

GOOD = "good: each acknowledged message was delivered once and in order to each of its subscribers"


class Survived(msgspec.Struct):
    """The faults that the system survived."""

    broker_kills: int = 0
    publisher_kills: int = 0
    subscriber_kills: int = 0
    departures: int = 0
    gateway_kills: int = 0
    packets_lost: int = 0
    packets_duplicated: int = 0
    packets_delayed: int = 0

    @property
    def crashes(self) -> int:
        return self.broker_kills + self.publisher_kills + self.subscriber_kills + self.gateway_kills


class ProcessRow(msgspec.Struct, frozen=True):
    """One row of the live table."""

    name: str
    role: str
    state: str
    #: Messages that were put or delivered.
    messages: int


class Numbers(msgspec.Struct, frozen=True):
    """The numbers at one moment of a run."""

    elapsed_s: float
    seconds: float
    attempted: int
    acknowledged: int
    delivered: int
    survived: Survived
    processes: tuple[ProcessRow, ...] = ()

    @property
    def in_flight(self) -> int:
        return max(0, self.attempted - self.acknowledged)


class Result(msgspec.Struct, frozen=True):
    """The result of a run."""

    seed: int
    seconds: float
    #: It was ended early by Ctrl-C.
    interrupted: bool
    sabotage: str
    verdict: Verdict
    survived: Survived
    #: The folder with all files; "" if it was deleted.
    folder: str = ""
    #: With clients of the push gateway.
    push: bool = False
    transport: str = "stream"

    @property
    def is_good(self) -> bool:
        return self.verdict.is_good

    def repeat(self) -> str:
        """Return the command that repeats the run."""
        sabotage = f" --sabotage {self.sabotage}" if self.sabotage else ""
        push = " --push" if self.push else ""
        transport = "" if self.transport == "stream" else f" --transport {self.transport}"
        return f"oncemq chaos --seed {self.seed} --seconds {self.seconds:g}{transport}{push}{sabotage}"

    def as_object(self) -> dict[str, object]:
        """Return the JSON object."""
        verdict = msgspec.structs.asdict(self.verdict)
        problems = [msgspec.structs.asdict(problem) for problem in self.verdict.problems]
        return {
            "good": self.is_good,
            "seed": self.seed,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "sabotage": self.sabotage,
            "push": self.push,
            "transport": self.transport,
            **verdict,
            "problems": problems,
            "survived": msgspec.structs.asdict(self.survived),
            "folder": self.folder,
            "repeat": self.repeat(),
        }


def lines_of(result: Result) -> list[str]:
    """Return the result as text; the first line is the verdict."""
    verdict, survived = result.verdict, result.survived
    gateway = f", {survived.gateway_kills:,} of the gateway" if result.push else ""
    lines = [
        f"{count_of(verdict.attempted, 'message')} attempted, {verdict.acknowledged:,} acknowledged, "
        f"{verdict.stored:,} stored, {verdict.recovered:,} recovered",
        f"{verdict.delivered:,} delivered to {count_of(verdict.subscriptions, 'subscription')}",
        f"{verdict.lost:,} lost, {verdict.duplicated:,} duplicated, {verdict.unexpected:,} unexpected, "
        f"{verdict.out_of_order:,} out of order",
        f"survived: {count_of(survived.broker_kills, 'kill')} of the broker, {survived.publisher_kills:,} of "
        f"publishers, {survived.subscriber_kills:,} of subscribers{gateway}, "
        f"{count_of(survived.departures, 'departure')}, "
        f"{survived.packets_lost:,} packets lost, {survived.packets_duplicated:,} duplicated, "
        f"{survived.packets_delayed:,} delayed",
    ]
    if result.is_good:
        return [GOOD, *lines]
    return [_bad(verdict), *lines, *map(str, verdict.problems), *_how_to_repeat(result)]


def _bad(verdict: Verdict) -> str:
    total = verdict.lost + verdict.duplicated + verdict.unexpected + verdict.out_of_order + verdict.errors
    return f"BAD: {count_of(total, 'violation')}, such as:"


def _how_to_repeat(result: Result) -> list[str]:
    evidence = [f"The evidence is in {result.folder}"] if result.folder else []
    return [*evidence, f"Repeat it with: {result.repeat()}"]
