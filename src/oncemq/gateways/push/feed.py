"""The live feed: follows each topic that somebody listens to, for as long as somebody does.

Which topics are followed is in the registry too (`NAME/feed/TOPIC`), so that a gateway that was killed leaves no
subscription behind that keeps messages for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from oncemq import errors
from oncemq.client.push_frames import END, batch_frame, message_frame, topic_of
from oncemq.engine.commands import RegistrySet, Unsubscribe
from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed_socket import FeedSocket
from oncemq.gateways.push.following import NAMESPACE, Following
from oncemq.gateways.push.registry import entries_of
from oncemq.gateways.push.settings import PushSettings

_PAUSE_S = 1.0


class Feed:
    def __init__(self, settings: PushSettings, link: Link, counters: Counters) -> None:
        """Raises ListenFailed."""
        self.settings = settings
        self.counters = counters
        self._link = link
        self._followings: dict[str, Following] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        #: Subscriptions that end without a zero byte: they match more than they name.
        self._loose: set[bytes] = set()
        self.socket = FeedSocket(settings, counters, self._changed)

    @property
    def topics_count(self) -> int:
        return len(self._followings)

    def key_of(self, topic: str) -> str:
        return f"{self.settings.name}/feed/{topic}"

    # Who listens.

    def _changed(self, prefix: bytes, is_wanted: bool) -> None:
        if not prefix.endswith(END):
            (self._loose.add if is_wanted else self._loose.discard)(prefix)
            for following in self._followings.values():
                self._aim(following)
        try:
            topic = topic_of(prefix)
        except errors.NameInvalid as error:
            if is_wanted:
                self.counters.trouble("feed_names_invalid", f"somebody listens to what can't be: {error.text}")
            return
        if topic is None:
            return
        if is_wanted:
            self._listen(topic, prefix)
        elif topic in self._followings:
            following = self._followings[topic]
            following.prefixes.discard(prefix)
            self._note_idle(following)
            self._aim(following)

    def _listen(self, topic: str, prefix: bytes) -> None:
        following = self._following_of(topic)
        if following is None:
            text = f"{self.settings.topics_max} topics are followed, which is the limit: '{topic}' is not"
            self.counters.trouble("feed_topics_refused", text)
            return
        following.prefixes.add(prefix)
        self._aim(following)
        # Whoever has just come learns where it begins.
        following.beat()

    def _aim(self, following: Following) -> None:
        """Send what somebody gets, and nothing else."""
        plain, batches = message_frame(following.topic), batch_frame(following.topic)
        loose = self._loose
        following.sends_messages = plain in following.prefixes or any(plain.startswith(each) for each in loose)
        following.sends_batches = batches in following.prefixes or any(batches.startswith(each) for each in loose)

    def _following_of(self, topic: str) -> Following | None:
        """It, or a new one; None: there are too many."""
        following = self._followings.get(topic)
        if following is not None and following.task.done() and not following.is_wanted:
            del self._followings[topic]
            following = None
        if following is None and len(self._followings) < self.settings.topics_max:
            following = self._followings[topic] = Following(self, self._link, topic)
            self._aim(following)
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
        """Heartbeats, and the end of what nobody wants."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_ms / 1000)
            idle_before_s = time.monotonic() - self.settings.unfollow_ms / 1000
            for following in list(self._followings.values()):
                if following.is_wanted or following.idle_since_s > idle_before_s:
                    following.beat()
                    following.ack_soon()
                else:
                    self._end(following)
            self.socket.look()

    def _end(self, following: Following) -> None:
        del self._followings[following.topic]
        following.task.cancel()
        task = asyncio.ensure_future(self._unfollow(following))
        self._ending[following.topic] = task

    async def _unfollow(self, following: Following) -> None:
        topic = following.topic
        with contextlib.suppress(asyncio.CancelledError):
            await following.task
        while True:
            try:
                with contextlib.suppress(errors.NotSubscribed, errors.TopicUnknown):
                    await self._link.operate(Unsubscribe(topic, self.settings.feed_subscriber))
                await self._link.operate(RegistrySet(NAMESPACE, self.key_of(topic), None))
            except errors.OnceMQError as error:
                self.counters.trouble("feed_waits", f"'{topic}' is still followed: {error.text}")
                await asyncio.sleep(_PAUSE_S)
            else:
                break
        del self._ending[topic]

    async def until_ended(self, topic: str) -> None:
        """A former following of it."""
        task = self._ending.get(topic)
        if task is not None:
            await asyncio.shield(task)

    async def stop(self) -> None:
        tasks = [following.task for following in self._followings.values()] + list(self._ending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.socket.close()


