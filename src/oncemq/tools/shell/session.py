"""The commands of a shell. Where lines come from and where answers go is decided elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from oncemq import Client
from oncemq.protocol import errors
from oncemq.protocol.patterns import is_pattern
from oncemq.protocol.replies import SubscriptionInfo
from oncemq.terminal import bytes_of, count_of, table, utf8
from oncemq.tools.shell.display import Display
from oncemq.tools.shell.feed import Feed
from oncemq.tools.shell.lines import VERBS, Line, SyntaxProblem, parse

#: Replaces the advice of the command line, which names other commands.
_ADVICE = {
    "TOPIC_UNKNOWN": "`sub` or `create` creates it; `list topics` lists the topics.",
    "NOT_SUBSCRIBED": "Subscribe first: `sub`.",
    "NOTHING_NEW": "",
    "BROKER_AWAY": "The shell continues: try again when the broker is back. A message in flight may or may not be "
    "stored.",
}
#: A subscription that is not permanent is deleted after this time if the shell could not delete it. It is long enough
#: for a shell that is suspended for a while.
IDLE_S = 3600.0
#: How long available messages are awaited before the next line is read from a pipe.
_SETTLE_S = 5.0
_POLL_S = 0.005


class Session:
    """A user's session: `name` is the name of the subscriber."""

    prompt = "oncemq> "
    #: Short answers to some errors, by code.
    replies: Mapping[str, str] = {}
    #: Whether the greeting lists existing subscriptions.
    lists_subscriptions = True

    def __init__(self, client: Client, name: str, display: Display, *, permanent: bool) -> None:
        """`permanent`: the subscriptions are kept when the session ends. Others are deleted, by the broker if the
        session cannot: because it was killed, for example."""
        self._client = client
        self.name = name
        self._display = display
        self._is_permanent = permanent
        self._idle_s = 0.0 if permanent else IDLE_S
        self._feeds: dict[str, Feed] = {}
        #: The exit code of the first line that failed.
        self.exit_code = 0

    # The interface to the input.

    def greet(self) -> None:
        """Show the instructions and existing subscriptions."""
        self._display.say("\n".join(self.instructions()))
        for entry in self._subscriptions() if self.lists_subscriptions else ():
            if not entry.pattern:
                self._display.say(f"{self.name} is subscribed to {entry.topic}{_waiting(entry.lag)}: use sub or get.")

    def instructions(self) -> list[str]:
        usages = {f"{verb} {wants}".rstrip(): does for verb, (wants, does) in VERBS.items()}
        width = max(map(len, usages))
        return [
            f'You are {self.name}. Quote topics with spaces: put "Cooking Recipes" pancakes',
            *(f"  {usage:{width}}  {does}" for usage, does in usages.items()),
        ]

    def execute(self, text: str) -> bool:
        """Execute a line. Returns False if the user leaves. Errors are shown, and the shell continues."""
        try:
            return self.do(text)
        except SyntaxProblem as error:
            self.exit_code = self.exit_code or error.exit_code
            self._display.error(str(error))
        except errors.OnceMQError as error:
            self.exit_code = self.exit_code or error.exit_code
            self.refuse(error)
        return True

    def refuse(self, error: errors.OnceMQError) -> None:
        """Show an error."""
        if error.code in self.replies:
            self._display.say(self.replies[error.code])
            return
        self._display.error(error.text, _ADVICE.get(error.code, error.advice))

    def do(self, text: str) -> bool:
        """Execute a line. Raises SyntaxProblem, and errors of the broker."""
        line = parse(text)
        if line is None:
            return True
        if line.verb == "quit":
            return False
        if lines := self._answer(line):
            self._display.say("\n".join(lines))
        return True

    def settle(self) -> None:
        """Wait until all available messages for this user have been shown."""
        until_s = time.monotonic() + _SETTLE_S
        # If the broker does not answer, there is nothing to show; the feeds report that.
        with suppress(*errors.TRANSIENT):
            while time.monotonic() < until_s and self._has_unshown():
                time.sleep(_POLL_S)

    def topics(self) -> list[str]:
        return [topic.name for topic in self._client.topics()]

    def close(self) -> None:
        """Stop all feeds, and delete subscriptions that are not permanent."""
        for topic, feed in self._feeds.items():
            feed.close()
            if not self._is_permanent:
                self._unsubscribe_at_end(topic)
        self._feeds = {}

    # The commands.

    def _answer(self, line: Line) -> Sequence[str]:
        topic = utf8(line.topic, "the name of a topic")
        match line.verb:
            case "put":
                return self._put(topic, line.message or "")
            case "sub":
                return self._sub(topic)
            case "unsub":
                return self._unsub(topic)
            case "get":
                return self._get(topic)
            case "create":
                return self._create(topic)
            case "list":
                return self._list_topics() if topic == "topics" else self._list_subscriptions()
        return self.instructions()

    def _put(self, topic: str, message: str) -> Sequence[str]:
        with self._display.messages_held():
            receipt = self._client.put(topic, bytes_of(message))
            stored = f"Stored at offset {receipt.offset:,}, for {count_of(receipt.subscriptions, 'subscription')}."
            not_kept = f"{topic} has no subscription: the message is kept only if the topic has a retention."
            self._display.say(stored if receipt.subscriptions else not_kept)
        return []

    def _sub(self, topic: str) -> Sequence[str]:
        if self.is_shown(topic):
            raise errors.SubscriptionExists(f"{self.name} is already subscribed to {topic}, and its messages are shown")
        created = self.subscribe(topic)
        return [f"Subscribed to {topic}." if created else f"{self.name} continues in {topic} at its position."]

    def is_shown(self, topic: str) -> bool:
        return topic in self._feeds and self._feeds[topic].is_alive

    def subscribe(self, topic: str) -> bool:
        """Subscribe and show the messages. Returns False if the subscription existed."""
        if is_pattern(topic):
            by_pattern = self._client.subscribe_pattern(topic, self.name, auto_ack=False, idle_s=self._idle_s)
            self._feeds[topic] = Feed(by_pattern, self._display)
            return by_pattern.created
        subscription = self._client.subscribe(topic, self.name, auto_ack=False, idle_s=self._idle_s)
        self._feeds[topic] = Feed(subscription, self._display)
        return subscription.created

    def _unsub(self, topic: str) -> Sequence[str]:
        self.unsubscribe(topic)
        return [f"Unsubscribed from {topic}."]

    def unsubscribe(self, topic: str) -> None:
        if topic in self._feeds:
            self._feeds.pop(topic).close()
        self._client.unsubscribe(topic, self.name)

    def _get(self, topic: str) -> Sequence[str]:
        if self.is_shown(topic):
            return [f"The messages of {topic} are shown as they arrive."]
        with self._client.subscription(topic, self.name, auto_ack=False) as subscription:
            message = subscription.get()
            if message is None:
                raise errors.NothingNew(f"There are no new messages in {topic}.")
            self._display.message(message)
            subscription.ack(message, wait=True)
        return []

    def _create(self, topic: str) -> Sequence[str]:
        return [f"Created {topic}." if self._client.create_topic(topic) else f"{topic} already exists."]

    def _list_topics(self) -> Sequence[str]:
        rows = [
            [topic.name, topic.end_offset - topic.first_offset, topic.subscriptions] for topic in self._client.topics()
        ]
        return table(["TOPIC", "MESSAGES", "SUBSCRIPTIONS"], rows) if rows else ["There are no topics."]

    def _list_subscriptions(self) -> Sequence[str]:
        rows = [
            [entry.topic, entry.lag, "yes" if self.is_shown(entry.pattern or entry.topic) else "no"]
            for entry in self._subscriptions()
        ]
        return table(["TOPIC", "WAITING", "SHOWN"], rows) if rows else [f"{self.name} has no subscriptions."]

    def _has_unshown(self) -> bool:
        """Whether a message is available and has not been shown yet."""
        if not any(feed.is_alive for feed in self._feeds.values()):
            return False
        return any(self._is_unshown(entry) for entry in self._subscriptions())

    def _is_unshown(self, entry: SubscriptionInfo) -> bool:
        key = entry.pattern or entry.topic
        return self.is_shown(key) and max(entry.acked, self._feeds[key].shown.get(entry.topic, 0)) < entry.end_offset

    def _subscriptions(self) -> list[SubscriptionInfo]:
        return [entry for entry in self._client.subscriptions() if entry.subscriber == self.name]

    def _unsubscribe_at_end(self, topic: str) -> None:
        try:
            self._client.unsubscribe(topic, self.name)
        except errors.OnceMQError as error:
            self._display.error(f"the subscription of {self.name} to {topic} was not deleted: {error.text}")


def _waiting(count: int) -> str:
    return f", with {count_of(count, 'message')} to deliver" if count else ""
