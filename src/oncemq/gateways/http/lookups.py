"""Single things of the broker, found by their name in its lists."""

from __future__ import annotations

from oncemq.gateways.link import Link
from oncemq.protocol import errors
from oncemq.protocol.commands import Find, Sessions, Subscriptions, Topics
from oncemq.protocol.replies import (
    FindReply,
    SessionInfo,
    SessionsReply,
    SubscriptionInfo,
    SubscriptionsReply,
    TopicInfo,
    TopicsReply,
)

_LAST_CHARACTER = "\U0010ffff"
#: It has four bytes: this many are longer than any name.
_NAME_CHARACTERS_MAX = 64


def just_before(name: str) -> str:
    """Return a text that sorts directly before a name: no other name lies between them. Lists begin after a name."""
    last = ord(name[-1]) if name else 0
    if not last:
        return ""
    before = 0xD7FF if last == 0xE000 else last - 1  # Surrogates are not characters.
    return name[:-1] + chr(before) + _LAST_CHARACTER * _NAME_CHARACTERS_MAX


async def find_topic(link: Link, name: str) -> TopicInfo | None:
    """Return a topic's settings and counts; None if it does not exist."""
    page = (await link.query(Topics(just_before(name), 1), TopicsReply)).topics
    return page[0] if page and page[0].name == name else None


async def find_topic_id(link: Link, name: str) -> int:
    """Raises TopicUnknown."""
    return (await link.query(Find(name, 0), FindReply)).topic_id


async def find_session(link: Link, name: str) -> SessionInfo | None:
    """Return a session's numbers; None if it does not exist."""
    page = (await link.query(Sessions(just_before(name), 1), SessionsReply)).sessions
    return page[0] if page and page[0].name == name else None


async def find_subscription(link: Link, topic: str, subscriber: str) -> SubscriptionInfo:
    """Return a subscription's positions. Raises TopicUnknown, NotSubscribed."""
    page = (await link.query(Subscriptions(topic, just_before(subscriber), 1), SubscriptionsReply)).subscriptions
    if not page or page[0].subscriber != subscriber or page[0].pattern:
        raise errors.NotSubscribed(f"'{subscriber}' is not subscribed to '{topic}'")
    return page[0]
