"""A snapshot whose records lie elsewhere: what it needs, and the same snapshot with other positions. Pure.

For copies of a journal: positions are the journal's own, everything else of the state goes along as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from oncemq.engine.snapshot.capture import Image, StageImage, TopicImage

_decode = msgspec.msgpack.Decoder(list[Image]).decode
_encode = msgspec.msgpack.Encoder().encode
_replace = msgspec.structs.replace
_LITTLE = array("H", [1]).tobytes() == b"\1\0"


class NeededRecord(msgspec.Struct, frozen=True, gc=False):
    position: int
    topic_id: int
    #: -1 where it has none yet: staged, or not due.
    first_offset: int
    count: int
    size: int


def needed_records(chunks: Iterable[bytes]) -> Iterator[NeededRecord]:
    """Every record that the state of a snapshot refers to."""
    for chunk in chunks:
        for image in _decode(chunk):
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


def relocated(chunk: bytes, places: Mapping[int, int]) -> bytes:
    """`places`: from the old position of each record to its new one."""
    return _encode([_relocated(image, places) for image in _decode(chunk)])


def _relocated(image: Image, places: Mapping[int, int]) -> Image:
    if isinstance(image, TopicImage):
        positions = array("q", [places[position] for position in _column("q", image.positions)])
        delayed = tuple(_replace(batch, position=places[batch.position]) for batch in image.delayed)
        return _replace(image, positions=_little(positions).tobytes(), delayed=delayed)
    if isinstance(image, StageImage):
        batches = tuple(_replace(batch, position=places[batch.position]) for batch in image.entry.batches)
        return _replace(image, entry=_replace(image.entry, batches=batches))
    return image


def _column(kind: str, raw: bytes) -> array[int]:
    return _little(array(kind, raw))


def _little(column: array[int]) -> array[int]:
    if not _LITTLE:
        column.byteswap()
    return column
