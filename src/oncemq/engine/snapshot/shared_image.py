"""A shared subscription as a snapshot holds it: in an order of its own, so that equal ones look alike."""

from __future__ import annotations

from collections import deque

import msgspec

from oncemq.engine.state.offset_ranges import DoneRanges, Spans
from oncemq.engine.state.shared_subscription import KeyOrder, Lease, Shared
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
    #: (name, last number, active)
    members: tuple[tuple[str, int, int], ...]
    #: (first, end, tries so far, not before)
    returned: tuple[tuple[int, int, int, int], ...]
    #: Offsets that are out and have a key, and its hash. Their batches may be gone, so the index can't tell.
    key_offsets: tuple[int, ...]
    key_hashes: tuple[int, ...]
    #: Offsets that are blocked, with their keys' hashes.
    blocked_offsets: tuple[int, ...]
    blocked_hashes: tuple[int, ...]


def image_of(shared: Shared) -> SharedImage:
    out = sorted(shared.keys.hashes.items())
    blocked = sorted((offset, key_hash) for key_hash, behind in shared.keys.waiting.items() for offset in behind)
    return SharedImage(
        shared.policy,
        shared.floor(),
        shared.next,
        tuple(shared.done.ranges()),
        tuple(_lease_image(shared.leases[token]) for token in sorted(shared.leases)),
        tuple((name, member.last_number, member.active_ms) for name, member in sorted(shared.members.items())),
        tuple((first, *span) for first, span in sorted(shared.returned.spans.items())),
        tuple(offset for offset, _ in out),
        tuple(key_hash for _, key_hash in out),
        tuple(offset for offset, _ in blocked),
        tuple(key_hash for _, key_hash in blocked),
    )


def _lease_image(lease: Lease) -> LeaseImage:
    return LeaseImage(lease.token, lease.member, lease.number, lease.until_ms, tuple(lease.spans))


def shared_of(image: SharedImage) -> Shared:
    shared = Shared(image.policy, image.floor)
    shared.next = image.next
    shared.done = DoneRanges(image.floor, image.done)
    for name, last_number, active_ms in image.members:
        shared.join(name, last_number, active_ms)
    for lease in image.leases:
        spans = Spans(lease.spans)
        shared.add_lease(Lease(lease.token, lease.member, lease.number, lease.until_ms, spans))
    for first, end, tries, not_before_ms in image.returned:
        shared.returned.add(first, end, tries, not_before_ms)
    shared.keys = _key_order_of(image)
    return shared


def _key_order_of(image: SharedImage) -> KeyOrder:
    keys = KeyOrder()
    keys.hashes = dict(zip(image.key_offsets, image.key_hashes, strict=True))
    keys.waiting = {key_hash: deque() for key_hash in image.key_hashes}
    for offset, key_hash in zip(image.blocked_offsets, image.blocked_hashes, strict=True):
        keys.block(offset, key_hash)
    return keys
