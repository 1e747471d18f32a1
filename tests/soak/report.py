"""The result of a run, as text in a box and as one JSON object."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any

import msgspec

from oncemq.tools.faults.checker import Verdict
from tests.soak.resources import Memory

_WIDTH = 98
_COUNTED = ("attempted", "acknowledged", "stored", "recovered", "delivered", "subscriptions")
_VIOLATED = ("lost", "duplicated", "unexpected", "out_of_order", "errors")


class Result(msgspec.Struct):
    """Everything that a run has found."""

    seed: int
    minutes: float
    repeat: str
    rounds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    kills: Counter[str] = msgspec.field(default_factory=Counter)
    attacks: Counter[str] = msgspec.field(default_factory=Counter)
    memory: list[Memory] = msgspec.field(default_factory=list)
    segments: int = 0
    #: Every violation.
    problems: list[str] = msgspec.field(default_factory=list)
    #: The folder with all files; "" if it was deleted.
    folder: str = ""

    @property
    def is_good(self) -> bool:
        return not self.problems

    def add(self, number: int, verdict: Verdict) -> None:
        """Add the verdict of a round."""
        self.rounds += 1
        for name in (*_COUNTED, *_VIOLATED):
            self.counts[name] += getattr(verdict, name)
        self.problems += [f"round {number}: {problem}" for problem in verdict.problems]

    def as_object(self) -> dict[str, Any]:
        return {"good": self.is_good, **msgspec.to_builtins(self)}


def box_of(result: Result) -> str:
    """Return the verdict in a box."""
    lines = [part for line in lines_of(result) for part in textwrap.wrap(line, _WIDTH - 4, break_on_hyphens=False)]
    body = [f"│ {line:{_WIDTH - 4}} │" for line in lines]
    return "\n".join([f"╭{'─' * (_WIDTH - 2)}╮", *body, f"╰{'─' * (_WIDTH - 2)}╯"])


def lines_of(result: Result) -> list[str]:
    counts = result.counts
    good = "good: every protocol kept its guarantee, and everything was given back"
    memory = ", ".join(map(str, result.memory)) or "not judged, the steady phase was too short"
    return [
        good if result.is_good else f"BAD: {len(result.problems)} violations, such as:",
        *([] if result.is_good else result.problems[:20]),
        f"{result.rounds} rounds in {result.seconds / 60:.1f} minutes: {counts['attempted']:,} messages attempted, "
        f"{counts['acknowledged']:,} acknowledged, {counts['stored']:,} stored, {counts['recovered']:,} recovered, "
        f"{counts['delivered']:,} delivered to {counts['subscriptions']:,} subscriptions",
        f"{counts['lost']:,} lost, {counts['duplicated']:,} duplicated, {counts['unexpected']:,} unexpected, "
        f"{counts['out_of_order']:,} out of order",
        f"kills: {_listed(result.kills)}",
        f"hostile peers: {_listed(result.attacks)}",
        f"memory: {memory}; {result.segments} segments at the end",
        *([f"The evidence is in {result.folder}"] if result.folder else []),
        f"Repeat it with: {result.repeat}",
    ]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
