"""What the gateway keeps between requests. All of it is a cache: whatever is lost with the process, the broker knows.

The epochs of subscriptions that the gateway consumes on behalf of callers without an epoch of their own.
"""

from __future__ import annotations

from oncemq.engine.replies import OpenReply


class State:
    def __init__(self) -> None:
        #: (topic, subscriber) → how the gateway opened it
        self.opened: dict[tuple[str, str], OpenReply] = {}
