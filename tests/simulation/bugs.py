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
HINTS: dict[str, int] = {
    "ack_epoch_is_not_checked": 462,
    "capture_without_copy_on_write": 1,
    "client_leaves_a_hole": 30,
    "client_renumbers": 2,
    "commit_is_not_idempotent": 2,
    "copy_forward_drops_the_batch": 1,
    "copy_forward_forgets_the_living": 1,
    "damage_is_taken_for_the_end": 1,
    "damaged_payload_is_delivered": 7,
    "damaged_payload_is_skipped": 6,
    "damaged_payload_is_stored": 6,
    "epochs_begin_anew": 2,
    "hello_repetition_bumps_the_epoch": 6,
    "moved_is_not_applied": 1,
    "no_sync_copy_of_the_last_group": 25,
    "no_sync_cut_bytes": 32,
    "no_sync_cut_name": 46,
    "no_sync_group": 1,
    "no_sync_last_group_again": 44,
    "no_sync_meta": 1,
    "no_sync_meta_name": 2,
    "no_sync_name_of_the_last_group_s_copy": 144,
    "no_sync_segment_head": 43,
    "no_sync_segment_head_again": 8,
    "no_sync_snapshot": 1,
    "no_sync_snapshot_name": 26,
    "not_now_uses_up_the_number": 1,
    "recycled_segment_is_read_as_new": 26,
    "release_ignores_snapshots": 2,
    "release_ignores_the_index": 1,
    "reply_before_the_sync": 6,
    "retention_ignores_subscribers": 14,
    "session_epoch_is_not_checked": 1,
    "subscription_acks_what_it_fetched": 4,
    "topic_id_is_given_again": 1,
    "torn_group_is_accepted": 20,
    "torn_payload_is_accepted": 46,
    "verdicts_are_forgotten_too_early": 1,
}

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

from tests.simulation import (  # noqa: E402, F401
    bugs_of_client,
    bugs_of_engine,
    bugs_of_messages,
    bugs_of_outbox,
    bugs_of_storage,
    bugs_of_tasks,
)
