"""Messages out of the broker's answers to gets, one after the other, as they lie in their batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, split
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import BatchHead, GetReply


def check(reply: GetReply, payloads: Sequence[Frame]) -> list[tuple[BatchHead, bytes]]:
    """Batches with their payloads, as they were stored. Raises DamagedInTransit: they must be got again."""
    batches = []
    for head, frame in zip(reply.batches, payloads, strict=True):
        payload = bytes(frame)
        if checksum(payload) != head.checksum:
            raise errors.DamagedInTransit(f"a batch at offset {head.first_offset} came damaged")
        batches.append((head, payload))
    return batches


def draw(batches: Sequence[tuple[BatchHead, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Offsets and values. A batch may hold a million: they are cut out one by one. Raises Malformed."""
    for head, payload in batches:
        columns = split(payload)
        if not 0 <= head.skip <= head.skip + head.count <= columns.count:
            raise errors.Malformed(f"messages {head.skip} to {head.skip + head.count} of a batch of {columns.count}")
        ends, at = columns.value_offsets, columns.values_at
        for index in range(head.skip, head.skip + head.count):
            yield head.first_offset + index - head.skip, payload[at + ends[index] : at + ends[index + 1]]
