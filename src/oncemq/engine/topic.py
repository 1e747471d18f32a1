"""A topic and its subscriptions."""

from __future__ import annotations

from oncemq.engine.index import BatchIndex


class Subscription:
    """A durable position in a topic, and who owns it."""

    __slots__ = ("acked", "epoch", "held_until_ms", "subscriber")

    def __init__(self, subscriber: str, acked: int, epoch: int = 0, held_until_ms: int = 0) -> None:
        self.subscriber = subscriber
        #: All offsets below are done.
        self.acked = acked
        #: Rises with each owner: only the newest may ack.
        self.epoch = epoch
        #: A polite owner is left alone until then.
        self.held_until_ms = held_until_ms


class Topic:
    __slots__ = (
        "above_trim_bytes",
        "captured",
        "id",
        "index",
        "name",
        "needed",
        "next_offset",
        "retain_bytes",
        "retain_ms",
        "slowest",
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
        self.next_offset = 0
        self.index = BatchIndex()
        self.stored_bytes = 0
        self.subscriptions: dict[str, Subscription] = {}
        #: The lowest position of all subscriptions; the end where there are none.
        self.needed = 0
        #: How many subscriptions stand there.
        self.slowest = 0
        #: Retention let go of everything below.
        self.trimmed = 0
        #: What retention by size counts.
        self.above_trim_bytes = 0
        #: The last capture that has this topic (capture.py).
        self.captured = 0

    @property
    def retained(self) -> bool:
        return bool(self.retain_ms or self.retain_bytes)

    @property
    def keeps(self) -> bool:
        """Whether a new message is stored at all."""
        return bool(self.subscriptions) or self.retained

    def floor(self) -> int:
        """Everything below may be collected."""
        return min(self.needed, self.trimmed) if self.retained else self.needed

    def add_subscription(self, subscriber: str, acked: int) -> None:
        if not self.subscriptions or acked < self.needed:
            self.needed = acked
            self.slowest = 0
        self.slowest += acked == self.needed
        self.subscriptions[subscriber] = Subscription(subscriber, acked)

    def remove_subscription(self, subscriber: str) -> None:
        self._leave(self.subscriptions.pop(subscriber).acked)

    def ack(self, subscriber: str, upto: int) -> bool:
        """True: the slowest moved on, and something may be collected."""
        subscription = self.subscriptions[subscriber]
        was = subscription.acked
        subscription.acked = upto
        return self._leave(was)

    def _leave(self, position: int) -> bool:
        """A subscription is no longer at a position. Only the last of the slowest makes us look at all."""
        if position != self.needed:
            return False
        self.slowest -= 1
        if self.slowest:
            return False
        self.measure_needed()
        return True

    def measure_needed(self) -> None:
        positions = [subscription.acked for subscription in self.subscriptions.values()]
        self.needed = min(positions, default=self.next_offset)
        self.slowest = positions.count(self.needed)
