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
    "abort_drops_what_was_published": 7,
    "ack_epoch_is_not_checked": 41,
    "answer_without_fencing_check": 20,
    "append_without_the_term_check": 10,
    "capture_without_copy_on_write": 3,
    "check_reads_no_messages": 33,
    "client_does_not_notice_a_new_connection": 9,
    "client_ignores_the_wire": 11,
    "client_renumbers": 1,
    "client_stays_with_a_standby": 10,
    "client_takes_a_hello_for_an_answer": 11,
    "commit_is_not_atomic": 25,
    "commit_is_not_idempotent": 7,
    "commit_leaves_out_a_topic": 1,
    "connection_outlives_its_user": 30,
    "contents_are_missing_in_snapshots": 30,
    "copy_forward_drops_the_batch": 1,
    "copy_forward_forgets_live_batches": 1,
    "damage_is_taken_for_the_end": 2,
    "damaged_payload_is_delivered": 13,
    "damaged_payload_is_skipped": 13,
    "damaged_payload_is_stored": 13,
    "delay_of_a_return_is_ignored": 8,
    "delayed_batch_is_collected": 1,
    "delayed_batch_is_missing_in_snapshots": 3,
    "delayed_batch_is_released_early": 3,
    "delayed_batch_is_released_twice": 1,
    "drop_leaves_positions_behind": 16,
    "dropped_messages_are_not_counted": 16,
    "ended_subscription_is_forgotten": 14,
    "epochs_restart": 3,
    "everybody_is_a_gateway": 1,
    "expired_message_is_delivered": 3,
    "expiry_deletes_live_messages": 3,
    "expiry_is_forgotten_in_a_restart": 3,
    "extension_is_not_applied": 35,
    "first_message_is_not_kept": 4,
    "forbidden_number_stays_open": 3,
    "full_topic_drops_what_it_acknowledged": 8,
    "full_topic_is_left_out_of_a_commit": 25,
    "gap_is_accepted": 2,
    "get_moves_the_position": 1,
    "gets_do_not_count_against_idleness": 11,
    "held_peer_is_forgotten": 18,
    "hello_repetition_bumps_the_epoch": 4,
    "idle_subscription_is_kept": 2,
    "idle_time_does_not_start_anew": 2,
    "key_is_free_when_a_lease_expires": 13,
    "keys_of_other_principals_are_freed": 170,
    "leap_of_the_clock_is_believed": 2,
    "lease_expires_early": 11,
    "lease_is_missing_in_snapshots": 1,
    "leases_are_not_restarted": 8,
    "leaving_loses_leased_messages": 13,
    "listener_reuses_names_of_peers": 150,
    "lists_show_everything": 1,
    "live_message_expires": 105,
    "lost_settle_is_called_done": 13,
    "moved_is_not_applied": 1,
    "no_sync_begun_segment": 2,
    "no_sync_copy_of_the_last_group": 177,
    "no_sync_cut_bytes": 33,
    "no_sync_cut_name": 73,
    "no_sync_last_group_again": 5,
    "no_sync_meta": 2,
    "no_sync_meta_name": 2,
    "no_sync_name_of_the_last_group_s_copy": 148,
    "no_sync_segment_head": 2,
    "no_sync_segment_head_again": 64,
    "no_sync_snapshot_name": 3,
    "not_now_uses_up_the_number": 3,
    "one_off_is_remembered": 7,
    "other_content_is_taken_for_a_retry": 15,
    "outbox_completes_what_it_sends": 7,
    "outbox_forgets_refusals": 13,
    "outbox_ignores_old_entries": 6,
    "outbox_is_rewound_unnoticed": 6,
    "outbox_numbers_again": 28,
    "outbox_owner_is_not_checked": 28,
    "outbox_takes_forgotten_for_refused": 134,
    "owned_things_are_counted_for_ever": 1,
    "owner_is_forgotten_too_early": 1,
    "owner_outlives_the_subscription": 3,
    "owners_are_missing_in_snapshots": 1,
    "owners_are_not_recorded": 1,
    "page_ends_with_a_hidden_name": 1,
    "pattern_forgets_a_topic": 9,
    "pattern_seek_keeps_the_epoch": 2,
    "principal_is_not_checked": 3,
    "reader_loses_the_beginning_of_a_message": 1,
    "recycled_segment_is_read_as_new": 3,
    "refusal_shows_a_hidden_topic": 3,
    "release_ignores_snapshots": 2,
    "release_ignores_the_index": 1,
    "replayed_commit_publishes_again": 66,
    "reply_before_the_sync": 2,
    "retention_ignores_subscribers": 5,
    "returned_is_lost_in_a_restart": 16,
    "rights_outlive_a_reload": 1,
    "schemas_are_missing_in_snapshots": 6,
    "seek_keeps_the_epoch": 1,
    "session_epoch_is_not_checked": 1,
    "session_has_no_owner": 1,
    "session_owner_is_not_checked": 1,
    "settle_token_is_not_checked": 53,
    "settled_message_comes_back": 1,
    "snapshot_is_ahead_of_its_group": 1,
    "stage_counts_are_not_checked": 27,
    "stage_owner_is_not_checked": 48,
    "staging_for_a_committed_batch_is_taken": 1,
    "subscription_acks_what_it_fetched": 7,
    "subscription_owner_is_not_checked": 1,
    "topic_made_later_is_not_attached": 2,
    "torn_group_is_accepted": 6,
    "torn_payload_is_accepted": 19,
    "transaction_epoch_is_not_checked": 2,
    "transaction_goes_on_after_a_refusal": 2,
    "transaction_goes_on_without_its_lease": 17,
    "transaction_ignores_a_failure_before_it": 8,
    "transaction_is_applied_in_part": 2,
    "transaction_is_not_authorized": 3,
    "tries_are_forgotten": 8,
    "unchecked_messages_are_accepted": 127,
    "verdicts_are_forgotten_too_early": 2,
    "waiting_request_is_not_authorized": 27,
    "waiting_request_outlives_a_reload": 27,
    "writer_owner_is_not_checked": 7,
    "writers_are_missing_in_snapshots": 1,
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
