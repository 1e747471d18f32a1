"""What a shell's commands do. Who types them and where the answers are seen, others know."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from oncemq import Client
from oncemq.cli.support.options import bytes_of, is_pattern, utf8
from oncemq.cli.support.output import count_of, table
from oncemq.protocol import errors
from oncemq.protocol.replies import SubscriptionInfo
from oncemq.tools.shell.feed import Feed
from oncemq.tools.shell.lines import VERBS, Line, Misunderstood, parse
from oncemq.tools.shell.screen import Screen

#: What a shell says in place of the command line's advice, which speaks of other commands.
_ADVICE = {
    "TOPIC_UNKNOWN": "`sub` or `create` makes it; `list topics` lists those that there are.",
    "NOT_SUBSCRIBED": "Subscribe first: `sub`.",
    "NOTHING_NEW": "",
    "BROKER_AWAY": "The shell goes on: try again when it is back. A message in flight may or may not be stored.",
}
#: Messages that are there are shown before the next line is read from a pipe, within this time.
_SETTLE_S = 5.0
_LOOK_S = 0.005


class Session:
    """A user at work: `client` is connected, `name` is his as a subscriber."""

    prompt = "oncemq> "

    def __init__(self, client: Client, name: str, screen: Screen, *, stays: bool) -> None:
        """`stays`: his subscriptions outlive the shell."""
        self._client = client
        self.name = name
        self._screen = screen
        self._stays = stays
        self._feeds: dict[str, Feed] = {}
        #: Of the first line that went wrong.
        self.exit_code = 0

    # What is called from outside.

    def greet(self) -> None:
        self._screen.say("\n".join(self.instructions()))
        for entry in self._mine():
            if not entry.pattern:
                self._screen.say(f"{self.name} is subscribed to {entry.topic}{_waiting(entry.lag)}: sub, or get.")

    def instructions(self) -> list[str]:
        usages = {f"{verb} {wants}".rstrip(): does for verb, (wants, does) in VERBS.items()}
        width = max(map(len, usages))
        return [
            f'You are {self.name}. Quote topics with spaces: put "Cooking Recipes" pancakes',
            *(f"  {usage:{width}}  {does}" for usage, does in usages.items()),
        ]

    def execute(self, text: str) -> bool:
        """One line. False: the user leaves. What goes wrong is said, and the shell goes on."""
        try:
            return self.do(text)
        except Misunderstood as error:
            self.exit_code = self.exit_code or error.exit_code
            self._screen.trouble(str(error))
        except errors.OnceMQError as error:
            self.exit_code = self.exit_code or error.exit_code
            self.refuse(error)
        return True

    def refuse(self, error: errors.OnceMQError) -> None:
        self._screen.trouble(error.text, _ADVICE.get(error.code, error.advice))

    def do(self, text: str) -> bool:
        """Raises Misunderstood, and errors of the broker."""
        line = parse(text)
        if line is None:
            return True
        if line.verb == "quit":
            return False
        self._say_all(self._answer(line))
        return True

    def settle(self) -> None:
        """Wait until everything that is there for this user has been shown."""
        until_s = time.monotonic() + _SETTLE_S
        # A broker that is away has nothing to show; the feeds say so.
        with suppress(errors.BrokerAway, errors.NotNow):
            while time.monotonic() < until_s and self._owes():
                time.sleep(_LOOK_S)

    def topics(self) -> list[str]:
        return [topic.name for topic in self._client.topics()]

    def close(self) -> None:
        for topic, feed in self._feeds.items():
            feed.close()
            if not self._stays:
                self._leave(topic)
        self._feeds = {}

    # The commands.

    def _answer(self, line: Line) -> Sequence[str]:
        topic = utf8(line.topic, "a topic's name")
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
        with self._screen.held():
            receipt = self._client.put(topic, bytes_of(message))
            stored = f"Stored at offset {receipt.offset:,}, for {count_of(receipt.subscriptions, 'subscription')}."
            unwanted = f"{topic} has no subscription: unless it has a retention, the message is not kept."
            self._screen.say(stored if receipt.subscriptions else unwanted)
        return []

    def _sub(self, topic: str) -> Sequence[str]:
        if self.is_shown(topic):
            raise errors.SubscriptionExists(f"{self.name} is subscribed to {topic}, and its messages are shown")
        created = self.subscribe(topic)
        return [f"Subscribed to {topic}." if created else f"{self.name} goes on in {topic} where it was."]

    def is_shown(self, topic: str) -> bool:
        return topic in self._feeds and self._feeds[topic].is_alive

    def subscribe(self, topic: str) -> bool:
        """False: it was there before."""
        if is_pattern(topic):
            by_pattern = self._client.subscribe_pattern(topic, self.name, auto_ack=False)
            self._feeds[topic] = Feed(by_pattern, self._screen)
            return by_pattern.created
        subscription = self._client.subscribe(topic, self.name, auto_ack=False)
        self._feeds[topic] = Feed(subscription, self._screen)
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
            return [f"The messages of {topic} are shown as they come."]
        with self._client.subscription(topic, self.name, auto_ack=False) as subscription:
            message = subscription.get()
            if message is None:
                raise errors.NothingNew(f"There is nothing new in {topic}.")
            self._screen.message(message)
            subscription.ack(message, wait=True)
        return []

    def _create(self, topic: str) -> Sequence[str]:
        return [f"Created {topic}." if self._client.create_topic(topic) else f"{topic} was there before."]

    def _list_topics(self) -> Sequence[str]:
        rows = [
            [topic.name, topic.end_offset - topic.first_offset, topic.subscriptions] for topic in self._client.topics()
        ]
        return table(["TOPIC", "MESSAGES", "SUBSCRIPTIONS"], rows) if rows else ["There are no topics."]

    def _list_subscriptions(self) -> Sequence[str]:
        rows = [
            [entry.topic, entry.lag, "yes" if self.is_shown(entry.pattern or entry.topic) else "no"]
            for entry in self._mine()
        ]
        return table(["TOPIC", "WAITING", "SHOWN"], rows) if rows else [f"{self.name} has no subscriptions."]

    # Inside.

    def _say_all(self, lines: Sequence[str]) -> None:
        if lines:
            self._screen.say("\n".join(lines))

    def _owes(self) -> bool:
        """Something is there, and was not shown yet."""
        if not any(feed.is_alive for feed in self._feeds.values()):
            return False
        return any(self._owes_of(entry) for entry in self._mine())

    def _owes_of(self, entry: SubscriptionInfo) -> bool:
        key = entry.pattern or entry.topic
        return self.is_shown(key) and max(entry.acked, self._feeds[key].shown.get(entry.topic, 0)) < entry.end_offset

    def _mine(self) -> list[SubscriptionInfo]:
        return [entry for entry in self._client.subscriptions() if entry.subscriber == self.name]

    def _leave(self, topic: str) -> None:
        try:
            self._client.unsubscribe(topic, self.name)
        except errors.OnceMQError as error:
            self._screen.trouble(f"{self.name} stays subscribed to {topic}: {error.text}")


def _waiting(count: int) -> str:
    return f", where {count_of(count, 'message')} {'waits' if count == 1 else 'wait'}" if count else ""
