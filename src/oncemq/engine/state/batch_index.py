"""The batches of a topic, by offset.

The index consists of arrays with a head index, not of objects: a million stored batches take 40 MB, and deleting the
oldest batch takes O(1) amortised. Offsets are contiguous: batch i covers the offsets from the end of batch i - 1 to
its own end. An entry refers to a slice of a stored payload, which starts at message `skip`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain

import msgspec

#: Deleted entries are kept in the arrays until there are this many and they are half of all entries.
_COMPACT_MIN = 64
_HASH_BYTES = 8
#: Marks an expired batch in the column of expiry times.
EXPIRED = -1
_NONE = array("q")


class Slice(msgspec.Struct, frozen=True, gc=False):
    """Messages `skip` to `skip + count` of the payload at `position`."""

    position: int
    size: int
    first_offset: int
    count: int
    skip: int
    time_ms: int


class Extent(msgspec.Struct, frozen=True, gc=False):
    """The batches of a range of offsets. A batch that is only partly in the range has its size in proportion."""

    #: The end of the range; below the one that was asked for if it has too many batches.
    stop: int
    #: When the first batch was stored; 0 = there is none.
    time_ms: int
    #: The end of each batch.
    ends: array[int]
    #: The total size up to the end of each batch.
    totals: list[int]

    @property
    def bytes(self) -> int:
        return self.totals[-1] if self.totals else 0

    def divide(self, part_bytes: int, parts_max: int) -> tuple[tuple[int, int], ...]:
        """Divide into parts of at least `part_bytes`, each (end, size). What is left is not a part."""
        found: list[tuple[int, int]] = []
        before = 0
        while len(found) < parts_max:
            batch = bisect_left(self.totals, before + part_bytes)
            if batch == len(self.totals):
                break
            found.append((min(self.ends[batch], self.stop), self.totals[batch] - before))
            before = self.totals[batch]
        return tuple(found)


class BatchIndex:
    __slots__ = ("ends", "expires", "expiring", "first", "head", "keys", "positions", "sizes", "skips", "times")

    def __init__(self, first: int = 0) -> None:
        #: The first stored offset; the end of the topic if nothing is stored.
        self.first = first
        self.head = 0
        self.ends = array("q")
        self.positions = array("q")
        self.sizes = array("I")
        self.skips = array("I")
        self.times = array("q")
        #: When the time to live ends; 0 = never; or EXPIRED.
        self.expires = array("q")
        #: Number of entries that have a time to live, including expired ones.
        self.expiring = 0
        #: First offset → one u64 per message, for entries with key hashes.
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
            self.expiring += 1
        if keys:
            self.keys[end] = keys

    def find(self, offset: int) -> int:
        """Return the entry of an offset, which must be stored."""
        return bisect_right(self.ends, offset, self.head)

    def first_offset(self, entry: int) -> int:
        return self.ends[entry - 1] if entry > self.head else self.first

    def find_time(self, time_ms: int) -> int:
        """Return the first offset that was stored at this time or later; the end if there is none."""
        entry = bisect_left(self.times, time_ms, self.head)
        return self.first_offset(entry) if entry < len(self.ends) else self.end

    def skip_expired(self, offset: int) -> int:
        """Return the first offset at or after this one that has not expired."""
        if not self.expiring or offset >= self.end:
            return offset
        entry = self.find(max(offset, self.first))
        while entry < len(self.ends) and self.expires[entry] == EXPIRED:
            offset = self.ends[entry]
            entry += 1
        return offset

    def visible(self, offset: int, bytes_max: int, slices_max: int) -> tuple[list[Slice], int]:
        """Return the slices that have not expired, as `slices` does, and the next position."""
        if not self.expiring:
            found = self.slices(offset, bytes_max, slices_max)
            return found, found[-1].first_offset + found[-1].count if found else offset
        found = []
        while (offset := self.skip_expired(offset)) < self.end and len(found) < slices_max:
            run = self.slices(offset, bytes_max, slices_max - len(found), unexpired=True)
            if found and run[0].size > bytes_max:
                break
            found += run
            bytes_max -= sum(one.size for one in run)
            offset = run[-1].first_offset + run[-1].count
        return found, offset

    def slices(self, offset: int, bytes_max: int, slices_max: int, *, unexpired: bool = False) -> list[Slice]:
        """Return slices from `offset`, within the limits, but at least one if anything is stored there.

        With `unexpired`, stop at the next expired batch.
        """
        found: list[Slice] = []
        entry = self.find(offset)
        first = self.first_offset(entry) if entry < len(self.ends) else self.end
        # Messages of the first entry before `offset`.
        before = max(0, offset - first)
        while entry < len(self.ends) and len(found) < slices_max:
            size = self.sizes[entry]
            bytes_max -= size
            if found and (bytes_max < 0 or (unexpired and self.expires[entry] == EXPIRED)):
                break
            end = self.ends[entry]
            skip = self.skips[entry] + before
            first += before
            found.append(Slice(self.positions[entry], size, first, end - first, skip, self.times[entry]))
            first, before = end, 0
            entry += 1
        return found

    def measure(self, start: int, stop: int, batches_max: int) -> Extent:
        """Measure the stored messages of a range, of which at most `batches_max` batches are looked at."""
        start, stored = max(start, self.first), min(stop, self.end)
        if start >= stored:
            return Extent(stop, 0, _NONE, [])
        first, last = self.find(start), self.find(stored - 1)
        if last >= first + batches_max:
            last = first + batches_max - 1
            stop = self.ends[last]
        sizes = self.sizes[first : last + 1]
        # The first batch may start before the range, and the last one may end after it.
        for entry in {first, last}:
            begin, end = self.first_offset(entry), self.ends[entry]
            sizes[entry - first] = sizes[entry - first] * (min(end, stop) - max(begin, start)) // (end - begin)
        return Extent(stop, self.times[first], self.ends[first : last + 1], list(accumulate(sizes)))

    def drop_below(self, floor: int) -> tuple[array[int], array[int]]:
        """Delete every entry that ends at or below `floor`. Return their positions and sizes."""
        head, ends = self.head, self.ends
        if head == len(ends) or ends[head] > floor:
            return _NONE, _NONE
        stop = bisect_right(ends, floor, head)
        positions, sizes = self.positions[head:stop], self.sizes[head:stop]
        if self.expiring:
            self.expiring -= sum(1 for expires_ms in self.expires[head:stop] if expires_ms)
        if self.keys:
            for entry in range(head, stop):
                self.keys.pop(self.first_offset(entry), None)
        self.first = ends[stop - 1]
        self.head = stop
        if stop > _COMPACT_MIN and stop * 2 > len(ends):
            self._compact()
        return positions, sizes

    def _compact(self) -> None:
        for column in (self.ends, self.positions, self.sizes, self.skips, self.times, self.expires):
            del column[: self.head]
        self.head = 0

    def skip_to(self, offset: int) -> None:
        """Move the end of the topic while nothing is stored."""
        self.first = offset

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield (position, size) of all entries."""
        yield from zip(self.positions[self.head :], self.sizes[self.head :], strict=True)

    def first_offsets(self) -> Iterator[tuple[int, int]]:
        """Yield (position, first offset) of all entries."""
        firsts = chain((self.first,), self.ends[self.head : -1])
        yield from zip(self.positions[self.head :], firsts, strict=True) if len(self) else ()

    def key_hashes(self, entry: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, key hash) of an entry's messages from `first` to `end`; the hash is 0 without a key."""
        entry_first = self.first_offset(entry)
        hashes = self.keys.get(entry_first, b"")
        for offset in range(first, end):
            at = (offset - entry_first) * _HASH_BYTES
            yield offset, int.from_bytes(hashes[at : at + _HASH_BYTES], "little")
