"""Every bound, named with its unit.

What depends on the size of the machine is a field of `Limits` and can be set; what the formats fix is a
constant.
"""

from __future__ import annotations

import msgspec

NAME_BYTES_MAX = 255
#: An idempotency key or a registry key.
KEY_BYTES_MAX = 512
REGISTRY_VALUE_BYTES_MAX = 64 * 1024
HEADERS_BYTES_MAX = 64 * 1024
BATCH_COUNT_MAX = 1_000_000
#: Frames of one request, the header included.
REQUEST_FRAMES_MAX = 1_001
COMMANDS_PER_REQUEST_MAX = 10_000
REQUEST_HEADER_BYTES_MAX = 4 * 1024 * 1024
STAGES_PER_COMMIT_MAX = 10_000
WINDOW_MAX = 1_024
#: Old hellos that a session remembers, so that a late repetition of one can't fence its successor.
NONCES_MAX = 4
LIST_PAGE_MAX = 1_000
GET_BATCHES_MAX = 2_000
WAIT_MS_MAX = 60_000
#: Acks, settles and puts of one transaction, each.
TRANSACTION_PARTS_MAX = 10_000
#: A time to live, and how far ahead a message may be due: a hundred years.
TTL_MS_MAX = 100 * 366 * 24 * 3600 * 1000
#: Topics of a subscription by pattern that a seek moves.
SEEK_TOPICS_MAX = 10_000
#: Ranges that one `settle` names, and one lease has.
RANGES_MAX = 1_000
LEASE_MS_MIN = 100
LEASE_MS_MAX = 24 * 3600 * 1000
#: Messages of busy keys that a shared subscription in order of keys passes over before it waits.
BLOCKED_MAX = 100_000
#: Subscribers that a topic's quota has ended, whose names it remembers, to tell them.
EXPIRED_NAMES_MAX = 1_000
#: A polite owner's hold on a subscription.
HOLD_MS_MAX = 24 * 3600 * 1000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds that an operator can set."""

    #: One batch's payload, as it travels.
    batch_bytes_max: int = 16 * 1024 * 1024
    #: What one `get` or `read` returns at the most, beyond its first batch.
    get_bytes_max: int = 8 * 1024 * 1024
    #: Payload that one sync covers at the most, beyond its first batch.
    group_bytes_max: int = 8 * 1024 * 1024
    topics_max: int = 1_000_000
    subscriptions_max: int = 1_000_000
    sessions_max: int = 1_000_000
    #: An anonymous session goes this long after its last command.
    session_idle_ms: int = 24 * 3600 * 1000
    keys_max: int = 1_000_000
    key_ms: int = 7 * 24 * 3600 * 1000
    registry_entries_max: int = 100_000
    stages_max: int = 100_000
    stage_ms: int = 24 * 3600 * 1000
    writers_max: int = 100_000
    patterns_max: int = 1_000
    #: Batches that are not due yet, on all topics.
    delayed_max: int = 1_000_000
    #: Consumers of one shared subscription, and messages that they may have out together.
    members_max: int = 10_000
    leased_max: int = 1_000_000
