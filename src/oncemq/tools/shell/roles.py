"""A publisher and a subscriber as two programs, for users of a datagram broker with such programs: the same words and
the same prompts. The difference: no message is lost or delivered twice, and topics may contain spaces."""

from __future__ import annotations

from oncemq import Client
from oncemq.protocol import errors
from oncemq.terminal import bytes_of, utf8
from oncemq.tools.shell.display import Display
from oncemq.tools.shell.lines import SyntaxProblem, message_of, take_word
from oncemq.tools.shell.session import Session

_REPLIES = {
    "TOPIC_UNKNOWN": "Topic does not exist.",
    "SUBSCRIPTION_EXISTS": "Already subscribed to topic.",
    "NOT_SUBSCRIBED": "You are not currently subscribed to this topic.",
}


class Publisher(Session):
    """A prompt for `<topic> <message>`."""

    prompt = "Enter a topic and a message to publish: "
    replies = _REPLIES
    lists_subscriptions = False

    def instructions(self) -> list[str]:
        return [
            "Type <topic> <message> to publish a message; the topic is created if it does not exist.",
            "A topic alone only creates it. Quote topics with spaces. Type quit to leave.",
        ]

    def do(self, text: str) -> bool:
        word, rest = take_word(text)
        if word == "quit" and not rest:
            return False
        if not word:
            return True
        topic = utf8(word, "the name of a topic")
        if rest:
            self._client.put(topic, bytes_of(message_of(rest)), create=True)
        else:
            self._client.create_topic(topic)
        self._display.say("Acknowledged!")
        return True


class Subscriber(Session):
    """A prompt for sub, unsub and list topics."""

    prompt = "> "
    replies = _REPLIES
    lists_subscriptions = False

    def instructions(self) -> list[str]:
        return [
            "sub <topic>    subscribe to a topic: its messages appear as topic: message",
            "unsub <topic>  unsubscribe from it",
            "list topics    list the topics",
            "quit           leave",
        ]

    def do(self, text: str) -> bool:
        verb, rest = take_word(text)
        if verb == "quit":
            return False
        if verb == "list":
            self._display.say(f"[{', '.join(self.topics())}]")
            return True
        topic, more = take_word(rest)
        if verb not in ("sub", "unsub") or not topic or more:
            if verb:
                raise SyntaxProblem("Type sub <topic>, unsub <topic>, list topics or quit; quote topics with spaces.")
            return True
        if verb == "sub":
            self._subscribe_to_existing(topic)
        else:
            self.unsubscribe(topic)
            self._display.say("Unsubscribed!")
        return True

    def _subscribe_to_existing(self, topic: str) -> None:
        """Subscribe. In this role, only publishers create topics."""
        if self.is_shown(topic):
            raise errors.SubscriptionExists
        if topic not in self.topics():
            raise errors.TopicUnknown
        self.subscribe(topic)
        self._display.say(f"Subscribed to {topic}!")


def make_session(role: str | None, client: Client, name: str, display: Display, *, permanent: bool) -> Session:
    """Return the session for `--role`; None: all commands."""
    kind = Publisher if role == "publisher" else Subscriber if role == "subscriber" else Session
    return kind(client, name, display, permanent=permanent)
