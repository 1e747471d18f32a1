"""Messages that are given under a key: a repeated key gets the same message, a new one confirms what was given before.

Which key was given what is in the registry, before it is answered: namespace "given", `<subscriber>/<topic's id>`,
{"keys": [[key, offset], …]}, the latest at the end; an offset of -1 there says that what was given before is confirmed,
so that a seek may bring it again. A crash before that is harmless: the message is still the first
one, and the repeated request finds it. All gateways share these entries, so that a subscriber may change the door.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from oncemq.gateways.link import Link, expect
from oncemq.gateways.subscription_cache import keep
from oncemq.gateways.subscription_reader import Reading
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistryList, RegistrySet
from oncemq.protocol.message import Message
from oncemq.protocol.replies import RegistryListReply, RegistryReply

NAMESPACE = "given"
#: The key of a request that has none: it is always a new one.
NO_KEY = ""

#: Keys that are remembered per subscription.
_KEYS_MAX = 16
#: Another gateway consumes for the same subscriber, or the subscription was moved: from the start again, so often, and
#: after a pause of any length up to this, which grows.
_TRIES = 8
_PAUSE_S = 0.005

T = TypeVar("T")
#: (subscriber, topic's id)
_Whose = tuple[str, int]


class _Entry(msgspec.Struct, frozen=True):
    keys: tuple[tuple[str, int], ...]


_decode_entry = msgspec.json.Decoder(_Entry).decode


class GivenKeys(msgspec.Struct, frozen=True):
    """Which message each of a subscription's last keys was given."""

    #: (key, offset), the latest one at the end
    keys: tuple[tuple[str, int], ...] = ()
    #: Of the registry's entry.
    version: int = 0

    def offset_of(self, key: str) -> int | None:
        return dict(self.keys).get(key) if key != NO_KEY else None

    @property
    def last_offset(self) -> int:
        """-1: none was given."""
        return self.keys[-1][1] if self.keys else -1

    def followed_by(self, key: str, offset: int) -> tuple[tuple[str, int], ...]:
        named = [former for former in self.keys if former[0] != NO_KEY]
        return (*named[1 - _KEYS_MAX :], (key, offset))

    def followed_by_nothing(self) -> tuple[tuple[str, int], ...]:
        return (*(former for former in self.keys if former[0] != NO_KEY), (NO_KEY, -1))


class Giving:
    """What it keeps are caches with bounds. The registry knows the same, but for keys that came and found nothing:
    what has overtaken them is known to the gateway that they came to, and a copy that comes late comes there."""

    def __init__(self) -> None:
        self.given: dict[_Whose, GivenKeys] = {}
        #: Keys that have found nothing since something was given.
        self._in_vain: dict[_Whose, tuple[str, ...]] = {}
        #: Later keys were given messages: whoever sends one of these again is late.
        self._overtaken: dict[tuple[str, int, str], bool] = {}

    async def under_key(self, link: Link, reading: Reading, key: str) -> Message:
        """The key's message. Raises NothingNew, which decides nothing, and Consumed: a later key has confirmed it; and
        as Reading does."""
        try:
            return await self._under_key(link, reading, key)
        except errors.Sought:
            # A new key gets what is at the new place, also where that was given before.
            await self._give_nothing(link, reading, await self._given(link, reading))
            raise
        except (errors.TopicGone, errors.NotSubscribed):
            if reading.topic_id:
                await self._forget_known(link, reading)
            raise

    async def _under_key(self, link: Link, reading: Reading, key: str) -> Message:
        message = await reading.first()
        given = await self._given(link, reading)
        known = given.offset_of(key)
        if known is not None:
            if message is not None and message.offset == known:
                return message
            raise errors.Consumed(f"the message of key '{key}', at {known}, was confirmed by a later request")
        if (*_whose(reading), key) in self._overtaken:
            raise errors.Consumed(f"key '{key}' comes late: a later request was given a message")
        if message is not None and message.offset == given.last_offset:
            message = await reading.confirm(message.offset + 1)
            if message is None:
                await self._give_nothing(link, reading, given)
        if message is None:
            self._note_in_vain(_whose(reading), key)
            raise nothing_for(reading)
        await self._give(link, reading, given, key, message.offset)
        return message

    async def _given(self, link: Link, reading: Reading) -> GivenKeys:
        known = self.given.get(_whose(reading))
        if known is None:
            known = await _read_entry(link, _entry_key(reading.subscriber, reading.topic_id))
            keep(self.given, _whose(reading), known)
        return known

    async def _give(self, link: Link, reading: Reading, given: GivenKeys, key: str, offset: int) -> None:
        """Raises RegistryConflict: another gateway was quicker."""
        whose, keys = _whose(reading), given.followed_by(key, offset)
        await self._write(link, whose, keys, given.version)
        forgotten = {former for former, _ in given.keys} - {former for former, _ in keys}
        self._note_overtaken(whose, {*forgotten, *self._in_vain.pop(whose, ())} - {key, NO_KEY})

    async def _give_nothing(self, link: Link, reading: Reading, given: GivenKeys) -> None:
        """As `_give`. Keys keep what they were given."""
        if given.last_offset >= 0:
            await self._write(link, _whose(reading), given.followed_by_nothing(), given.version)

    async def _write(self, link: Link, whose: _Whose, keys: tuple[tuple[str, int], ...], version: int) -> None:
        # Whatever becomes of it, what was known before may be wrong.
        self.given.pop(whose, None)
        value = msgspec.json.encode(_Entry(keys))
        written = await link.operate(RegistrySet(NAMESPACE, _entry_key(*whose), value, version))
        keep(self.given, whose, GivenKeys(keys, expect(written, RegistryReply).version))

    def _note_in_vain(self, whose: _Whose, key: str) -> None:
        former = self._in_vain.get(whose, ())
        if key != NO_KEY and key not in former:
            keep(self._in_vain, whose, (*former[1 - _KEYS_MAX :], key))

    def _note_overtaken(self, whose: _Whose, keys: set[str]) -> None:
        for key in keys:
            keep(self._overtaken, (*whose, key), True)

    async def forget(self, link: Link, subscriber: str, topic_id: int, version: int = -1) -> None:
        """The subscription has ended: its entry goes."""
        self.given.pop((subscriber, topic_id), None)
        self._in_vain.pop((subscriber, topic_id), None)
        await link.operate(RegistrySet(NAMESPACE, _entry_key(subscriber, topic_id), None, version))

    async def _forget_known(self, link: Link, reading: Reading) -> None:
        """Only as it is known: the subscriber may have come back elsewhere, and been given something."""
        with suppress(errors.OnceMQError):
            given = await self._given(link, reading)
            if given.version:
                await self.forget(link, *_whose(reading), given.version)


async def until_settled(reading: Reading, consume: Callable[[], Awaitable[T]], *, names_offsets: bool = False) -> T:
    """An ack belongs to what was read under the same epoch, so that whatever moves the subscription meanwhile makes
    it all begin again. Offsets of the caller's mean nothing after a seek, or in a topic that was made again: who
    `names_offsets` is told, once."""
    tries = 0
    while True:
        try:
            return await consume()
        except (errors.Fenced, errors.Sought, errors.TopicGone, errors.RegistryConflict) as error:
            tries += 1
            if names_offsets and isinstance(error, errors.Sought | errors.TopicGone):
                reading.drop()
                raise
            if tries == _TRIES:
                raise
        reading.forget()
        await asyncio.sleep(random.uniform(0, _PAUSE_S * (tries - 1)))


def nothing_for(reading: Reading) -> errors.NothingNew:
    return errors.NothingNew(f"there is no message for '{reading.subscriber}' on '{reading.topic}'")


async def _read_entry(link: Link, key: str) -> GivenKeys:
    # Among the keys that start like it, it is the first.
    reply = expect((await link.ask(RegistryList(NAMESPACE, key, limit=1)))[0], RegistryListReply)
    if not reply.entries or reply.entries[0].key != key:
        return GivenKeys()
    entry = reply.entries[0]
    return GivenKeys(_decode_entry(entry.value).keys, entry.version)


def _whose(reading: Reading) -> _Whose:
    return reading.subscriber, reading.topic_id


def _entry_key(subscriber: str, topic_id: int) -> str:
    return f"{subscriber}/{topic_id}"
