"""Who may listen to the feed of a topic: a user for whom the broker lets the gateway follow it.

A follower of the user asks the broker with everything it does (topic_follower.py). When a right is taken away, its get
ends, and so do the connections of the user that listen to the topic. A credential that was removed is noticed in the
same way, or within ten seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from oncemq.auth.users import user_of
from oncemq.gateways.push.feed.feed_gate import FeedGate
from oncemq.gateways.secure_sockets import SecureSockets
from oncemq.gateways.tasks import cancel, start
from oncemq.protocol import errors
from oncemq.protocol.commands import NO_CREDENTIAL, Topics
from oncemq.protocol.replies import TopicsReply

if TYPE_CHECKING:
    from oncemq.gateways.push.feed.feed import Feed
    from oncemq.gateways.push.feed.topic_follower import TopicFollower

#: How long a refusal holds. After that, the broker is asked again.
_REFUSED_S = 5.0
#: How often the broker is asked whether the callers of the feed's connections still exist, and whether what was refused
#: is allowed now.
_VALIDATE_S = 10.0
_ASK_AGAIN_S = 30.0


class FeedAccess:
    """Implements `feed_gate.Access`."""

    def __init__(self, feed: Feed, secure: SecureSockets, on_failure: Callable[[], None]) -> None:
        self._feed = feed
        self.gate = FeedGate(self, feed.counters, secure, on_failure)
        self._validating: asyncio.Task[None] | None = None
        self._validate_at_s = time.monotonic() + _VALIDATE_S
        self._ask_again_at_s = time.monotonic() + _ASK_AGAIN_S

    # The gate asks.

    def verdict(self, caller: str, topic: str) -> bool | None:
        follower = self._feed.follower_of(topic, caller)
        if follower is None:
            text = f"the limit of {self._feed.settings.topics_max} followed topics is reached: '{topic}' is refused"
            self._feed.counters.report("feed_topics_refused", text)
            return False
        is_old = time.monotonic() - follower.refused_s > _REFUSED_S
        if follower.verdict is False and (is_old or follower.caller != caller):
            follower.use(caller)
        return follower.verdict

    def listen(self, caller: str, topic: str, frame: bytes, listener: object) -> bool:
        follower = self._feed.find_follower(user_of(caller), topic)
        if follower is None or not self._feed.listeners.add(frame):
            self._feed.counters.report("feed_topics_refused", "the feed has too many subscriptions: one is ignored")
            return False
        follower.prefixes.add((listener, frame))
        # The new listener learns the next offset, once it listens.
        asyncio.get_running_loop().call_soon(follower.send_heartbeat)
        return True

    def leave(self, caller: str, topic: str, frame: bytes, listener: object, *, is_last: bool) -> None:
        if is_last:
            self._feed.listeners.discard(frame)
        follower = self._feed.find_follower(user_of(caller), topic)
        if follower is not None:
            follower.prefixes.discard((listener, frame))
            self._feed.note_idle(follower)

    # Followers tell.

    def note_allowed(self) -> None:
        """A user may follow a topic."""
        self.gate.verdicts_changed()

    def note_refused(self, follower: TopicFollower, error: errors.OnceMQError) -> None:
        """A user may not follow a topic, or not any more. If only the credential was removed, another one of the same
        user is used."""
        text = f"user '{follower.user}' does not get the feed of '{follower.topic}': {error.text}"
        self._feed.counters.report("feed_refused", text)
        if isinstance(error, errors.Unauthenticated):
            former = follower.caller
            self.gate.end_caller(former)
            for caller in self.gate.callers():
                if caller != former and user_of(caller) == follower.user:
                    follower.use(caller)
                    return
        self.gate.end_topic(follower.user, follower.topic)
        self.gate.verdicts_changed()

    # Periodic work.

    def maintain(self) -> None:
        now_s = time.monotonic()
        self.gate.sweep()
        if now_s >= self._ask_again_at_s:
            self._ask_again_at_s = now_s + _ASK_AGAIN_S
            self.gate.ask_again()
        is_due = now_s >= self._validate_at_s and (self._validating is None or self._validating.done())
        if is_due and self.gate.callers():
            self._validate_at_s = now_s + _VALIDATE_S
            self._validating = start(self._validate(), "checking the callers of the push feed")

    async def _validate(self) -> None:
        for caller in self.gate.callers():
            try:
                if caller:
                    await self._feed.link.for_caller(caller).query(Topics(limit=1), TopicsReply)
                else:
                    await self._feed.link.login(NO_CREDENTIAL, "", "", "push")
            except errors.Unauthenticated:
                self.gate.end_caller(caller)
            except errors.OnceMQError:
                # It is asked again.
                pass

    async def stop(self) -> None:
        if self._validating is not None:
            await cancel(self._validating)
