"""A topic's batches, by offset.

Arrays with a head index, not objects: a million live batches cost 40 MB, and dropping the oldest is O(1)
amortised. Offsets are contiguous: batch i covers the offsets from the end of batch i - 1 to its own end.
An entry is a slice: `count` messages of a stored payload, from message `skip` on.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain

import msgspec

#: Dropped entries are kept until they are that many and half of all.
_COMPACT_MIN = 64
#: In the column of expiry times: the time is over.
EXPIRED = -1


class Slice(msgspec.Struct, frozen=True, gc=False):
    """Messages `skip` to `skip + count` of the payload at `position`."""

    position: int
    size: int
    first_offset: int
    count: int
    skip: int
    time_ms: int


class BatchIndex:
    __slots__ = ("ends", "expires", "first", "head", "keys", "mortal", "positions", "sizes", "skips", "times")

    def __init__(self, first: int = 0) -> None:
        #: The first offset that is stored; the topic's end where nothing is.
        self.first = first
        self.head = 0
        self.ends = array("q")
        self.positions = array("q")
        self.sizes = array("I")
        self.skips = array("I")
        self.times = array("q")
        #: When the time to live is over; 0 = never; EXPIRED.
        self.expires = array("q")
        #: Entries that expire or have expired.
        self.mortal = 0
        #: First offset → u64 per message, for entries that have key hashes.
        self.keys: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.ends) - self.head

    @property
    def end(self) -> int:
        return self.ends[-1] if len(self.ends) > self.head else self.first

    def add(
        self, count: int, position: int, size: int, skip: int, time_ms: int, expires_ms: int = 0, keys: bytes = b""
    ) -> None:
        end = self.end
        self.ends.append(end + count)
        self.positions.append(position)
        self.sizes.append(size)
        self.skips.append(skip)
        self.times.append(time_ms)
        self.expires.append(expires_ms)
        if expires_ms:
            self.mortal += 1
        if keys:
            self.keys[end] = keys

    def find(self, offset: int) -> int:
        """The entry that holds an offset, which must be stored."""
        return bisect_right(self.ends, offset, self.head)

    def first_offset(self, entry: int) -> int:
        return self.ends[entry - 1] if entry > self.head else self.first

    def find_time(self, time_ms: int) -> int:
        """The first offset that was stored at this time or later; the end, if there is none."""
        entry = bisect_left(self.times, time_ms, self.head)
        return self.first_offset(entry) if entry < len(self.ends) else self.end

    def past_expired(self, offset: int) -> int:
        """The first offset from this one on that has not expired."""
        if not self.mortal or offset >= self.end:
            return offset
        entry = self.find(max(offset, self.first))
        while entry < len(self.ends) and self.expires[entry] == EXPIRED:
            offset = self.ends[entry]
            entry += 1
        return offset

    def visible(self, offset: int, bytes_max: int, slices_max: int) -> tuple[list[Slice], int]:
        """As `slices`, without what has expired; and where to go on."""
        if not self.mortal:
            found = self.slices(offset, bytes_max, slices_max)
            return found, found[-1].first_offset + found[-1].count if found else offset
        found = []
        while (offset := self.past_expired(offset)) < self.end and len(found) < slices_max:
            run = self.slices(offset, bytes_max, slices_max - len(found), living=True)
            if found and run[0].size > bytes_max:
                break
            found += run
            bytes_max -= sum(one.size for one in run)
            offset = run[-1].first_offset + run[-1].count
        return found, offset

    def slices(self, offset: int, bytes_max: int, slices_max: int, *, living: bool = False) -> list[Slice]:
        """Entries from the one that holds `offset` on, that one from there on; at least one, if there is one.
        Where they are to be living, only up to the next one that has expired."""
        found: list[Slice] = []
        entry = self.find(offset)
        first = self.first_offset(entry) if entry < len(self.ends) else self.end
        #: What the first entry holds in front of `offset`.
        before = max(0, offset - first)
        while entry < len(self.ends) and len(found) < slices_max:
            size = self.sizes[entry]
            bytes_max -= size
            if found and (bytes_max < 0 or (living and self.expires[entry] == EXPIRED)):
                break
            end = self.ends[entry]
            skip = self.skips[entry] + before
            first += before
            found.append(Slice(self.positions[entry], size, first, end - first, skip, self.times[entry]))
            first, before = end, 0
            entry += 1
        return found

    def drop_below(self, floor: int) -> Iterator[tuple[int, int]]:
        """Drop every entry that ends at or below `floor`; yields (position, size) of each."""
        head = self.head
        ends = self.ends
        while head < len(ends) and ends[head] <= floor:
            yield self.positions[head], self.sizes[head]
            if self.expires[head]:
                self.mortal -= 1
            if self.keys:
                self.keys.pop(self.first, None)
            self.first = ends[head]
            head += 1
            self.head = head
        if head > _COMPACT_MIN and head * 2 > len(ends):
            self._compact()

    def _compact(self) -> None:
        for column in (self.ends, self.positions, self.sizes, self.skips, self.times, self.expires):
            del column[: self.head]
        self.head = 0

    def skip_to(self, offset: int) -> None:
        """Nothing is stored, and the topic's end moves on."""
        self.first = offset

    def entries(self) -> Iterator[tuple[int, int]]:
        """(position, size) of all."""
        yield from zip(self.positions[self.head :], self.sizes[self.head :], strict=True)

    def first_offsets(self) -> Iterator[tuple[int, int]]:
        """(position, first offset) of all."""
        firsts = chain((self.first,), self.ends[self.head : -1])
        yield from zip(self.positions[self.head :], firsts, strict=True) if len(self) else ()
