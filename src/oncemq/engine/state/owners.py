"""Who owns what: the user who created it, or took it over while it had no owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from oncemq.protocol.commands import ENTRY, SESSION, SUBSCRIPTION, WRITER

#: Kinds of what has an owner, in addition to those that can be assigned. A topic's owner has no rights on it: its
#: messages count for the owner's quota.
TOPIC = "topic"
STAGE = "stage"

KINDS = (SESSION, SUBSCRIPTION, STAGE, WRITER, ENTRY, TOPIC)

#: (kind, of, name, owner). `of` is the topic or pattern of a subscription, or the namespace of a registry entry.
OwnerEntry = tuple[str, str, str, str]


class Owners:
    """Has no entry for what nobody owns: it is empty as long as there are no users."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str, str], str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        #: Owner → the names of the topics.
        self._topics: dict[str, set[str]] = {}
        #: Rises with each change.
        self.changes = 0

    def __len__(self) -> int:
        return len(self._owners)

    def get(self, kind: str, of: str, name: str) -> str:
        """Return the owner; empty if there is none."""
        return self._owners.get((kind, of, name), "")

    def assign(self, kind: str, of: str, name: str, owner: str) -> None:
        """Set the owner. An empty one means nobody."""
        self.forget(kind, of, name)
        self.changes += 1
        if owner:
            self._owners[kind, of, name] = owner
            self._counts[kind, owner] += 1
            if kind == TOPIC:
                self._topics.setdefault(owner, set()).add(name)

    def forget(self, kind: str, of: str, name: str) -> None:
        """What was owned is deleted."""
        owner = self._owners.pop((kind, of, name), "")
        if not owner:
            return
        self.changes += 1
        self._counts[kind, owner] -= 1
        if not self._counts[kind, owner]:
            del self._counts[kind, owner]
        if kind == TOPIC:
            self._topics[owner].discard(name)
            if not self._topics[owner]:
                del self._topics[owner]

    def count(self, kind: str, owner: str) -> int:
        return self._counts[kind, owner]

    def topics_of(self, owner: str) -> frozenset[str] | set[str]:
        """Return the names of an owner's topics. The caller does not change them."""
        return self._topics.get(owner, frozenset())

    def __iter__(self) -> Iterator[OwnerEntry]:
        for (kind, of, name), owner in self._owners.items():
            yield kind, of, name, owner
