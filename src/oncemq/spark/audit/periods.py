"""A subscription's life in periods: between two seeks its position only rises, so what holds within a period need not
hold across one.

Epochs come from one counter of the broker and never repeat, so they order the owners of a subscription, whatever
their clocks say. A seek, an unsubscribe or a new subscription of the same name lies between two of them. Which two:
the owner was told (`displaced`), or it shows by the clock:

    era           rises where such a move certainly lies between two epochs: what was given before does not count after
    generation    rises also where it may: what was done before may come again after

Of a shared subscription each epoch is an era: its epoch rises only when it is moved. The making of a subscription
counts as an epoch 0, before its first owner: its position is known from there on.

There are as many epochs as consumers were started, not as many as messages: this is plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

#: Clocks of several machines may differ by so much.
CLOCK_MS = 1000

#: What has one epoch: (broker, topic's id or 0 for a pattern, subscriber, pattern).
Owned = tuple[str, int, str, str]


class Epoch(msgspec.Struct):
    number: int
    #: Or the pattern.
    name: str
    #: When it was asked for, and when it was there.
    begin_ms: int
    opened_ms: int
    is_shared: bool = False
    is_displaced: bool = False
    #: Where the subscription stood when it was made.
    made_at: int = -1


class Move(msgspec.Struct, frozen=True):
    """When a position may have changed other than by acks."""

    name: str
    subscriber: str
    from_ms: int
    until_ms: int
    is_answered: bool = True


class Period(msgspec.Struct, frozen=True):
    """Where an epoch belongs."""

    owned: Owned
    epoch: int
    is_shared: bool
    era: int
    generation: int
    #: Where the subscription stood when it was made; -1 = it is not known from here.
    made_at: int = -1


#: Lines that periods are made of.
KINDS = ("opened", "subscribed", "displaced", "moving", "moved", "stayed")


def periods_of(lines: Iterable[Mapping[str, Any]]) -> list[Period]:
    """Out of all lines of these kinds, in any order."""
    found = list(lines)
    epochs = _epochs(found)
    moves = _moves(found)
    made = [line for line in found if line["kind"] == "subscribed"]
    for line in sorted(made, key=lambda line: int(line["at_ms"])):
        known = epochs.get(_owned(line), {})
        if known and 0 not in known and line["at_ms"] <= min(each.begin_ms for each in known.values()):
            known[0] = Epoch(0, line["topic"], line["sent_ms"], line["at_ms"], made_at=line["acked"])
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
            is_moved = former.is_displaced or epoch.is_shared or any(_lies(move, former, epoch) for move in own)
            era += is_moved
            generation += is_moved or any(_may_lie(move, former, epoch) for move in own)
        periods.append(Period(owned, epoch.number, epoch.is_shared, era, generation, epoch.made_at))
        former = epoch
    return periods


def _may_lie(move: Move, former: Epoch, epoch: Epoch) -> bool:
    """Between the two, as far as the clocks can tell."""
    return move.from_ms - CLOCK_MS <= epoch.opened_ms and move.until_ms + CLOCK_MS >= former.begin_ms


def _lies(move: Move, former: Epoch, epoch: Epoch) -> bool:
    return move.is_answered and former.opened_ms <= move.from_ms and move.until_ms <= epoch.begin_ms
