"""Events of stages and commits."""

from __future__ import annotations

import msgspec

from oncemq.engine.events.claims import AnyClaim


class Staged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sg"):
    claim: AnyClaim
    stage: str
    topic_id: int
    count: int
    size: int
    position: int
    expires_ms: int
    #: Number of messages in the stage, including this batch.
    stage_count: int
    ttl_ms: int = 0
    key_hashes: bytes = b""


class CommittedPart(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The part of a commit on one of its topics."""

    topic_id: int
    first_offset: int
    count: int
    subscriptions: int
    stages: tuple[str, ...]


class Committed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="cm"):
    claim: AnyClaim
    #: "" = a one-off commit, which is not recorded for a writer.
    writer: str
    batch: int
    #: 0 = no topic, or several topics, which are in `parts`.
    topic_id: int
    first_offset: int
    #: Number of messages on all topics.
    count: int
    subscriptions: int
    stages: tuple[str, ...]
    #: The batch was committed before: only the stages are deleted, on all topics.
    before: bool
    parts: tuple[CommittedPart, ...] = ()
    content: bytes = b""


class StagesDropped(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sd"):
    """A client aborted stages."""

    claim: AnyClaim
    stages: tuple[str, ...]


class StagesExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sx"):
    stages: tuple[str, ...]


StageEvent = Staged | Committed | StagesDropped | StagesExpired
