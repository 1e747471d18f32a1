"""The schema of a topic: its versions and settings. Immutable, so that a snapshot can refer to it."""

from __future__ import annotations

import msgspec

from oncemq.protocol.commands import CHECK_BROKER, CHECK_CLIENT, CHECK_NONE
from oncemq.protocol.schema.compatibility import Rule
from oncemq.protocol.schema.model import Schema, SchemaVersion


class TopicSchema(msgspec.Struct, array_like=True, frozen=True, gc=False):
    #: Version n is at index n - 1: versions are never deleted, because stored messages refer to them.
    versions: tuple[SchemaVersion, ...]
    rule: Rule = "backward"
    check: str = CHECK_CLIENT

    @property
    def is_required(self) -> bool:
        """Whether messages must match a version."""
        return self.check != CHECK_NONE

    @property
    def is_checked(self) -> bool:
        """Whether the broker checks values."""
        return self.check == CHECK_BROKER

    def find(self, version: int) -> Schema | None:
        """Return the schema of a version."""
        return self.versions[version - 1].schema if 1 <= version <= len(self.versions) else None
