"""The names of a table in their order, for lists: a page costs as much as its entries, not as much as the table."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice

#: A chunk of twice this size is divided.
_CHUNK_NAMES = 512


class SortedNames:
    """Derived from a table when it is listed for the first time, and then updated with it."""

    __slots__ = ("_chunks",)

    def __init__(self, names: Iterable[str]) -> None:
        ordered = sorted(names)
        #: No chunk is empty.
        self._chunks = [ordered[at : at + _CHUNK_NAMES] for at in range(0, len(ordered), _CHUNK_NAMES)]

    def add(self, name: str) -> None:
        """Add a name that the table did not have."""
        if not self._chunks:
            self._chunks.append([name])
            return
        at = min(self._chunk_of(name), len(self._chunks) - 1)
        chunk = self._chunks[at]
        insort(chunk, name)
        if len(chunk) >= 2 * _CHUNK_NAMES:
            self._chunks[at : at + 1] = [chunk[:_CHUNK_NAMES], chunk[_CHUNK_NAMES:]]

    def remove(self, name: str) -> None:
        """Remove a name that the table had."""
        at = self._chunk_of(name)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, name)]
        if not chunk:
            del self._chunks[at]

    def after(self, name: str, *, inclusive: bool = False) -> Iterator[str]:
        """Yield the names after this one, and this one itself if `inclusive`."""
        at = self._chunk_of(name)
        if at == len(self._chunks):
            return
        chunk = self._chunks[at]
        find = bisect_left if inclusive else bisect_right
        yield from islice(chunk, find(chunk, name), None)
        for following in islice(self._chunks, at + 1, None):
            yield from following

    def _chunk_of(self, name: str) -> int:
        """Return the index of the first chunk that does not end before this name."""
        return bisect_left(self._chunks, name, key=lambda chunk: chunk[-1])
