"""The idempotency keys of all principals, in the order of their age."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

import msgspec

from oncemq.engine.state.sorted_names import SortedNames
from oncemq.protocol.replies import Verdict

#: Freed keys are kept in the order until there are this many and they are half of all entries.
_STALE_MIN = 1_000


class KeyEntry(msgspec.Struct, array_like=True, frozen=True):
    principal: str
    key: str
    digest: int
    verdict: Verdict
    time_ms: int


class KeyTable:
    def __init__(self) -> None:
        #: Principal → its keys, the oldest first.
        self._by_principal: dict[str, dict[str, KeyEntry]] = {}
        #: All keys, the oldest first. Some may have been freed, but not the first one.
        self._by_age: deque[KeyEntry] = deque()
        self._count = 0
        #: User → number of keys of all its principals: the user's name, and those that begin with it and a slash.
        self._by_user: Counter[str] = Counter()
        #: The principals, and the keys of each, in the order of their names, once they were listed. Derived.
        self._principals: SortedNames | None = None
        self._names: dict[str, SortedNames] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[KeyEntry]:
        """Yield all keys, the oldest first."""
        if len(self._by_age) == self._count:
            # None was freed, and a snapshot copies the whole table at once.
            return iter(self._by_age)
        return filter(self._exists, self._by_age)

    def get(self, principal: str, key: str) -> KeyEntry | None:
        return self.of(principal).get(key)

    def of(self, principal: str) -> dict[str, KeyEntry]:
        """Return the keys of a principal, the oldest first. The caller does not change them."""
        return self._by_principal.get(principal, _NO_KEYS)

    def count_of(self, user: str) -> int:
        """Return the number of keys of a user."""
        return self._by_user[user]

    def add(self, entry: KeyEntry) -> None:
        """Add a key that the principal did not have."""
        keys = self._by_principal.get(entry.principal)
        if keys is None:
            keys = self._by_principal[entry.principal] = {}
            if self._principals is not None:
                self._principals.add(entry.principal)
        keys[entry.key] = entry
        self._by_age.append(entry)
        self._count += 1
        self._by_user[_user_of(entry.principal)] += 1
        if entry.principal in self._names:
            self._names[entry.principal].add(entry.key)

    def expire(self, count: int) -> None:
        """Remove the oldest keys."""
        for _ in range(count):
            self._remove(self._by_age.popleft())
            self._drop_freed()

    def free(self, principal: str, key: str) -> None:
        """Remove a key before it expires."""
        self._remove(self._by_principal[principal][key])
        self._drop_freed()
        if len(self._by_age) > 2 * self._count + _STALE_MIN:
            self._by_age = deque(self)

    def _drop_freed(self) -> None:
        """Find the oldest key. Each round asks for it."""
        while self._by_age and not self._exists(self._by_age[0]):
            self._by_age.popleft()

    def _exists(self, entry: KeyEntry) -> bool:
        return self.get(entry.principal, entry.key) is entry

    def _remove(self, entry: KeyEntry) -> None:
        principal = entry.principal
        keys = self._by_principal[principal]
        del keys[entry.key]
        self._count -= 1
        user = _user_of(principal)
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]
        if principal in self._names:
            self._names[principal].remove(entry.key)
        if not keys:
            del self._by_principal[principal]
            self._names.pop(principal, None)
            if self._principals is not None:
                self._principals.remove(principal)

    # Lists.

    def principals(self) -> SortedNames:
        self._principals = self._principals or SortedNames(self._by_principal)
        return self._principals

    def names_of(self, principal: str) -> SortedNames:
        """Return the keys of a principal in the order of their names."""
        names = self._names.get(principal) or SortedNames(self.of(principal))
        if principal in self._by_principal:
            self._names[principal] = names
        return names


def _user_of(principal: str) -> str:
    return principal.partition("/")[0]


_NO_KEYS: dict[str, KeyEntry] = {}
