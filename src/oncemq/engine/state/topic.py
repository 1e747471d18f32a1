"""A topic and its subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oncemq.engine.state.batch_index import BatchIndex
from oncemq.engine.state.low_watermark import FEW, Bounds
from oncemq.protocol.commands import REFUSE

if TYPE_CHECKING:
    from oncemq.engine.state.pattern import Pattern
    from oncemq.engine.state.shared_subscription import Shared


class Subscription:
    """A durable position in a topic, and who owns it."""

    __slots__ = ("acked", "dropped", "epoch", "held_until_ms", "pattern", "shared", "sought_epoch", "subscriber")

    def __init__(self, subscriber: str, acked: int, epoch: int = 0, held_until_ms: int = 0) -> None:
        self.subscriber = subscriber
        #: All offsets below are done.
        self.acked = acked
        #: Rises with each owner: only the newest may ack. Of a shared one: tells its incarnations apart.
        self.epoch = epoch
        #: A polite owner is left alone until then.
        self.held_until_ms = held_until_ms
        #: A seek moved the position of whoever has this epoch, or a later one; 0 = nobody's since the last owner came.
        self.sought_epoch = 0
        #: Messages lost to the topic's quota.
        self.dropped = 0
        #: Leases, where there is no owner.
        self.shared: Shared | None = None
        #: Whom it belongs to, where it is attached by a pattern: that one has the owner.
        self.pattern: Pattern | None = None


class DelayedBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Stored, and without offsets until it is due."""

    delay_id: int
    count: int
    size: int
    position: int
    due_ms: int
    ttl_ms: int
    key_hashes: bytes = b""


class Topic:
    __slots__ = (
        "_bounds",
        "above_trim_bytes",
        "attached",
        "captured",
        "delayed",
        "delayed_bytes",
        "expired_names",
        "expiries",
        "id",
        "index",
        "key_orders",
        "keyed_from",
        "name",
        "needed",
        "next_offset",
        "overflow",
        "quota_bytes",
        "retain_bytes",
        "retain_ms",
        "stays",
        "stored_bytes",
        "subscriptions",
        "trimmed",
    )

    def __init__(self, topic_id: int, name: str, stays: bool, retain_ms: int = 0, retain_bytes: int = 0) -> None:
        self.id = topic_id
        self.name = name
        #: Stays when its last subscriber leaves.
        self.stays = stays
        self.retain_ms = retain_ms
        self.retain_bytes = retain_bytes
        self.quota_bytes = 0
        self.overflow = REFUSE
        self.next_offset = 0
        self.index = BatchIndex()
        self.stored_bytes = 0
        self.subscriptions: dict[str, Subscription] = {}
        #: Those of them that are attached by a pattern.
        self.attached: dict[str, Subscription] = {}
        #: The lowest position of all subscriptions; the end where there are none.
        self.needed = 0
        #: Of their positions, where they are many.
        self._bounds: Bounds | None = None
        #: Retention let go of everything below.
        self.trimmed = 0
        #: What retention by size counts.
        self.above_trim_bytes = 0
        #: By delay id.
        self.delayed: dict[int, DelayedBatch] = {}
        self.delayed_bytes = 0
        #: A heap of (time, first offset): what expires when. Derived; entries may be of batches that are gone.
        self.expiries: list[tuple[int, int]] = []
        #: Subscribers that the quota has ended, the latest last.
        self.expired_names: dict[str, None] = {}
        #: Subscriptions that keep order per key, and from where on messages have their key hashes.
        self.key_orders = 0
        self.keyed_from = 0
        #: The last capture that has this topic (capture.py).
        self.captured = 0

    @property
    def retained(self) -> bool:
        return bool(self.retain_ms or self.retain_bytes)

    @property
    def keeps(self) -> bool:
        """Whether a new message is stored at all."""
        return bool(self.subscriptions) or self.retained

    @property
    def held_bytes(self) -> int:
        """What its quota counts."""
        return self.stored_bytes + self.delayed_bytes

    @property
    def refuses(self) -> bool:
        """At its quota it takes no more."""
        return bool(self.quota_bytes) and self.overflow == REFUSE

    @property
    def overflows(self) -> bool:
        """It must let go of something, by its policy."""
        is_over = bool(self.quota_bytes) and self.held_bytes > self.quota_bytes
        return is_over and self.stored_bytes > 0 and self.overflow != REFUSE

    def floor(self) -> int:
        """Everything below may be collected."""
        if self.retained and self.trimmed <= self.needed:
            return self.trimmed
        needed = self.index.past_expired(self.needed)
        return min(needed, self.trimmed) if self.retained else needed

    def add_subscription(self, subscriber: str, acked: int) -> Subscription:
        if not self.subscriptions or acked < self.needed:
            self.needed = acked
        self._bound(acked, subscriber)
        subscription = self.subscriptions[subscriber] = Subscription(subscriber, acked)
        self.expired_names.pop(subscriber, None)
        return subscription

    def remove_subscription(self, subscriber: str) -> None:
        subscription = self.subscriptions.pop(subscriber)
        self.attached.pop(subscriber, None)
        if subscription.pattern is not None:
            subscription.pattern.detach(self.id)
        if subscription.shared is not None:
            self.key_orders -= subscription.shared.policy.key_order
        self._leave(subscription.acked)

    def ack(self, subscriber: str, upto: int) -> bool:
        """True: the slowest moved on, and something may be collected."""
        subscription = self.subscriptions[subscriber]
        was = subscription.acked
        self._stand(subscription, upto)
        return self._leave(was)

    def move(self, subscriber: str, position: int) -> None:
        """To wherever, back as well."""
        self._stand(self.subscriptions[subscriber], position)
        self.measure_needed()

    def lose(self, subscription: Subscription, floor: int) -> None:
        """What lies below is gone, though it was needed. Who is slowest then is for the caller to measure."""
        if subscription.shared is not None:
            subscription.dropped += subscription.shared.drop_below(floor)
            # What was done above may join it.
            floor = max(floor, subscription.shared.floor())
        else:
            subscription.dropped += floor - max(subscription.acked, self.index.first)
        self._stand(subscription, floor)

    def _stand(self, subscription: Subscription, position: int) -> None:
        if position < subscription.acked:
            self._bound(position, subscription.subscriber)
        subscription.acked = position
        if subscription.pattern is not None:
            subscription.pattern.note_ack(self, subscription)

    def _leave(self, position: int) -> bool:
        """A subscription is no longer at a position. Unless it was one of the slowest, that changes nothing."""
        if position != self.needed:
            return False
        self.measure_needed()
        return self.needed != position

    def _bound(self, position: int, subscriber: str) -> None:
        """Somebody came, or went back."""
        if self._bounds is None:
            return
        self._bounds.add(position, subscriber)
        if len(self._bounds) > 2 * len(self.subscriptions):
            # Most are of those who are gone. They are made anew when the lowest is asked for.
            self._bounds = None

    def measure_needed(self) -> None:
        if len(self.subscriptions) <= FEW:
            self._bounds = None
            positions = [subscription.acked for subscription in self.subscriptions.values()]
            self.needed = min(positions, default=self.next_offset)
            return
        if self._bounds is None:
            self._bounds = Bounds(self.subscriptions)
        self.needed = self._bounds.lowest(self.subscriptions)
