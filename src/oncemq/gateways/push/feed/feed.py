"""The live feed: follows each topic while somebody listens to it.

The registry lists the followed topics, so that after a crash no subscription is left behind that keeps messages for
nobody.

If there are users, each of them follows its topics separately (topic_follower.py), and access.py decides who listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable

from oncemq.auth.users import user_of
from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.access import FeedAccess
from oncemq.gateways.push.feed.feed_socket import PATIENCE_S, RETRY_S, FeedSocket
from oncemq.gateways.push.feed.listeners import ListenerTable
from oncemq.gateways.push.feed.topic_follower import TopicFollower
from oncemq.gateways.push.feed.topic_output import TopicOutput
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.registry import followed_by, forget_followed
from oncemq.gateways.secure_sockets import SecureSockets
from oncemq.gateways.subscription import unsubscribe
from oncemq.gateways.tasks import cancel, start
from oncemq.protocol import errors
from oncemq.protocol.push_feed import topic_of

_PAUSE_S = 1.0
#: How long before a subscription that another consumer took over is taken back.
_TAKE_BACK_S = 30.0
#: How many delayed heartbeats are retried at a time. The same slow subscriber often delays all of them.
_LATE_MAX = 20
#: Subscriptions of SUB sockets per topic: its name with and without a zero byte, for messages and for batches.
_PREFIXES_PER_TOPIC = 4
#: User, which is empty if there are none, and topic.
_Key = tuple[str, str]


class Feed:
    def __init__(
        self,
        settings: PushSettings,
        link: Link,
        counters: Counters,
        on_failure: Callable[[], None] = lambda: None,
        *,
        take_back_s: float = _TAKE_BACK_S,
        secure: SecureSockets | None = None,
    ) -> None:
        """Listen. Raises ListenFailed."""
        self.settings = settings
        self.counters = counters
        self.take_back_s = take_back_s
        self.listeners = ListenerTable(_PREFIXES_PER_TOPIC * settings.topics_max)
        #: The gateway's own.
        self.link = link
        self._followers: dict[_Key, TopicFollower] = {}
        self._ending: dict[_Key, asyncio.Task[None]] = {}
        self._outputs: dict[str, TopicOutput] = {}
        #: How many followers each user has.
        self._counts: Counter[str] = Counter()
        #: Subscriptions beyond the limit of topics: they come first when a topic is no longer followed.
        self._refused: dict[bytes, str] = {}
        self.access = FeedAccess(self, secure, on_failure) if secure is not None else None
        reader = self.access.gate if self.access is not None else None
        self.socket = FeedSocket(settings, counters, self._changed, on_failure, reader)

    @property
    def topics_count(self) -> int:
        return len(self._followers)

    # Listeners, if there are no users.

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
        follower = self.follower_of(topic)
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
            follower = self._followers.get(("", topic_of(prefix) or ""))
            if follower is not None:
                follower.prefixes.discard(prefix)
                self.note_idle(follower)

    def _listen_to_refused(self) -> None:
        while self._refused and len(self._followers) < self.settings.topics_max:
            prefix = next(iter(self._refused))
            self._listen(self._refused.pop(prefix), prefix)

    # Followers.

    def find_follower(self, user: str, topic: str) -> TopicFollower | None:
        return self._followers.get((user, topic))

    def follower_of(self, topic: str, caller: str = "") -> TopicFollower | None:
        """Return the follower of a topic, or a new one; None if there are too many."""
        user = user_of(caller)
        follower = self._followers.get((user, topic))
        if follower is None and self._has_space(user):
            output = self._outputs.get(topic)
            if output is None:
                output = self._outputs[topic] = TopicOutput(self, topic)
            output.followers += 1
            self._counts[user] += 1
            # The caller may change, so it has a link of its own.
            link = self.link.for_caller(caller) if user else self.link
            follower = self._followers[user, topic] = TopicFollower(self, link, topic, output, user)
        return follower

    def _has_space(self, user: str) -> bool:
        # One user may take half of it.
        is_over_share = bool(user) and self._counts[user] >= (self.settings.topics_max + 1) // 2
        return len(self._followers) < self.settings.topics_max and not is_over_share

    def hold(self, topic: str, holder: object, caller: str = "") -> TopicFollower:
        """Follow a topic for a reliable subscriber, even if nobody listens to it. Raises LimitReached."""
        follower = self.follower_of(topic, caller)
        if follower is None:
            raise errors.LimitReached(f"the limit of {self.settings.topics_max} followed topics is reached")
        follower.holders.add(holder)
        follower.mark()
        return follower

    def release(self, topic: str, holder: object, user: str = "") -> None:
        """Undo `hold`."""
        follower = self._followers.get((user, topic))
        if follower is not None:
            follower.holders.discard(holder)
            self.note_idle(follower)

    def note_idle(self, follower: TopicFollower) -> None:
        """Nobody may need a follower any more."""
        if not follower.is_wanted:
            follower.idle_since_s = time.monotonic()

    # Periodic work.

    async def resume(self) -> None:
        """Follow the topics that this gateway followed before its restart, until `unfollow_ms` without listeners."""
        async for caller, topic in followed_by(self.link, self.settings.name):
            follower = self.follower_of(topic, caller)
            if follower is not None:
                follower.is_noted = True

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
        if self.access is not None:
            self.access.maintain()
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
        key = follower.user, follower.topic
        del self._followers[key]
        follower.close()
        self._counts[follower.user] -= 1
        output = self._outputs[follower.topic]
        output.followers -= 1
        if not output.followers:
            del self._outputs[follower.topic]
            output.close()
        # While a former follower of the topic is still ending, this one has not started: there is nothing to end.
        if key not in self._ending and follower.is_noted:
            self._ending[key] = start(self._unfollow(follower), "ending a push feed")

    async def _unfollow(self, follower: TopicFollower) -> None:
        try:
            await asyncio.wait([follower.task])
            while not await self._is_unfollowed(follower):
                await asyncio.sleep(_PAUSE_S)
        finally:
            del self._ending[follower.user, follower.topic]

    async def _is_unfollowed(self, follower: TopicFollower) -> bool:
        topic, user = follower.topic, follower.user
        subscriber = self.settings.feed_subscriber_of(user)
        try:
            await unsubscribe(self.link.for_caller(follower.caller) if user else self.link, topic, subscriber)
            await forget_followed(self.link, self.settings.name, user, topic)
        except errors.Unauthenticated:
            # Its user can delete it with another credential, or an administrator: `oncemq unsub`. The entry in the
            # registry stays, so that the next gateway tries again.
            self.counters.report("feed_left", f"'{subscriber}' on '{topic}' is left: its user's credential was removed")
        except errors.OnceMQError as error:
            self.counters.report("feed_waits", f"'{topic}' is still followed: {error.text}")
            return False
        return True

    async def wait_until_ended(self, user: str, topic: str) -> None:
        """Wait until a former follower of a topic has ended."""
        task = self._ending.get((user, topic))
        if task is not None:
            await asyncio.wait([task])

    async def stop(self) -> None:
        tasks = [follower.task for follower in self._followers.values()] + list(self._ending.values())
        await cancel(*tasks)
        if self.access is not None:
            await self.access.stop()
        self.socket.close()
