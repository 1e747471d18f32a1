"""Divides the history of a subscription into periods. Between two seeks its position only increases, so rules that hold
within a period need not hold across periods.

Epochs come from one counter of the broker and never repeat, so they order the owners of a subscription independently of
their clocks. A move (a seek, an unsubscribe or a new subscription of the same name) happens between two epochs. The
owner was told about it (`displaced`), or the clocks show between which two:

    era           increases if a move certainly happened between two epochs: earlier deliveries do not count later
    generation    also increases if a move may have happened: acked messages may be delivered again

In a shared subscription each epoch is an era, because the epoch only increases when the subscription is moved. The
creation of a subscription counts as epoch 0, before its first owner, because its position is known from then on.

There are as many epochs as consumers were started, not as many as messages, so this is plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

#: The maximum difference between the clocks of several machines.
CLOCK_MS = 1000

#: Identifies what has an epoch: (broker, topic id or 0 for a pattern, subscriber, pattern).
Owned = tuple[str, int, str, str]


class Epoch(msgspec.Struct):
    number: int
    #: The topic or the pattern.
    name: str
    #: When it was requested, and when it was confirmed.
    begin_ms: int
    opened_ms: int
    is_shared: bool = False
    is_displaced: bool = False
    #: The position of the subscription when it was created; -1 = not known.
    created_at: int = -1


class Move(msgspec.Struct, frozen=True):
    """A time span in which a position may have changed other than by acks."""

    name: str
    subscriber: str
    from_ms: int
    until_ms: int
    is_answered: bool = True


class Period(msgspec.Struct, frozen=True):
    """The era and the generation of an epoch."""

    owned: Owned
    epoch: int
    is_shared: bool
    era: int
    generation: int
    #: The position of the subscription when it was created; -1 = not known.
    created_at: int = -1


def find_periods(lines: Iterable[Mapping[str, Any]]) -> list[Period]:
    """Find the periods from the lines that the query PERIODS selects, in any order."""
    found = list(lines)
    epochs = _epochs(found)
    moves = _moves(found)
    created = [line for line in found if line["kind"] == "subscribed"]
    for line in sorted(created, key=lambda line: int(line["at_ms"])):
        known = epochs.get(_owned(line), {})
        if known and 0 not in known and line["at_ms"] <= min(each.begin_ms for each in known.values()):
            known[0] = Epoch(0, line["topic"], line["sent_ms"], line["at_ms"], created_at=line["acked"])
        else:
            moves.append(_move(line, line["sent_ms"]))
    return [period for owned, known in epochs.items() for period in _periods(owned, known, moves)]


def _owned(line: Mapping[str, Any]) -> Owned:
    return line["broker"], 0 if line["pattern"] else line["topic_id"], line["subscriber"], line["pattern"]


def _epochs(lines: Sequence[Mapping[str, Any]]) -> dict[Owned, dict[int, Epoch]]:
    epochs: dict[Owned, dict[int, Epoch]] = {}
    for line in lines:
        if line["kind"] == "opened":
            known = epochs.setdefault(_owned(line), {})
            epoch = Epoch(line["epoch"], line["topic"], line["sent_ms"], line["at_ms"], bool(line["shared"]))
            known.setdefault(epoch.number, epoch)
    for line in lines:
        if line["kind"] == "displaced" and line["epoch"] in epochs.get(_owned(line), {}):
            epochs[_owned(line)][line["epoch"]].is_displaced = True
    return epochs


def _moves(lines: Sequence[Mapping[str, Any]]) -> list[Move]:
    decided = {(line["session"], line["number"]) for line in lines if line["kind"] in ("moved", "stayed")}
    answered = [_move(line, line["sent_ms"]) for line in lines if line["kind"] == "moved"]
    unanswered = [
        _move(line, line["at_ms"], is_answered=False)
        for line in lines
        if line["kind"] == "moving" and (line["session"], line["number"]) not in decided
    ]
    return answered + unanswered


def _move(line: Mapping[str, Any], from_ms: int, *, is_answered: bool = True) -> Move:
    return Move(line["topic"], line["subscriber"], from_ms, line["at_ms"], is_answered)


def _periods(owned: Owned, epochs: Mapping[int, Epoch], moves: Sequence[Move]) -> list[Period]:
    subscriber = owned[2]
    periods: list[Period] = []
    era = generation = 0
    former: Epoch | None = None
    for _, epoch in sorted(epochs.items()):
        if former is not None:
            own = [move for move in moves if (move.subscriber, move.name) == (subscriber, epoch.name)]
            is_moved = former.is_displaced or epoch.is_shared or any(_is_between(move, former, epoch) for move in own)
            era += is_moved
            generation += is_moved or any(_may_be_between(move, former, epoch) for move in own)
        periods.append(Period(owned, epoch.number, epoch.is_shared, era, generation, epoch.created_at))
        former = epoch
    return periods


def _may_be_between(move: Move, former: Epoch, epoch: Epoch) -> bool:
    """Whether a move may have happened between two epochs, if the clocks differ by up to CLOCK_MS."""
    return move.from_ms - CLOCK_MS <= epoch.opened_ms and move.until_ms + CLOCK_MS >= former.begin_ms


def _is_between(move: Move, former: Epoch, epoch: Epoch) -> bool:
    return move.is_answered and former.opened_ms <= move.from_ms and move.until_ms <= epoch.begin_ms
