"""Subscriptions that are consumed through the gateway: which topic is meant, under which epoch.

A caller may own a subscription itself (POST …/open gave it an epoch). For others the gateway does (places.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from oncemq.gateways.http.framework.endpoint import Call
from oncemq.gateways.http.framework.state import Place, State, keep
from oncemq.gateways.link import Link, expect
from oncemq.protocol import errors
from oncemq.protocol.commands import Find, Subscriptions
from oncemq.protocol.patterns import is_pattern
from oncemq.protocol.replies import FindReply, OpenReply, SubscriptionInfo, SubscriptionsReply

T = TypeVar("T")

_LAST_CHARACTER = "\U0010ffff"
_NAME_CHARACTERS_MAX = 64  # Of the last character, which has four bytes: longer than any name.


def refuse_pattern(topic: str) -> None:
    """Raises Unsupported."""
    if is_pattern(topic):
        raise errors.Unsupported(f"'{topic}' is a pattern: its messages are not consumed over HTTP")


async def opened_by_caller(call: Call[Any, Any], topic: str, epoch: int) -> OpenReply:
    """Where the caller has the epoch: only the topic's id is looked up. Raises TopicUnknown, Unsupported."""
    refuse_pattern(topic)
    return OpenReply(await topic_id_of(call, topic), epoch, 0)


async def as_caller(
    call: Call[Any, Any], topic: str, epoch: int, ask: Callable[[OpenReply], Awaitable[T]], topic_id: int = 0
) -> T:
    """Ask under the caller's epoch, of the topic with this id; 0: of the one that has the name, which may have been
    made again since the gateway learnt its id."""
    if topic_id:
        refuse_pattern(topic)
        return await ask(OpenReply(topic_id, epoch, 0))
    opened = await opened_by_caller(call, topic, epoch)
    try:
        return await ask(opened)
    except errors.TopicGone:
        if await topic_id_of(call, topic, anew=True) == opened.topic_id:
            raise
    return await ask(await opened_by_caller(call, topic, epoch))


def refuse_other_topic(opened: OpenReply, topic_id: int) -> None:
    """Raises TopicGone, where the caller means a topic that had the name before."""
    if topic_id and opened.topic_id != topic_id:
        raise errors.TopicGone(f"the topic has another id, {opened.topic_id}: it was deleted and made again")


async def opened_by_gateway(call: Call[Any, Any], place: Place, stale_epoch: int = 0) -> OpenReply:
    """The gateway's own; opened anew where there is none, or the one there is has the stale epoch. Raises what the
    broker refuses."""
    refuse_pattern(place[0])
    state: State = call.state
    return await state.open(call.link, place, stale_epoch)


async def open_anew(link: Link, state: State, place: Place) -> OpenReply:
    """Whoever owned it is fenced, the gateway's former epoch too."""
    refuse_pattern(place[0])
    return await state.open_anew(link, place)


async def joined_by_gateway(call: Call[Any, Any], place: Place, stale_epoch: int = 0) -> OpenReply:
    """A shared subscription's epoch. It is looked up, not opened: that would take over one that is not shared. Raises
    KindMismatch, and what the broker refuses."""
    refuse_pattern(place[0])
    state: State = call.state
    known = state.opened.get(place)
    if known is not None and known.sharing is not None and known.epoch != stale_epoch:
        return known
    info, found = await asyncio.gather(subscription_info(call.link, place), call.link.ask(Find(place[0], 0)))
    if info.sharing is None:
        text = f"'{place[1]}' on '{place[0]}' is not shared: get and ack its messages"
        raise errors.KindMismatch(text)
    reply = OpenReply(expect(found[0], FindReply).topic_id, info.epoch, info.acked, info.sharing)
    keep(state.opened, place, reply)
    return reply


def note_acked(state: State, place: Place, epoch: int, acked: int) -> None:
    """Where the gateway's own subscription stands."""
    state.note_acked(place, epoch, acked)


async def topic_id_of(call: Call[Any, Any], topic: str, *, anew: bool = False) -> int:
    """Raises TopicUnknown."""
    ids: dict[str, int] = call.state.topic_ids
    known = None if anew else ids.get(topic)
    if known is None:
        ids.pop(topic, None)
        known = expect((await call.link.ask(Find(topic, 0)))[0], FindReply).topic_id
        keep(ids, topic, known)
    return known


async def subscription_info(link: Link, place: Place) -> SubscriptionInfo:
    """Raises TopicUnknown, NotSubscribed."""
    topic, subscriber = place
    command = Subscriptions(topic, just_before(subscriber), 1)
    page = expect((await link.ask(command))[0], SubscriptionsReply).subscriptions
    if not page or page[0].subscriber != subscriber or page[0].pattern:
        raise errors.NotSubscribed(f"'{subscriber}' is not subscribed to '{topic}'")
    return page[0]


def just_before(name: str) -> str:
    """A text that comes right before this name: no name lies between the two. Lists begin after a name."""
    last = ord(name[-1]) if name else 0
    if not last:
        return ""
    before = 0xD7FF if last == 0xE000 else last - 1  # Surrogates are no characters.
    return name[:-1] + chr(before) + _LAST_CHARACTER * _NAME_CHARACTERS_MAX
