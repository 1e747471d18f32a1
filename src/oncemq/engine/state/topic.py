"""A topic and its subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oncemq.engine.state.batch_index import BatchIndex
from oncemq.engine.state.low_watermark import SCAN_MAX, LowWatermark
from oncemq.engine.state.sorted_names import SortedNames
from oncemq.protocol.commands import REFUSE

if TYPE_CHECKING:
    from oncemq.engine.state.pattern_subscription import PatternSubscription
    from oncemq.engine.state.shared_subscription import SharedState
    from oncemq.engine.state.topic_schema import TopicSchema


class Subscription:
    """A durable position in a topic, and its owner."""

    __slots__ = (
        "acked",
        "dropped",
        "epoch",
        "heard_ms",
        "held_until_ms",
        "idle_ms",
        "pattern",
        "shared",
        "sought_epoch",
        "subscriber",
    )

    def __init__(self, subscriber: str, acked: int, epoch: int = 0, held_until_ms: int = 0) -> None:
        self.subscriber = subscriber
        #: All offsets below are acked.
        self.acked = acked
        #: Rises with each owner: only the newest one may ack. Identifies the incarnation of a shared subscription.
        self.epoch = epoch
        #: The hold of the owner ends at this time; 0 = none.
        self.held_until_ms = held_until_ms
        #: Seeks have moved the subscription of owners from this epoch on; 0 = no seek since the last open.
        self.sought_epoch = 0
        #: Number of messages lost to the quota of the topic.
        self.dropped = 0
        #: It is deleted when its owner is idle for this time; 0 = never.
        self.idle_ms = 0
        #: When its owner last opened it, got or acked. Not recorded; 0 = not since the broker started.
        self.heard_ms = 0
        #: State of a shared subscription, which has no owner; None = exclusive.
        self.shared: SharedState | None = None
        #: The pattern subscription that attached this one, and that has the owner.
        self.pattern: PatternSubscription | None = None


class DelayedBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A stored batch that gets its offsets when it is due."""

    delay_id: int
    count: int
    size: int
    position: int
    due_ms: int
    ttl_ms: int
    key_hashes: bytes = b""


class Topic:
    __slots__ = (
        "_watermark",
        "above_trim_bytes",
        "attached",
        "captured",
        "delayed",
        "delayed_bytes",
        "delayed_count",
        "expired_names",
        "expiries",
        "id",
        "index",
        "key_orders",
        "keyed_from",
        "low_watermark",
        "name",
        "next_offset",
        "overflow",
        "quota_bytes",
        "retain_bytes",
        "retain_ms",
        "schema",
        "stays",
        "stored_bytes",
        "subscriber_names",
        "subscriptions",
        "trimmed",
    )

    def __init__(self, topic_id: int, name: str, stays: bool, retain_ms: int = 0, retain_bytes: int = 0) -> None:
        self.id = topic_id
        self.name = name
        #: Permanent: the topic is kept when its last subscription is deleted.
        self.stays = stays
        self.retain_ms = retain_ms
        self.retain_bytes = retain_bytes
        self.quota_bytes = 0
        self.overflow = REFUSE
        #: Its schema; None = it has none.
        self.schema: TopicSchema | None = None
        self.next_offset = 0
        self.index = BatchIndex()
        self.stored_bytes = 0
        self.subscriptions: dict[str, Subscription] = {}
        #: Their names in order, once they were listed. Derived.
        self.subscriber_names: SortedNames | None = None
        #: The subscriptions among them that belong to a pattern subscription.
        self.attached: dict[str, Subscription] = {}
        #: The lowest position of all subscriptions; the end of the topic if there are none.
        self.low_watermark = 0
        #: Finds the lowest position if there are many subscriptions.
        self._watermark: LowWatermark | None = None
        #: Retention no longer keeps messages below this offset.
        self.trimmed = 0
        #: Bytes of batches from `trimmed` on, which retention by size limits.
        self.above_trim_bytes = 0
        #: By delay id.
        self.delayed: dict[int, DelayedBatch] = {}
        self.delayed_bytes = 0
        #: Number of messages in them.
        self.delayed_count = 0
        #: Heap of (expiry time, first offset). Derived; entries can be stale.
        self.expiries: list[tuple[int, int]] = []
        #: Subscribers whose subscriptions the quota deleted, the latest last.
        self.expired_names: dict[str, None] = {}
        #: Number of subscriptions with key order, and the first offset with key hashes.
        self.key_orders = 0
        self.keyed_from = 0
        #: Generation of the last capture that contains this topic (snapshot/capture.py).
        self.captured = 0

    @property
    def retained(self) -> bool:
        return bool(self.retain_ms or self.retain_bytes)

    @property
    def stores_messages(self) -> bool:
        """Whether new messages are stored: a subscription or the retention needs them."""
        return bool(self.subscriptions) or self.retained

    @property
    def held_bytes(self) -> int:
        """Bytes that count towards the quota."""
        return self.stored_bytes + self.delayed_bytes

    @property
    def refuses_at_quota(self) -> bool:
        return bool(self.quota_bytes) and self.overflow == REFUSE

    @property
    def is_over_quota(self) -> bool:
        """Whether the overflow policy must delete messages or a subscription."""
        is_over = bool(self.quota_bytes) and self.held_bytes > self.quota_bytes
        return is_over and self.stored_bytes > 0 and self.overflow != REFUSE

    def reclaim_floor(self) -> int:
        """Return the offset below which batches can be deleted."""
        if self.retained and self.trimmed <= self.low_watermark:
            return self.trimmed
        floor = self.index.skip_expired(self.low_watermark)
        return min(floor, self.trimmed) if self.retained else floor

    def add_subscription(self, subscriber: str, acked: int) -> Subscription:
        if not self.subscriptions or acked < self.low_watermark:
            self.low_watermark = acked
        self._add_position(acked, subscriber)
        subscription = self.subscriptions[subscriber] = Subscription(subscriber, acked)
        if self.subscriber_names is not None:
            self.subscriber_names.add(subscriber)
        self.expired_names.pop(subscriber, None)
        return subscription

    def remove_subscription(self, subscriber: str) -> None:
        subscription = self.subscriptions.pop(subscriber)
        if self.subscriber_names is not None:
            self.subscriber_names.remove(subscriber)
        self.attached.pop(subscriber, None)
        if subscription.pattern is not None:
            subscription.pattern.detach(self.id)
        if subscription.shared is not None:
            self.key_orders -= subscription.shared.policy.key_order
        self._on_position_left(subscription.acked)

    def ack(self, subscriber: str, upto: int) -> bool:
        """Raise a position. Return True if the low watermark rose: batches may be deletable."""
        subscription = self.subscriptions[subscriber]
        previous = subscription.acked
        self._set_position(subscription, upto)
        return self._on_position_left(previous)

    def seek(self, subscriber: str, position: int) -> None:
        """Move a subscription forward or back."""
        self._set_position(self.subscriptions[subscriber], position)
        self.update_low_watermark()

    def drop_needed(self, subscription: Subscription, floor: int) -> None:
        """Move a subscription past unacked messages that are deleted. The caller updates the low watermark."""
        if subscription.shared is not None:
            subscription.dropped += subscription.shared.drop_below(floor)
            # Acked ranges above `floor` may now be contiguous with it.
            floor = max(floor, subscription.shared.floor())
        else:
            subscription.dropped += floor - max(subscription.acked, self.index.first)
        self._set_position(subscription, floor)

    def _set_position(self, subscription: Subscription, position: int) -> None:
        if position < subscription.acked:
            self._add_position(position, subscription.subscriber)
        subscription.acked = position
        if subscription.pattern is not None:
            subscription.pattern.on_ack(self, subscription)

    def _on_position_left(self, position: int) -> bool:
        """Update the low watermark after a subscription left a position. Return whether it changed."""
        if position != self.low_watermark:
            return False
        self.update_low_watermark()
        return self.low_watermark != position

    def _add_position(self, position: int, subscriber: str) -> None:
        """A subscription was added or moved back."""
        if self._watermark is None:
            return
        self._watermark.add(position, subscriber)
        if len(self._watermark) > 2 * len(self.subscriptions):
            # Most entries are stale. The heap is rebuilt at the next update.
            self._watermark = None

    def update_low_watermark(self) -> None:
        if len(self.subscriptions) <= SCAN_MAX:
            self._watermark = None
            positions = [subscription.acked for subscription in self.subscriptions.values()]
            self.low_watermark = min(positions, default=self.next_offset)
            return
        if self._watermark is None:
            self._watermark = LowWatermark(self.subscriptions)
        self.low_watermark = self._watermark.lowest(self.subscriptions)
