"""The image of a shared subscription in a snapshot. Entries are sorted, so that equal states have equal images."""

from __future__ import annotations

from collections import deque

import msgspec

from oncemq.engine.state.offset_ranges import AckedRanges, Spans
from oncemq.engine.state.shared_subscription import KeyOrder, Lease, SharedState
from oncemq.protocol.commands import Sharing


class LeaseImage(msgspec.Struct, array_like=True, frozen=True):
    token: int
    member: str
    number: int
    until_ms: int
    #: (first, end, tries)
    spans: tuple[tuple[int, int, int], ...]


class SharedImage(msgspec.Struct, array_like=True, frozen=True):
    policy: Sharing
    floor: int
    next: int
    #: (first, end)
    done: tuple[tuple[int, int], ...]
    leases: tuple[LeaseImage, ...]
    #: (name, last number, time of last activity)
    members: tuple[tuple[str, int, int], ...]
    #: (first, end, deliveries so far, not before)
    returned: tuple[tuple[int, int, int, int], ...]
    #: Offsets in flight that have a key, and its hash. Their batches may be deleted, so the index is not sufficient.
    key_offsets: tuple[int, ...]
    key_hashes: tuple[int, ...]
    #: Blocked offsets and their key hashes.
    blocked_offsets: tuple[int, ...]
    blocked_hashes: tuple[int, ...]


def capture_shared(shared: SharedState) -> SharedImage:
    in_flight = sorted(shared.keys.hashes.items())
    blocked = sorted((offset, key_hash) for key_hash, behind in shared.keys.waiting.items() for offset in behind)
    return SharedImage(
        shared.policy,
        shared.floor(),
        shared.next_offset,
        tuple(shared.acked_ranges.ranges()),
        tuple(_lease_image(shared.leases[token]) for token in sorted(shared.leases)),
        tuple((name, member.last_number, member.active_ms) for name, member in sorted(shared.members.items())),
        tuple((first, *span) for first, span in sorted(shared.redeliveries.spans.items())),
        tuple(offset for offset, _ in in_flight),
        tuple(key_hash for _, key_hash in in_flight),
        tuple(offset for offset, _ in blocked),
        tuple(key_hash for _, key_hash in blocked),
    )


def _lease_image(lease: Lease) -> LeaseImage:
    return LeaseImage(lease.token, lease.member, lease.number, lease.until_ms, tuple(lease.spans))


def restore_shared(image: SharedImage) -> SharedState:
    shared = SharedState(image.policy, image.floor)
    shared.next_offset = image.next
    shared.acked_ranges = AckedRanges(image.floor, image.done)
    for name, last_number, active_ms in image.members:
        shared.update_member(name, last_number, active_ms)
    for lease in image.leases:
        spans = Spans(lease.spans)
        shared.add_lease(Lease(lease.token, lease.member, lease.number, lease.until_ms, spans))
    for first, end, tries, not_before_ms in image.returned:
        shared.redeliveries.add(first, end, tries, not_before_ms)
    shared.keys = _key_order_of(image)
    return shared


def _key_order_of(image: SharedImage) -> KeyOrder:
    keys = KeyOrder()
    keys.hashes = dict(zip(image.key_offsets, image.key_hashes, strict=True))
    keys.waiting = {key_hash: deque() for key_hash in image.key_hashes}
    for offset, key_hash in zip(image.blocked_offsets, image.blocked_hashes, strict=True):
        keys.block(offset, key_hash)
    return keys
