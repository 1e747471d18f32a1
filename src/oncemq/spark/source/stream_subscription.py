"""The durable subscription behind a stream: it keeps in the broker what the stream's checkpoint still needs.

Spark's checkpoint says where the stream stands; the subscription never runs ahead of it. It is acked when Spark says
that a batch is done and will not be asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, GetAny, Open, Subscribe
from oncemq.protocol.replies import AckReply, GetAnyReply, OpenReply, SubscribeReply, SubscriptionInfo
from oncemq.spark.options import EARLIEST, LATEST, SourceOptions
from oncemq.spark.source.offsets import Position
from oncemq.spark.source.topic_offsets import Extent, extent_of, matching, offset_at, those_there


class Hold:
    """What both kinds have in common: an owner's epoch, and what being fenced means."""

    def __init__(self, client: Client, subscriber: str) -> None:
        self._client = client
        self._subscriber = subscriber

    def begin(self) -> dict[str, Position]:
        """Make the subscription, or find it. Where it stands, by topic."""
        raise NotImplementedError

    def resume(self, start: Mapping[str, Position]) -> None:
        """Take it over, where a checkpoint stands. One that was ended is made again there."""
        raise NotImplementedError

    def extents(self) -> dict[str, Extent]:
        """Those of its topics that are there."""
        raise NotImplementedError

    def ack(self, end: Mapping[str, Position]) -> None:
        """Everything below these offsets is done."""
        raise NotImplementedError

    def take_in(self, topic: str) -> Position:
        """A topic that the checkpoint does not know: it was made later, or added to the query. Where it starts."""
        return self.position_on(topic)

    def position_on(self, topic: str) -> Position:
        """Where it stands on one topic. Raises NotSubscribed."""
        info = self._info_of(topic)
        extent = extent_of(self._client, topic)
        # What lies before the first message that is stored has expired: there is nothing to read.
        return Position(extent.topic_id, min(max(info.acked, extent.first), extent.offset))

    def _info_of(self, topic: str) -> SubscriptionInfo:
        for info in self._client.subscriptions(topic):
            if self._is_mine(info):
                return info
        raise errors.NotSubscribed(f"'{self._subscriber}' is not subscribed to '{topic}' any more")

    def _is_mine(self, info: SubscriptionInfo) -> bool:
        raise NotImplementedError

    def _open(self, what: str, former: int = 0) -> OpenReply:
        reply = self._client._run(self._client._call(Open(what, self._subscriber, 0, former), OpenReply))
        if reply.sharing is not None:
            raise errors.KindMismatch(
                f"subscription '{self._subscriber}' on '{what}' is shared; a stream needs one of its own: "
                "choose another name for it"
            )
        return reply

    def _as_owner(self, what: str, epoch: int, act: Callable[[int], None]) -> int:
        """Do something with an epoch. An operator's seek means a new one; Spark goes on where its checkpoint stands."""
        try:
            act(epoch)
        except errors.Sought:
            epoch = self._open(what, epoch).epoch
            act(epoch)
        except errors.Fenced:
            raise errors.SubscriptionFenced(
                f"another query or consumer uses subscription '{self._subscriber}' on '{what}'; "
                "give each query a subscription of its own, and stop the other driver if there are two"
            ) from None
        return epoch


class TopicsHold(Hold):
    """A subscription of the same name on each of some topics."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        super().__init__(client, options.subscription)
        self._topics = options.topics
        self._start = options.start
        self._fails_on_loss = options.fail_on_loss
        self._epochs: dict[str, int] = {}

    def begin(self) -> dict[str, Position]:
        for topic in self._topics:
            self._subscribe(topic)
            self._epochs[topic] = self._open(topic).epoch
        return {topic: self.position_on(topic) for topic in self._topics}

    def take_in(self, topic: str) -> Position:
        if topic not in self._epochs or not self._is_subscribed(topic):
            # Made again since: all of it is new.
            self._client.subscribe(topic, self._subscriber, EARLIEST)
            self._epochs[topic] = self._open(topic).epoch
        return self.position_on(topic)

    def _is_subscribed(self, topic: str) -> bool:
        try:
            self._info_of(topic)
        except (errors.NotSubscribed, errors.TopicUnknown):
            return False
        return True

    def _subscribe(self, topic: str) -> None:
        if self._is_subscribed(topic):
            return
        place = self._start.on(topic)
        if place in (EARLIEST, LATEST):
            self._client.subscribe(topic, self._subscriber, str(place))
            return
        offset = offset_at(self._client, topic, extent_of(self._client, topic), place)
        self._client.subscribe(topic, self._subscriber, offset)

    def resume(self, start: Mapping[str, Position]) -> None:
        extents = self.extents()
        for topic in self._topics:
            if topic not in start:
                # The query has more topics than its checkpoint.
                self._subscribe(topic)
            elif topic in extents and extents[topic].topic_id == start[topic].topic_id:
                self._subscribe_again(topic, start[topic], extents[topic])
            else:
                # Deleted, and perhaps made again: that is an error, or accepted, elsewhere.
                continue
            self._epochs[topic] = self._open(topic).epoch

    def _subscribe_again(self, topic: str, at: Position, extent: Extent) -> None:
        command = Subscribe(topic, self._subscriber, min(max(at.offset, extent.first), extent.offset))
        self._client._run(self._client._call(command, SubscribeReply))

    def extents(self) -> dict[str, Extent]:
        return those_there(self._client, self._topics)

    def ack(self, end: Mapping[str, Position]) -> None:
        for topic, at in end.items():
            if topic in self._epochs:
                self._ack_one(topic, at)

    def _ack_one(self, topic: str, at: Position) -> None:
        try:
            self._epochs[topic] = self._as_owner(topic, self._epochs[topic], self._ack_on(at))
        except errors.TopicGone:
            if self._fails_on_loss:
                raise

    def _ack_on(self, at: Position) -> Callable[[int], None]:
        def act(epoch: int) -> None:
            command = Ack(at.topic_id, self._subscriber, epoch, at.offset)
            self._client._run(self._client._ask(command, AckReply))

        return act

    def _is_mine(self, info: SubscriptionInfo) -> bool:
        return info.subscriber == self._subscriber and not info.pattern


class PatternHold(Hold):
    """One subscription to every topic that matches, those that are made later too."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        super().__init__(client, options.subscription)
        self._pattern = options.pattern
        self._start = str(options.start.everywhere)
        self._epoch = 0

    def begin(self) -> dict[str, Position]:
        self._client.subscribe_pattern(self._pattern, self._subscriber, self._start)
        self._epoch = self._open(self._pattern).epoch
        return {topic: self.position_on(topic) for topic in matching(self._client, self._pattern)}

    def resume(self, start: Mapping[str, Position]) -> None:
        made = self._client.subscribe_pattern(self._pattern, self._subscriber, EARLIEST).created
        self._epoch = self._open(self._pattern).epoch
        if made:
            extents = self.extents()
            self.ack({topic: at for topic, at in start.items() if _holds(extents.get(topic), at)})

    def extents(self) -> dict[str, Extent]:
        return matching(self._client, self._pattern)

    def ack(self, end: Mapping[str, Position]) -> None:
        acks = tuple((at.topic_id, at.offset) for at in end.values())

        def act(epoch: int) -> None:
            command = GetAny(self._pattern, self._subscriber, epoch, (), 0, 0, acks)
            self._client._run(self._client._ask(command, GetAnyReply))

        self._epoch = self._as_owner(self._pattern, self._epoch, act)

    def _is_mine(self, info: SubscriptionInfo) -> bool:
        return info.subscriber == self._subscriber and info.pattern == self._pattern


def _holds(extent: Extent | None, at: Position) -> bool:
    return extent is not None and extent.topic_id == at.topic_id and at.offset <= extent.offset


def hold_of(client: Client, options: SourceOptions) -> Hold:
    return PatternHold(client, options) if options.pattern else TopicsHold(client, options)
