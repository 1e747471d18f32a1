"""The result of a decision."""

from __future__ import annotations

import msgspec

from oncemq.engine.events import Event, Owned
from oncemq.engine.state.batch_index import Slice
from oncemq.protocol.replies import Reply


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A reply, the event to record before it is sent, and the batches that the broker must read for it."""

    reply: Reply
    event: Event | None = None
    slices: tuple[Slice, ...] = ()
    #: For a reply about several topics: the number of slices of each topic.
    counts: tuple[int, ...] = ()
    #: There are no messages yet: the id of the topic to wait for, or (pattern, subscriber); 0 = do not wait.
    waits_for: int | tuple[str, str] = 0
    #: To be recorded after the event: who owns what it has created.
    owned: Owned | None = None
