"""All limits, named with their units.

Limits that depend on the size of the machine are fields of `Limits` and can be set. Limits that belong to the
protocol are constants.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

NAME_BYTES_MAX = 255
#: For idempotency keys, registry keys and stages.
KEY_BYTES_MAX = 512
#: Idempotency keys that one command can free.
REMOVED_KEYS_MAX = 1_000
REGISTRY_VALUE_BYTES_MAX = 64 * 1024
HEADERS_BYTES_MAX = 64 * 1024
BATCH_COUNT_MAX = 1_000_000
#: Frames of one request, including the header.
REQUEST_FRAMES_MAX = 1_001
COMMANDS_PER_REQUEST_MAX = 10_000
REQUEST_HEADER_BYTES_MAX = 4 * 1024 * 1024
STAGES_PER_COMMIT_MAX = 10_000
#: The content of a commit: a digest that the writer computes.
CONTENT_BYTES_MAX = 64
#: Commits of one writer whose contents are kept, so that a repeated one can be compared.
KEPT_COMMITS_MAX = 32
WINDOW_MAX = 1_024
#: Earlier hellos that a session remembers, so that a late retry of one of them cannot fence its successor.
NONCES_MAX = 4
#: Entries and bytes of one page of a list. A page has at least one entry.
LIST_PAGE_MAX = 1_000
LIST_PAGE_BYTES_MAX = 32 * 1024
GET_BATCHES_MAX = 2_000
#: Batches that one reply to a measure covers, and the parts in it.
MEASURE_BATCHES_MAX = 16_384
MEASURE_PARTS_MAX = 1_000
WAIT_MS_MAX = 60_000
#: Applies to the acks, the settles and the puts of a transaction separately.
TRANSACTION_PARTS_MAX = 10_000
#: Maximum time to live and maximum delay: a hundred years.
TTL_MS_MAX = 100 * 366 * 24 * 3600 * 1000
#: Topics of a pattern subscription that one seek can move.
SEEK_TOPICS_MAX = 10_000
#: Ranges of one `settle` and of one lease.
RANGES_MAX = 1_000
LEASE_MS_MIN = 100
LEASE_MS_MAX = 24 * 3600 * 1000
#: How long the owner of a subscription may be idle before the subscription is deleted, if it has such a limit.
IDLE_MS_MIN = 100
IDLE_MS_MAX = 100 * 366 * 24 * 3600 * 1000
#: Messages of busy keys that a shared subscription with key order skips before it waits.
BLOCKED_MAX = 100_000
#: Names that a topic remembers of subscriptions that its quota deleted, so that it can tell their owners why.
EXPIRED_NAMES_MAX = 1_000
#: A schema with its definition, its fields on all levels, and the versions of a topic's schema.
SCHEMA_BYTES_MAX = 256 * 1024
SCHEMA_FIELDS_MAX = 2_000
SCHEMA_VERSIONS_MAX = 1_000
#: All versions of a topic's schema together: a new one is compared with all of them.
SCHEMAS_BYTES_MAX = 1024 * 1024
#: Maximum time for which an owner can hold a subscription.
HOLD_MS_MAX = 24 * 3600 * 1000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that an operator can set."""

    #: Payload of one batch.
    batch_bytes_max: int = 16 * 1024 * 1024
    #: Maximum size of a reply to `get` or `read`. The first batch is always returned.
    get_bytes_max: int = 8 * 1024 * 1024
    #: Maximum payload per sync. The first batch is always accepted.
    group_bytes_max: int = 8 * 1024 * 1024
    topics_max: int = 1_000_000
    subscriptions_max: int = 1_000_000
    sessions_max: int = 1_000_000
    #: An anonymous session expires this long after its last command.
    session_idle_ms: int = 24 * 3600 * 1000
    keys_max: int = 1_000_000
    #: Keys of one principal, so that one caller does not use up the table.
    keys_per_principal_max: int = 100_000
    key_ms: int = 7 * 24 * 3600 * 1000
    registry_entries_max: int = 100_000
    #: Registry entries of one gateway.
    registry_entries_per_namespace_max: int = 40_000
    stages_max: int = 100_000
    stage_ms: int = 24 * 3600 * 1000
    writers_max: int = 100_000
    patterns_max: int = 1_000
    #: Delayed batches on all topics.
    delayed_max: int = 1_000_000
    #: Members of one shared subscription, and messages that they have in flight together.
    members_max: int = 10_000
    leased_max: int = 1_000_000
    #: How far the wall clock may be ahead of the last recorded time at a start. A larger leap has to be confirmed.
    clock_leap_ms_max: Annotated[int, Meta(ge=60_000)] = 7 * 24 * 3600 * 1000
