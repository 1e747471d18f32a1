"""Planted bugs: each replaces a method for the length of a run, and must be caught by the checker.

What the list holds is what the simulation is for: a bug of this kind in the real code would not go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

Patch = tuple[object, str, object]


class Bug(msgspec.Struct, frozen=True):
    name: str
    what: str
    plant: Callable[[], Sequence[Patch]]
    #: A seed that catches it, as a first try.
    hint: int = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, replacement in self.plant():
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield


BUGS: dict[str, Bug] = {}


def bug(what: str) -> Callable[[Callable[[], Sequence[Patch]]], Callable[[], Sequence[Patch]]]:
    """Registers a function that says what to replace; its name is the bug's."""

    def register(plant: Callable[[], Sequence[Patch]]) -> Callable[[], Sequence[Patch]]:
        name = plant.__name__
        BUGS[name] = Bug(name, what, plant, HINTS.get(name, 0))
        return plant

    return register


def skip_sync(label: str) -> None:
    """A sync that is left out."""

    def plant() -> Sequence[Patch]:
        from tests.simulation.disk import SimDisk

        real: Any = SimDisk.skips

        def skips(self: SimDisk, found: str) -> bool:
            return real(self, found) or found == label

        return [(SimDisk, "skips", skips)]

    name = "no_sync_" + "".join(char if char.isalnum() else "_" for char in label)
    BUGS[name] = Bug(name, f"the sync of the {label} is left out", plant, HINTS.get(name, 0))


#: Found by trying the seeds from 0 on.
HINTS: dict[str, int] = {}

#: Every sync of the journal that is there for durability; those for speed alone say so in their label.
SYNC_LABELS = (
    "group",
    "segment name",
    "segment head",
    "snapshot",
    "snapshot name",
    "last group again",
    "segment head again",
    "copy of the last group",
    "name of the last group's copy",
    "cut bytes",
    "cut name",
    "meta",
    "meta name",
)
for _label in SYNC_LABELS:
    skip_sync(_label)

from tests.simulation import bugs_of_client, bugs_of_engine, bugs_of_storage  # noqa: E402, F401
