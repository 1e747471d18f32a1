"""The batches of the broker's replies, verified; and their messages, one at a time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, split
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import BatchHead, GetReply

log = logging.getLogger("oncemq.gateways")

Skipped = type[errors.Refused] | tuple[type[errors.Refused], ...]


def verified_payload(topic: str, first_offset: int, frame: Frame, expected: int) -> bytes:
    """Return a batch's payload. Raises DamagedInTransit if its checksum is wrong: the batch must be got again."""
    payload = frame if isinstance(frame, bytes) else bytes(frame)
    if checksum(payload) != expected:
        raise errors.DamagedInTransit(f"the batch at offset {first_offset} of '{topic}' does not match its checksum")
    return payload


def verified_batches(topic: str, reply: GetReply, payloads: Sequence[Frame]) -> list[tuple[BatchHead, bytes]]:
    """Return the batches of a get or a read. Raises DamagedInTransit."""
    return [
        (head, verified_payload(topic, head.first_offset, frame, head.checksum))
        for head, frame in zip(reply.batches, payloads, strict=True)
    ]


def iterate_values(
    topic: str, batches: Sequence[tuple[BatchHead, bytes]], skipped: Skipped, counters: Counter[str]
) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and values. They are cut out one at a time, since a batch may hold a million messages. A batch that
    can't be decoded because of a `skipped` error is skipped, counted and logged. Raises the others: Malformed, and
    Unsupported for an encoding of a later version."""
    for head, payload in batches:
        try:
            columns = split(payload)
            if not 0 <= head.skip <= head.skip + head.count <= columns.count:
                raise errors.Malformed(f"messages up to {head.skip + head.count} of a batch of {columns.count}")
        except skipped as error:
            counters["batches_unreadable"] += 1
            log.error("offset %d of '%s' can't be decoded, and is skipped: %s", head.first_offset, topic, error.text)
            continue
        ends, at, values = columns.value_offsets, columns.values_at, columns.values
        for index in range(head.skip, head.skip + head.count):
            yield head.first_offset + index - head.skip, values[at + ends[index] : at + ends[index + 1]]
