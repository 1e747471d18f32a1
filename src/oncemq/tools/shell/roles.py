"""A publisher and a subscriber as two programs, as people know them who come from a broker of datagrams: the same
words, the same prompts. What they gain: nothing is lost, nothing comes twice, topics may have spaces."""

from __future__ import annotations

from oncemq.cli.support.options import bytes_of, utf8
from oncemq.protocol import errors
from oncemq.tools.shell.lines import Misunderstood, message_of, take_word
from oncemq.tools.shell.session import Session

_REPLIES = {
    "TOPIC_UNKNOWN": "Topic does not exist.",
    "SUBSCRIPTION_EXISTS": "Already subscribed to topic.",
    "NOT_SUBSCRIBED": "You are not currently subscribed to this topic.",
}


class _Role(Session):
    def greet(self) -> None:
        self._screen.say("\n".join(self.instructions()))

    def refuse(self, error: errors.OnceMQError) -> None:
        if error.code in _REPLIES:
            self._screen.say(_REPLIES[error.code])
        else:
            super().refuse(error)


class Publisher(_Role):
    prompt = "Enter a topic and a message to publish: "

    def instructions(self) -> list[str]:
        return [
            "Type <topic> <message> to publish a message; it makes the topic where there is none.",
            "A topic alone only makes it. Quote topics with spaces. Type quit to leave.",
        ]

    def do(self, text: str) -> bool:
        word, rest = take_word(text)
        if word == "quit" and not rest:
            return False
        if not word:
            return True
        topic = utf8(word, "a topic's name")
        if rest:
            self._client.put(topic, bytes_of(message_of(rest)), create=True)
        else:
            self._client.create_topic(topic)
        self._screen.say("Acknowledged!")
        return True


class Subscriber(_Role):
    prompt = "> "

    def instructions(self) -> list[str]:
        return [
            "sub <topic>    subscribe to a topic: its messages appear as topic: message",
            "unsub <topic>  unsubscribe from it",
            "list topics    list the topics that there are",
            "quit           leave",
        ]

    def do(self, text: str) -> bool:
        verb, rest = take_word(text)
        if verb == "quit":
            return False
        if verb == "list":
            self._screen.say(f"[{', '.join(self.topics())}]")
            return True
        topic, more = take_word(rest)
        if verb not in ("sub", "unsub") or not topic or more:
            if verb:
                raise Misunderstood("Type sub <topic>, unsub <topic>, list topics or quit; quote topics with spaces.")
            return True
        if verb == "sub":
            self._begin(topic)
        else:
            self.unsubscribe(topic)
            self._screen.say("Unsubscribed!")
        return True

    def _begin(self, topic: str) -> None:
        """Only publishers make topics."""
        if self.is_shown(topic):
            raise errors.SubscriptionExists
        if topic not in self.topics():
            raise errors.TopicUnknown
        self.subscribe(topic)
        self._screen.say(f"Subscribed to {topic}!")


#: By `--role`.
ROLES: dict[str | None, type[Session]] = {None: Session, "publisher": Publisher, "subscriber": Subscriber}
