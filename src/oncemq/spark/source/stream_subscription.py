"""The durable subscription of a streaming query. It keeps in the broker every message that the checkpoint still needs.

Spark's checkpoint says how far the query is, and the subscription's position is never ahead of it: the subscription is
acked only when Spark reports that a micro-batch is complete and will not be requested again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from oncemq.client.internal import OwnedSubscription, internal_api
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, GetAny, Open, Subscribe
from oncemq.protocol.replies import AckReply, GetAnyReply, OpenReply, SubscribeReply, SubscriptionInfo
from oncemq.spark.options import SourceOptions
from oncemq.spark.source.offset_spec import EARLIEST, LATEST
from oncemq.spark.source.offsets import Position
from oncemq.spark.source.topic_offsets import (
    TopicBounds,
    existing_topics,
    resolve_offset,
    selected_topics,
    topic_bounds,
)


class TopicsSubscription:
    """A subscription of the same name on each of a set of topics."""

    def __init__(self, client: Client, options: SourceOptions, topics: Sequence[str]) -> None:
        self._client = client
        self._owner = _Owner(client, options.subscription)
        self._topics = tuple(topics)
        self._start = options.start
        self._fails_on_loss = options.fail_on_loss
        self._owned: dict[str, OwnedSubscription] = {}

    def begin(self) -> dict[str, Position]:
        """Create the subscriptions, or use those that exist, and own them. Returns their positions by topic."""
        for topic in self._topics:
            self._subscribe(topic)
            self._owned[topic] = self._owner.open(topic)
        return {topic: self._owner.position(topic) for topic in self._topics}

    def resume(self, start: Mapping[str, Position]) -> None:
        """Own the subscriptions for a checkpoint. One that was deleted is created again at the checkpoint's offset."""
        bounds = self.bounds()
        for topic in self._topics:
            if topic not in start:
                # The topic was added to the query after the checkpoint was written.
                self._subscribe(topic)
            elif topic in bounds and bounds[topic].topic_id == start[topic].topic_id:
                offset = min(max(start[topic].offset, bounds[topic].first), bounds[topic].end)
                subscribe = Subscribe(topic, self._owner.subscriber, offset)
                internal_api(self._client).call(subscribe, SubscribeReply)
            else:
                # The topic was deleted, and perhaps created again. The reader reports or accepts that.
                continue
            self._owned[topic] = self._owner.open(topic)

    def extend(self, start: Mapping[str, Position]) -> None:
        """Also own the subscriptions of these topics of a checkpoint."""
        added = tuple(topic for topic in start if topic not in self._owned)
        if added:
            self._topics = added
            self.resume(start)
            self._topics = tuple(self._owned)

    def add_topic(self, topic: str) -> Position:
        """Start to read a topic that the checkpoint does not contain. Returns where reading starts."""
        if topic not in self._owned or not self._is_subscribed(topic):
            # The topic was created again: all of its messages are new.
            self._client.subscribe(topic, self._owner.subscriber, EARLIEST)
            self._owned[topic] = self._owner.open(topic)
        return self._owner.position(topic)

    def bounds(self) -> dict[str, TopicBounds]:
        """The bounds of those of its topics that exist."""
        return existing_topics(self._client, self._topics)

    def infos(self, topics: Iterable[str] | None = None) -> dict[str, SubscriptionInfo]:
        """The subscriptions that exist on these topics, or on all of its topics."""
        wanted = self._topics if topics is None else topics
        return {topic: info for topic in wanted if (info := self._owner.info(topic)) is not None}

    def ensure_owner(self) -> None:
        """Raises SubscriptionFenced if another query owns a subscription."""
        for topic, position in self._owned.items():
            self._ack_topic(topic, Position(position.topic_id, 0))

    def ack(self, end: Mapping[str, Position]) -> None:
        """Ack all messages below these offsets."""
        for topic, position in end.items():
            if topic in self._owned:
                self._ack_topic(topic, position)

    def _ack_topic(self, topic: str, position: Position) -> None:
        def send(epoch: int) -> AckReply:
            # The topic may have been created again and opened since: the id is the checkpoint's, whose offset this is.
            command = Ack(position.topic_id, self._owner.subscriber, epoch, position.offset)
            return internal_api(self._client).ask(command, AckReply)

        try:
            self._owned[topic] = self._owner.run(self._owned[topic], send)
        except errors.TopicGone:
            if self._fails_on_loss:
                raise

    def _is_subscribed(self, topic: str) -> bool:
        return self._owner.info(topic) is not None

    def _subscribe(self, topic: str) -> None:
        if self._is_subscribed(topic):
            return
        start = self._start.of(topic)
        if start not in (EARLIEST, LATEST):
            start = resolve_offset(self._client, topic, topic_bounds(self._client, topic), start)
        assert isinstance(start, int | str)
        self._client.subscribe(topic, self._owner.subscriber, start)


class PatternSubscription:
    """One subscription to every topic that matches a pattern, including topics that are created later."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._owner = _Owner(client, options.subscription, options.selection.pattern)
        self._selection = options.selection
        self._pattern = options.selection.pattern
        self._start = str(options.start.default)
        self._owned: OwnedSubscription | None = None

    def begin(self) -> dict[str, Position]:
        """Create the subscription, or use the one that exists, and own it. Returns its positions by topic."""
        self._client.subscribe_pattern(self._pattern, self._owner.subscriber, self._start)
        self._owned = self._owner.open(self._pattern)
        return {topic: self._owner.position(topic) for topic in self.bounds()}

    def resume(self, start: Mapping[str, Position]) -> None:
        """Own the subscription for a checkpoint. If it was deleted, create it again at the checkpoint's offsets."""
        created = self._client.subscribe_pattern(self._pattern, self._owner.subscriber, EARLIEST).created
        self._owned = self._owner.open(self._pattern)
        if created:
            bounds = self.bounds()
            self.ack(
                {
                    topic: position
                    for topic, position in start.items()
                    if topic in bounds
                    and bounds[topic].topic_id == position.topic_id
                    and position.offset <= bounds[topic].end
                }
            )

    def add_topic(self, topic: str) -> Position:
        """Start to read a topic that the checkpoint does not contain. Returns where reading starts."""
        return self._owner.position(topic)

    def bounds(self) -> dict[str, TopicBounds]:
        """The bounds of the topics that match now."""
        return selected_topics(self._client, self._selection)

    def infos(self, topics: Iterable[str] | None = None) -> dict[str, SubscriptionInfo]:
        """The parts of the subscription on these topics, or on all of its topics, if it exists."""
        found = {info.topic: info for info in self._owner.infos()}
        return found if topics is None else {topic: found[topic] for topic in topics if topic in found}

    def ensure_owner(self) -> None:
        """Raises SubscriptionFenced if another query owns the subscription."""
        self.ack({})

    def ack(self, end: Mapping[str, Position]) -> None:
        """Ack all messages below these offsets."""
        acks = tuple((position.topic_id, position.offset) for position in end.values())

        def send(epoch: int) -> GetAnyReply:
            command = GetAny(self._pattern, self._owner.subscriber, epoch, (), 0, 0, acks)
            return internal_api(self._client).ask(command, GetAnyReply)

        assert self._owned is not None, "ack before begin or resume"
        self._owned = self._owner.run(self._owned, send)


class RegexSubscription:
    """A subscription of the same name on each topic that matches a regular expression.

    The broker knows patterns, not regular expressions. A topic that is created later is subscribed to when the driver
    sees it, and starts at its first message that is stored then."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._subscription = TopicsSubscription(client, options, ())

    def begin(self) -> dict[str, Position]:
        """Create the subscriptions, or use those that exist, and own them. Returns their positions by topic."""
        self._subscription = TopicsSubscription(self._client, self._options, tuple(self.bounds()))
        return self._subscription.begin()

    def resume(self, start: Mapping[str, Position]) -> None:
        """Own the subscriptions for a checkpoint. One that was deleted is created again at the checkpoint's offset."""
        self._subscription.extend(self._matching(start))

    def add_topic(self, topic: str) -> Position:
        """Start to read a topic that the checkpoint does not contain. Returns where reading starts."""
        return self._subscription.add_topic(topic)

    def bounds(self) -> dict[str, TopicBounds]:
        """The bounds of the topics that match now."""
        return selected_topics(self._client, self._options.selection)

    def infos(self, topics: Iterable[str] | None = None) -> dict[str, SubscriptionInfo]:
        """The subscriptions that exist on these topics, or on all of its topics."""
        return self._subscription.infos(self.bounds() if topics is None else topics)

    def ensure_owner(self) -> None:
        """Raises SubscriptionFenced if another query owns a subscription."""
        self._subscription.ensure_owner()

    def ack(self, end: Mapping[str, Position]) -> None:
        """Ack all messages below these offsets."""
        # A replayed micro-batch may contain topics that joined with it.
        self._subscription.extend(self._matching(end))
        self._subscription.ack(end)

    def _matching(self, positions: Mapping[str, Position]) -> dict[str, Position]:
        is_read = self._options.selection.matcher()
        return {topic: position for topic, position in positions.items() if is_read(topic)}


StreamSubscription = TopicsSubscription | PatternSubscription | RegexSubscription


def stream_subscription(client: Client, options: SourceOptions) -> StreamSubscription:
    """Return the subscription that the options describe. It sends nothing to the broker yet."""
    if options.selection.pattern:
        return PatternSubscription(client, options)
    if options.selection.regex:
        return RegexSubscription(client, options)
    return TopicsSubscription(client, options, options.selection.topics)


def refuse_behind(infos: Mapping[str, SubscriptionInfo], starts: Mapping[str, Position]) -> None:
    """Refuse a checkpoint that resumes before what it has acked: it has lost entries, or is an older copy. Its targets
    have more batches than it knows, and the broker may have deleted acked messages. Raises CheckpointBehind."""
    for topic, start in starts.items():
        info, at = infos.get(topic), start.offset
        # A seek and the quota of a topic also move a subscription. The query continues at its checkpoint then, and the
        # reader reports or accepts messages that are missing.
        if info is not None and info.confirmed > at and not (info.sought or info.dropped):
            raise errors.CheckpointBehind(
                f"the checkpoint is at offset {at} of topic '{topic}', but the subscription '{info.subscriber}' is at "
                f"{info.confirmed}: the checkpoint has lost its last entries, or is an older copy. Restore the newest "
                f"copy of it; or start with a new checkpoint, which continues at {info.confirmed} and may repeat one "
                "micro-batch; or, if the targets lack what follows, move the subscription back: "
                f"oncemq seek '{topic}' {info.subscriber} {at}"
            )


class _Owner:
    """Owns the subscriptions of one subscriber: opens them, and turns fencing into an error for the user."""

    def __init__(self, client: Client, subscriber: str, pattern: str = "") -> None:
        self._client = client
        self._pattern = pattern
        self.subscriber = subscriber

    def open(self, target: str) -> OwnedSubscription:
        """Take ownership of the subscription on a topic or pattern. Raises KindMismatch."""
        return self._send_open(target, Open(target, self.subscriber))

    def _send_open(self, target: str, command: Open) -> OwnedSubscription:
        reply = internal_api(self._client).call(command, OpenReply)
        advice = "a streaming query needs an exclusive one: choose another name for it"
        return OwnedSubscription.from_reply(target, self.subscriber, reply, advice)

    def run(self, owned: OwnedSubscription, send: Callable[[int], object]) -> OwnedSubscription:
        """Send a command under the owner's epoch, and return the opening to use from then on.

        A seek by an operator starts a new epoch. The query continues at the offsets of its checkpoint.
        Raises SubscriptionFenced."""
        try:
            try:
                send(owned.epoch)
            except errors.Sought:
                owned = self._send_open(owned.topic, owned.reopen_command())
                send(owned.epoch)
        except errors.Fenced:
            raise errors.SubscriptionFenced(
                f"another query or consumer uses subscription '{self.subscriber}' on '{owned.topic}'; "
                "give each query a subscription of its own, and stop the other driver if there are two"
            ) from None
        return owned

    def infos(self, topic: str | None = None) -> list[SubscriptionInfo]:
        """The subscriptions of this subscriber on one topic, or on all. Raises TopicUnknown."""
        return [
            info
            for info in self._client.subscriptions(topic)
            if info.subscriber == self.subscriber and info.pattern == self._pattern
        ]

    def info(self, topic: str) -> SubscriptionInfo | None:
        """The subscription on a topic, if both exist."""
        try:
            return next(iter(self.infos(topic)), None)
        except errors.TopicUnknown:
            return None

    def position(self, topic: str) -> Position:
        """The offset at which reading a topic starts. Raises NotSubscribed, TopicUnknown."""
        found = self.infos(topic)
        if not found:
            raise errors.NotSubscribed(f"'{self.subscriber}' is no longer subscribed to '{topic}'")
        acked = found[0].acked
        bounds = topic_bounds(self._client, topic)
        # Messages before the first stored one have expired and can't be read.
        return Position(bounds.topic_id, min(max(acked, bounds.first), bounds.end))
