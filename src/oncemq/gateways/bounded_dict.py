"""A dictionary with a bound, for caches: what falls out of it can be asked of the broker again."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

_ENTRIES_MAX = 10_000


class BoundedDict(dict[K, V]):
    """Keeps the 10,000 entries that were set last. Only `[key] = value` adds entries."""

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > _ENTRIES_MAX:
            del self[next(iter(self))]
