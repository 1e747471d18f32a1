"""Relocates a snapshot to another journal: lists the records that it needs, and replaces their positions.

Positions belong to a journal. The rest of the state is copied unchanged.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from oncemq.engine.snapshot.capture import (
    Image,
    StageImage,
    TopicImage,
    decode_images,
    encode_images,
    little_endian,
)

_replace = msgspec.structs.replace


class NeededRecord(msgspec.Struct, frozen=True, gc=False):
    position: int
    topic_id: int
    #: -1 for a staged or delayed record, which has no offset yet.
    first_offset: int
    count: int
    size: int


def needed_records(chunks: Iterable[bytes]) -> Iterator[NeededRecord]:
    """Yield every record that a snapshot refers to."""
    for chunk in chunks:
        for image in decode_images(chunk):
            if isinstance(image, TopicImage):
                yield from _stored(image)
                for batch in image.delayed:
                    yield NeededRecord(batch.position, image.id, -1, batch.count, batch.size)
            elif isinstance(image, StageImage):
                for staged in image.entry.batches:
                    yield NeededRecord(staged.position, image.entry.topic_id, -1, staged.count, staged.size)


def _stored(image: TopicImage) -> Iterator[NeededRecord]:
    first = image.first
    columns = (_column("q", image.ends), _column("q", image.positions), _column("I", image.sizes))
    for end, position, size in zip(*columns, strict=True):
        yield NeededRecord(position, image.id, first, end - first, size)
        first = end


def relocated(chunk: bytes, positions: Mapping[int, int]) -> bytes:
    """Replace positions in a chunk. `positions` maps the old position of each record to the new one."""
    return encode_images([_relocated(image, positions) for image in decode_images(chunk)])


def _relocated(image: Image, positions: Mapping[int, int]) -> Image:
    if isinstance(image, TopicImage):
        column = array("q", [positions[position] for position in _column("q", image.positions)])
        delayed = tuple(_replace(batch, position=positions[batch.position]) for batch in image.delayed)
        return _replace(image, positions=little_endian(column).tobytes(), delayed=delayed)
    if isinstance(image, StageImage):
        batches = tuple(_replace(batch, position=positions[batch.position]) for batch in image.entry.batches)
        return _replace(image, entry=_replace(image.entry, batches=batches))
    return image


def _column(kind: str, raw: bytes) -> array[int]:
    return little_endian(array(kind, raw))
