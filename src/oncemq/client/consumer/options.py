"""What a caller sets for a consumer of a subscription."""

from __future__ import annotations

import msgspec

from oncemq.client.consumer.filter import Wanted, filter_of


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a subscription that has one consumer at a time. Raises TypeError for what is not a filter."""

    #: A message is acked when the next one is requested.
    auto_ack: bool = True
    #: Which messages the caller wants; None: all.
    filter: Wanted | None = None
    #: About how many bytes are fetched ahead.
    prefetch_bytes: int = 2 * 1024 * 1024
    #: If not 0, the consumer owns the subscription for this long after its last command, and others get Busy.
    hold_ms: int = 0

    def __post_init__(self) -> None:
        filter_of(self.filter)
