"""The registry of planted bugs. Each bug replaces a method during a run, and the checks must catch it.

The bugs show what the simulation can find: it would also find a bug of this kind in the real code.
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
    #: A seed that catches the bug. It is tried first.
    hint: int = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, replacement in self.plant():
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield


BUGS: dict[str, Bug] = {}


def bug(what: str) -> Callable[[Callable[[], Sequence[Patch]]], Callable[[], Sequence[Patch]]]:
    """Register a function that returns what to replace. Its name is the name of the bug."""

    def register(plant: Callable[[], Sequence[Patch]]) -> Callable[[], Sequence[Patch]]:
        name = plant.__name__
        BUGS[name] = Bug(name, what, plant, HINTS.get(name, 0))
        return plant

    return register


def skip_sync(label: str) -> None:
    """Register a bug that omits the sync with this label."""

    def plant() -> Sequence[Patch]:
        from tests.simulation.environment.disk import SimDisk

        real: Any = SimDisk.skips

        def skips(self: SimDisk, found: str) -> bool:
            return real(self, found) or found == label

        return [(SimDisk, "skips", skips)]

    name = "no_sync_" + "".join(char if char.isalnum() else "_" for char in label)
    BUGS[name] = Bug(name, f"the sync of the {label} is omitted", plant, HINTS.get(name, 0))


#: The first seed, from 0, that catches each bug.
HINTS: dict[str, int] = {
    "abort_drops_what_was_published": 5,
    "ack_epoch_is_not_checked": 100,
    "answer_without_fencing_check": 30,
    "append_without_the_term_check": 10,
    "capture_without_copy_on_write": 6,
    "check_reads_no_messages": 1,
    "client_does_not_void_numbers": 28,
    "client_ignores_the_wire": 11,
    "client_renumbers": 3,
    "client_stays_with_a_standby": 10,
    "client_takes_a_hello_for_an_answer": 11,
    "commit_is_not_atomic": 128,
    "commit_is_not_idempotent": 2,
    "commit_leaves_out_a_topic": 2,
    "contents_are_missing_in_snapshots": 2,
    "copy_forward_drops_the_batch": 0,
    "copy_forward_forgets_live_batches": 0,
    "damage_is_taken_for_the_end": 2,
    "damaged_payload_is_delivered": 6,
    "damaged_payload_is_skipped": 13,
    "damaged_payload_is_stored": 13,
    "delay_of_a_return_is_ignored": 16,
    "delayed_batch_is_collected": 3,
    "delayed_batch_is_missing_in_snapshots": 3,
    "delayed_batch_is_released_early": 3,
    "delayed_batch_is_released_twice": 3,
    "drop_leaves_positions_behind": 5,
    "dropped_messages_are_not_counted": 5,
    "ended_subscription_is_forgotten": 14,
    "epochs_restart": 14,
    "expired_message_is_delivered": 13,
    "expiry_deletes_live_messages": 13,
    "expiry_is_forgotten_in_a_restart": 16,
    "extension_is_not_applied": 42,
    "first_message_is_not_kept": 4,
    "full_topic_drops_what_it_acknowledged": 14,
    "full_topic_is_left_out_of_a_commit": 167,
    "gap_is_accepted": 0,
    "gets_do_not_count_against_idleness": 11,
    "held_peer_is_forgotten": 10,
    "hello_repetition_bumps_the_epoch": 4,
    "idle_subscription_is_kept": 2,
    "idle_time_does_not_start_anew": 2,
    "key_is_free_when_a_lease_expires": 13,
    "keys_of_other_principals_are_freed": 43,
    "leap_of_the_clock_is_believed": 5,
    "lease_expires_early": 12,
    "lease_is_missing_in_snapshots": 8,
    "leases_are_not_restarted": 8,
    "leaving_loses_leased_messages": 13,
    "live_message_expires": 105,
    "lost_settle_is_called_done": 13,
    "moved_is_not_applied": 0,
    "no_sync_begun_segment": 6,
    "no_sync_copy_of_the_last_group": 328,
    "no_sync_cut_bytes": 6,
    "no_sync_cut_name": 76,
    "no_sync_group": 1,
    "no_sync_last_group_again": 1,
    "no_sync_meta": 1,
    "no_sync_meta_name": 2,
    "no_sync_name_of_the_last_group_s_copy": 87,
    "no_sync_segment_head": 2,
    "no_sync_segment_head_again": 87,
    "no_sync_snapshot": 1,
    "no_sync_snapshot_name": 0,
    "not_now_uses_up_the_number": 8,
    "one_off_is_remembered": 14,
    "other_content_is_taken_for_a_retry": 14,
    "outbox_completes_what_it_sends": 13,
    "outbox_forgets_refusals": 13,
    "outbox_ignores_old_entries": 6,
    "outbox_is_rewound_unnoticed": 14,
    "outbox_numbers_again": 45,
    "outbox_owner_is_not_checked": 28,
    "outbox_takes_forgotten_for_refused": 59,
    "pattern_forgets_a_topic": 2,
    "pattern_seek_keeps_the_epoch": 2,
    "release_ignores_snapshots": 2,
    "release_ignores_the_index": 0,
    "replayed_commit_publishes_again": 548,
    "reply_before_the_sync": 6,
    "retention_ignores_subscribers": 2,
    "returned_is_lost_in_a_restart": 13,
    "schemas_are_missing_in_snapshots": 61,
    "seek_keeps_the_epoch": 2,
    "session_epoch_is_not_checked": 1,
    "settle_token_is_not_checked": 35,
    "settled_message_comes_back": 8,
    "snapshot_is_ahead_of_its_group": 1,
    "stage_counts_are_not_checked": 12,
    "stages_are_reordered": 2,
    "staging_for_a_committed_batch_is_taken": 0,
    "subscription_acks_what_it_fetched": 7,
    "topic_made_later_is_not_attached": 2,
    "torn_group_is_accepted": 19,
    "torn_payload_is_accepted": 19,
    "transaction_epoch_is_not_checked": 18,
    "transaction_goes_on_after_a_refusal": 18,
    "transaction_goes_on_without_its_lease": 8,
    "transaction_is_applied_in_part": 2,
    "tries_are_forgotten": 8,
    "unchecked_messages_are_accepted": 17,
    "verdicts_are_forgotten_too_early": 0,
    "writers_are_missing_in_snapshots": 2,
}

#: Labels of all syncs of the journal that are needed for durability. Labels of the others start with "speed: ".
SYNC_LABELS = (
    "group",
    "segment name",
    "segment head",
    "begun segment",
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
