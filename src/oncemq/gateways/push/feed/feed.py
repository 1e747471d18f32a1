"""The live feed: follows each topic while somebody listens to it.

The registry lists the followed topics (`NAME/feed/TOPIC`), so that after a crash no subscription is left behind that
keeps messages for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.feed_socket import PATIENCE_S, RETRY_S, FeedSocket
from oncemq.gateways.push.feed.listeners import ListenerTable
from oncemq.gateways.push.feed.topic_follower import TopicFollower
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.registry import NAMESPACE
from oncemq.gateways.registry import iterate_entries
from oncemq.gateways.subscription import unsubscribe
from oncemq.gateways.tasks import cancel, start
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistrySet
from oncemq.protocol.push_feed import topic_of

_PAUSE_S = 1.0
#: How long before a subscription that another consumer took over is taken back.
_TAKE_BACK_S = 30.0
#: How many delayed heartbeats are retried at a time. The same slow subscriber often delays all of them.
_LATE_MAX = 20
#: Subscriptions of SUB sockets per topic: its name with and without a zero byte, for messages and for batches.
_PREFIXES_PER_TOPIC = 4


class Feed:
    def __init__(
        self,
        settings: PushSettings,
        link: Link,
        counters: Counters,
        on_failure: Callable[[], None] = lambda: None,
        *,
        take_back_s: float = _TAKE_BACK_S,
    ) -> None:
        """Listen. Raises ListenFailed."""
        self.settings = settings
        self.counters = counters
        self.take_back_s = take_back_s
        self.listeners = ListenerTable(_PREFIXES_PER_TOPIC * settings.topics_max)
        self._link = link
        self._followers: dict[str, TopicFollower] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        #: Subscriptions beyond the limit of topics: they come first when a topic is no longer followed.
        self._refused: dict[bytes, str] = {}
        self.socket = FeedSocket(settings, counters, self._changed, on_failure)

    @property
    def topics_count(self) -> int:
        return len(self._followers)

    def key_of(self, topic: str) -> str:
        """Return the registry's key of a followed topic."""
        return f"{self.settings.name}/feed/{topic}"

    # Listeners.

    def _changed(self, prefix: bytes, is_wanted: bool) -> None:
        if not is_wanted:
            self._leave(prefix)
            return
        if not self.listeners.add(prefix):
            self.counters.report("feed_topics_refused", "the feed has too many subscriptions: one is ignored")
            return
        try:
            topic = topic_of(prefix)
        except errors.NameInvalid as error:
            self.counters.report("feed_names_invalid", f"a subscription to the feed is invalid: {error.text}")
            return
        if topic is not None:
            self._listen(topic, prefix)

    def _listen(self, topic: str, prefix: bytes) -> None:
        follower = self._follower_of(topic)
        if follower is None:
            self._refused[prefix] = topic
            text = f"the limit of {self.settings.topics_max} followed topics is reached: '{topic}' has to wait"
            self.counters.report("feed_topics_refused", text)
            return
        follower.prefixes.add(prefix)
        # The new listener learns the next offset.
        follower.send_heartbeat()

    def _leave(self, prefix: bytes) -> None:
        self.listeners.discard(prefix)
        self._refused.pop(prefix, None)
        with contextlib.suppress(errors.NameInvalid):
            follower = self._followers.get(topic_of(prefix) or "")
            if follower is not None:
                follower.prefixes.discard(prefix)
                self._note_idle(follower)

    def _listen_to_refused(self) -> None:
        while self._refused and len(self._followers) < self.settings.topics_max:
            prefix = next(iter(self._refused))
            self._listen(self._refused.pop(prefix), prefix)

    def _follower_of(self, topic: str) -> TopicFollower | None:
        """Return the topic's follower, or a new one; None if there are too many."""
        follower = self._followers.get(topic)
        if follower is None and len(self._followers) < self.settings.topics_max:
            follower = self._followers[topic] = TopicFollower(self, self._link, topic)
        return follower

    def hold(self, topic: str, holder: object) -> TopicFollower:
        """Follow a topic for a reliable subscriber, even if nobody listens to it. Raises LimitReached."""
        follower = self._follower_of(topic)
        if follower is None:
            raise errors.LimitReached(f"the limit of {self.settings.topics_max} followed topics is reached")
        follower.holders.add(holder)
        follower.mark()
        return follower

    def release(self, topic: str, holder: object) -> None:
        """Undo `hold`."""
        follower = self._followers.get(topic)
        if follower is not None:
            follower.holders.discard(holder)
            self._note_idle(follower)

    def _note_idle(self, follower: TopicFollower) -> None:
        if not follower.is_wanted:
            follower.idle_since_s = time.monotonic()

    # Periodic work.

    async def resume(self) -> None:
        """Follow the topics that this gateway followed before its restart, until `unfollow_ms` without listeners."""
        prefix = self.key_of("")
        async for entry in iterate_entries(self._link, NAMESPACE, prefix):
            self._follower_of(entry.key.removeprefix(prefix))

    async def run(self) -> None:
        """Send heartbeats and stop idle followers, until cancelled."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_ms / 1000)
            await self.retry_heartbeats(self.maintain())

    def maintain(self) -> list[TopicFollower]:
        """Send heartbeats, and stop followers that nobody needs. Returns those whose heartbeat could not be sent
        because a subscriber's queue is full."""
        late: list[TopicFollower] = []
        idle_before_s = time.monotonic() - self.settings.unfollow_ms / 1000
        for follower in list(self._followers.values()):
            if follower.is_wanted or follower.idle_since_s > idle_before_s:
                follower.keep_running()
                follower.ack_soon()
                if not follower.send_heartbeat():
                    late.append(follower)
            else:
                self._end(follower)
        self._listen_to_refused()
        self.socket.read_soon()
        return late

    async def retry_heartbeats(self, late: list[TopicFollower]) -> None:
        """Send delayed heartbeats. A follower that has messages to send waits for the queue itself. For the others: a
        subscriber whose queue stays full misses the heartbeat, so that the other subscribers get it."""
        positions = {follower: follower.position for follower in late[:_LATE_MAX]}
        until_s = time.monotonic() + PATIENCE_S
        while positions and time.monotonic() < until_s:
            await asyncio.sleep(RETRY_S)
            for follower, position in list(positions.items()):
                if follower.position != position or follower.is_held_up or follower.send_heartbeat():
                    del positions[follower]
        if positions:
            self.counters.report("feed_overflows", "a subscriber of the feed does not read, and loses messages")
            with self.socket.dropping():
                for follower in positions:
                    follower.send_heartbeat()

    def _end(self, follower: TopicFollower) -> None:
        topic = follower.topic
        del self._followers[topic]
        follower.close()
        # While a former follower of the topic is still ending, this one has not started: there is nothing to end.
        if topic not in self._ending:
            self._ending[topic] = start(self._unfollow(follower), "ending a push feed")

    async def _unfollow(self, follower: TopicFollower) -> None:
        topic = follower.topic
        try:
            await asyncio.wait([follower.task])
            while not await self._is_unfollowed(topic):
                await asyncio.sleep(_PAUSE_S)
        finally:
            del self._ending[topic]

    async def _is_unfollowed(self, topic: str) -> bool:
        try:
            await unsubscribe(self._link, topic, self.settings.feed_subscriber)
            await self._link.operate(RegistrySet(NAMESPACE, self.key_of(topic), None))
        except errors.OnceMQError as error:
            self.counters.report("feed_waits", f"'{topic}' is still followed: {error.text}")
            return False
        return True

    async def wait_until_ended(self, topic: str) -> None:
        """Wait until a former follower of a topic has ended."""
        task = self._ending.get(topic)
        if task is not None:
            await asyncio.wait([task])

    async def stop(self) -> None:
        tasks = [follower.task for follower in self._followers.values()] + list(self._ending.values())
        await cancel(*tasks)
        self.socket.close()
