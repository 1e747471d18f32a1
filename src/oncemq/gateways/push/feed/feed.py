"""The live feed: follows each topic that somebody listens to, for as long as somebody does.

Which topics are followed is in the registry too (`NAME/feed/TOPIC`), so that a gateway that was killed leaves no
subscription behind that keeps messages for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from oncemq.client.push.frames import topic_of
from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.feed_socket import LOOK_S, PATIENCE_S, FeedSocket
from oncemq.gateways.push.feed.listeners import Listening
from oncemq.gateways.push.feed.topic_follower import Following
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.registry import NAMESPACE, entries_of
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistrySet, Unsubscribe

_PAUSE_S = 1.0
#: What somebody else has taken is taken back after so long.
_TAKE_BACK_S = 30.0
#: Heartbeats that are insisted on at a time; what keeps them back is often the same subscriber.
_LATE_MAX = 20
#: Subscriptions of SUB sockets that are known: a topic's name with and without a zero byte, of messages and of batches.
_PREFIXES_PER_TOPIC = 4


class Feed:
    def __init__(
        self, settings: PushSettings, link: Link, counters: Counters, *, take_back_s: float = _TAKE_BACK_S
    ) -> None:
        """Raises ListenFailed."""
        self.settings = settings
        self.counters = counters
        self.take_back_s = take_back_s
        self.listening = Listening(_PREFIXES_PER_TOPIC * settings.topics_max)
        self._link = link
        self._followings: dict[str, Following] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        #: What somebody listens to, and was one topic too many: they come first when there is room.
        self._refused: dict[bytes, str] = {}
        self.socket = FeedSocket(settings, counters, self._changed)

    @property
    def topics_count(self) -> int:
        return len(self._followings)

    def key_of(self, topic: str) -> str:
        return f"{self.settings.name}/feed/{topic}"

    # Who listens.

    def _changed(self, prefix: bytes, is_wanted: bool) -> None:
        if not is_wanted:
            self._leave(prefix)
            return
        if not self.listening.add(prefix):
            self.counters.trouble("feed_topics_refused", "the feed has too many subscriptions: one is not heard")
            return
        try:
            topic = topic_of(prefix)
        except errors.NameInvalid as error:
            self.counters.trouble("feed_names_invalid", f"somebody listens to what can't be: {error.text}")
            return
        if topic is not None:
            self._listen(topic, prefix)

    def _listen(self, topic: str, prefix: bytes) -> None:
        following = self._following_of(topic)
        if following is None:
            self._refused[prefix] = topic
            text = f"{self.settings.topics_max} topics are followed, which is the limit: '{topic}' has to wait"
            self.counters.trouble("feed_topics_refused", text)
            return
        following.prefixes.add(prefix)
        # Whoever has just come learns where it begins.
        following.beat()

    def _leave(self, prefix: bytes) -> None:
        self.listening.discard(prefix)
        self._refused.pop(prefix, None)
        with contextlib.suppress(errors.NameInvalid):
            following = self._followings.get(topic_of(prefix) or "")
            if following is not None:
                following.prefixes.discard(prefix)
                self._note_idle(following)

    def _listen_where_there_is_room(self) -> None:
        while self._refused and len(self._followings) < self.settings.topics_max:
            prefix = next(iter(self._refused))
            self._listen(self._refused.pop(prefix), prefix)

    def _following_of(self, topic: str) -> Following | None:
        """It, or a new one; None: there are too many."""
        following = self._followings.get(topic)
        if following is None and len(self._followings) < self.settings.topics_max:
            following = self._followings[topic] = Following(self, self._link, topic)
        return following

    def hold(self, topic: str, holder: object) -> Following:
        """For a reliable subscriber: its topic is followed even if nobody listens. Raises LimitReached."""
        following = self._following_of(topic)
        if following is None:
            raise errors.LimitReached(f"{self.settings.topics_max} topics are followed, which is the limit")
        following.holders.add(holder)
        following.mark()
        return following

    def release(self, topic: str, holder: object) -> None:
        following = self._followings.get(topic)
        if following is not None:
            following.holders.discard(holder)
            self._note_idle(following)

    def _note_idle(self, following: Following) -> None:
        if not following.is_wanted:
            following.idle_since_s = time.monotonic()

    # What time brings.

    async def resume(self) -> None:
        """Go on with what a former life of this gateway followed, until it shows that nobody listens."""
        prefix = self.key_of("")
        async for entry in entries_of(self._link, NAMESPACE, prefix):
            self._following_of(entry.key.removeprefix(prefix))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat_ms / 1000)
            await self.insist(self.look_after())

    def look_after(self) -> list[Following]:
        """Heartbeats, and the end of what nobody wants. Returns those whose heartbeat somebody has no room for."""
        late: list[Following] = []
        idle_before_s = time.monotonic() - self.settings.unfollow_ms / 1000
        for following in list(self._followings.values()):
            if following.is_wanted or following.idle_since_s > idle_before_s:
                following.keep_running()
                following.ack_soon()
                if not following.beat():
                    late.append(following)
            else:
                self._end(following)
        self._listen_where_there_is_room()
        self.socket.look()
        return late

    async def insist(self, late: list[Following]) -> None:
        """Where there are messages to send, they wait for room. Elsewhere, who has none for a while misses the
        heartbeat: others must not."""
        positions = {following: following.position for following in late[:_LATE_MAX]}
        until_s = time.monotonic() + PATIENCE_S
        while positions and time.monotonic() < until_s:
            await asyncio.sleep(LOOK_S)
            for following, position in list(positions.items()):
                if following.position != position or following.is_held_up or following.beat():
                    del positions[following]
        if positions:
            self.counters.trouble("feed_overflows", "a subscriber of the feed does not read, and misses messages")
            with self.socket.dropping():
                for following in positions:
                    following.beat()

    def _end(self, following: Following) -> None:
        topic = following.topic
        del self._followings[topic]
        following.close()
        # Where a former one is still being ended, this one has not begun yet: there is nothing more to end.
        if topic not in self._ending:
            self._ending[topic] = asyncio.ensure_future(self._unfollow(following))

    async def _unfollow(self, following: Following) -> None:
        topic = following.topic
        try:
            await asyncio.wait([following.task])
            while not await self._is_unfollowed(topic):
                await asyncio.sleep(_PAUSE_S)
        finally:
            del self._ending[topic]

    async def _is_unfollowed(self, topic: str) -> bool:
        try:
            with contextlib.suppress(errors.NotSubscribed, errors.TopicUnknown):
                await self._link.operate(Unsubscribe(topic, self.settings.feed_subscriber))
            await self._link.operate(RegistrySet(NAMESPACE, self.key_of(topic), None))
        except errors.OnceMQError as error:
            self.counters.trouble("feed_waits", f"'{topic}' is still followed: {error.text}")
            return False
        return True

    async def until_ended(self, topic: str) -> None:
        """A former following of it."""
        task = self._ending.get(topic)
        if task is not None:
            await asyncio.wait([task])

    async def stop(self) -> None:
        tasks = [following.task for following in self._followings.values()] + list(self._ending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.socket.close()
