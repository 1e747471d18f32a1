"""Messages that are delivered under a key: a repeated key gets the same message; a new key acks the message of the key
before it.

The registry records which key got which message, before the caller gets its answer: namespace "given",
`<subscriber>/<topic's id>` (of a user: `<user>/<subscriber>/<topic's id>`), {"keys": [[key, offset], …]}, the latest at
the end. An offset of -1 at the end says that the message before it is acked, so that a seek may deliver it again. A
crash before the entry is written does no harm: the message is still the first one, and the repeated request gets it.
All gateways share these entries, so that a subscriber may change the protocol. When the subscription is deleted, its
entry is deleted too, and its last keys stay outdated (ended_keys.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from copy import copy

import msgspec

from oncemq.gateways.bounded_dict import BoundedDict
from oncemq.gateways.ended_keys import find_ended_hashes, hash_of, record_ended
from oncemq.gateways.link import Link
from oncemq.gateways.registry import find_entry
from oncemq.gateways.subscription_reader import SubscriptionReader
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistrySet
from oncemq.protocol.message import Message
from oncemq.protocol.replies import RegistryReply

NAMESPACE = "given"
#: The key of a request without a key: it is always a new one.
NO_KEY = ""

#: Keys that are remembered per subscription.
_KEYS_MAX = 16

#: (subscriber, topic's id)
_Owner = tuple[str, int]


class _Entry(msgspec.Struct, frozen=True):
    keys: tuple[tuple[str, int], ...]


_decode_entry = msgspec.json.Decoder(_Entry).decode


class DeliveredKeys(msgspec.Struct, frozen=True):
    """Which message each of a subscription's last keys got."""

    #: (key, offset), the latest one at the end
    keys: tuple[tuple[str, int], ...] = ()
    #: The version of the registry's entry.
    version: int = 0

    def offset_of(self, key: str) -> int | None:
        """Return the offset that a key got; None if the key is new."""
        return dict(self.keys).get(key) if key != NO_KEY else None

    @property
    def last_offset(self) -> int:
        """The offset of the last key; -1 if its message is acked, or if there is no key."""
        return self.keys[-1][1] if self.keys else -1

    def followed_by(self, key: str, offset: int) -> tuple[tuple[str, int], ...]:
        """Return the keys with one more."""
        named = [former for former in self.keys if former[0] != NO_KEY]
        return (*named[1 - _KEYS_MAX :], (key, offset))

    def followed_by_ack(self) -> tuple[tuple[str, int], ...]:
        """Return the keys, with the last message marked as acked."""
        return (*(former for former in self.keys if former[0] != NO_KEY), (NO_KEY, -1))


class KeyedDelivery:
    """Keeps bounded caches. The registry knows the same, except for keys that found no message: only this gateway knows
    which later keys overtook them. A late copy of such a request comes to this gateway."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.delivered: BoundedDict[_Owner, DeliveredKeys] = BoundedDict()
        #: Keys that have found no message since the last delivery.
        self._empty_keys: BoundedDict[_Owner, tuple[str, ...]] = BoundedDict()
        #: (subscriber, topic, hash of a key) that a later key has overtaken, or whose subscription was deleted: a
        #: request that repeats it is late.
        self._outdated: BoundedDict[tuple[str, str, str], bool] = BoundedDict()

    def for_link(self, link: Link) -> KeyedDelivery:
        """Return the same for another caller of the same user."""
        delivery = copy(self)
        delivery._link = link
        return delivery

    async def deliver(self, reader: SubscriptionReader, key: str) -> Message:
        """Return the key's message. Raises NothingNew, which decides nothing; Consumed if a later key has acked the
        message; and what the reader raises."""
        try:
            return await self._deliver(reader, key)
        except errors.Sought:
            # A new key gets the message at the new position, even if that message was delivered before.
            await self._record_ack(reader, await self._find_delivered(reader.topic, _owner(reader)))
            raise
        except (errors.TopicGone, errors.NotSubscribed):
            if reader.topic_id:
                await self._delete_known(reader)
            raise

    async def _deliver(self, reader: SubscriptionReader, key: str) -> Message:
        message = await reader.first()
        delivered = await self._find_delivered(reader.topic, _owner(reader))
        known = delivered.offset_of(key)
        if known is not None:
            if message is not None and message.offset == known:
                return message
            raise errors.Consumed(f"the message of key '{key}', at {known}, was confirmed by a later request")
        if (reader.subscriber, reader.topic, hash_of(key)) in self._outdated:
            raise errors.Consumed(f"a later request has already consumed a message: key '{key}' is outdated")
        if message is not None and message.offset == delivered.last_offset:
            message = await reader.confirm(message.offset + 1)
            if message is None:
                await self._record_ack(reader, delivered)
        if message is None:
            self._note_empty(_owner(reader), key)
            raise nothing_new(reader)
        await self._record(reader, delivered, key, message.offset)
        return message

    async def _find_delivered(self, topic: str, owner: _Owner) -> DeliveredKeys:
        known = self.delivered.get(owner)
        if known is None:
            for ended in await find_ended_hashes(self._link, owner[0], topic):
                self._outdated[owner[0], topic, ended] = True
            entry = await find_entry(self._link, NAMESPACE, self._entry_key(*owner))
            known = DeliveredKeys() if entry is None else DeliveredKeys(_decode_entry(entry.value).keys, entry.version)
            self.delivered[owner] = known
        return known

    async def _record(self, reader: SubscriptionReader, delivered: DeliveredKeys, key: str, offset: int) -> None:
        """Raises RegistryConflict if another gateway was faster."""
        owner, keys = _owner(reader), delivered.followed_by(key, offset)
        await self._write(owner, keys, delivered.version)
        forgotten = {former for former, _ in delivered.keys} - {former for former, _ in keys}
        self._note_outdated(reader.subscriber, reader.topic, {*forgotten, *self._empty_keys.pop(owner, ())} - {key})

    def _note_outdated(self, subscriber: str, topic: str, keys: Iterable[str]) -> None:
        for key in keys:
            if key != NO_KEY:
                self._outdated[subscriber, topic, hash_of(key)] = True

    async def _record_ack(self, reader: SubscriptionReader, delivered: DeliveredKeys) -> None:
        """Raises as `_record` does. The keys keep their offsets."""
        if delivered.last_offset >= 0:
            await self._write(_owner(reader), delivered.followed_by_ack(), delivered.version)

    async def _write(self, owner: _Owner, keys: tuple[tuple[str, int], ...], version: int) -> None:
        # If this fails, its outcome is unknown: what is cached may be wrong.
        self.delivered.pop(owner, None)
        value = msgspec.json.encode(_Entry(keys))
        written = await self._link.call(RegistrySet(NAMESPACE, self._entry_key(*owner), value, version), RegistryReply)
        self.delivered[owner] = DeliveredKeys(keys, written.version)

    def _entry_key(self, subscriber: str, topic_id: int) -> str:
        return self._link.principal(f"{subscriber}/{topic_id}")

    def _note_empty(self, owner: _Owner, key: str) -> None:
        former = self._empty_keys.get(owner, ())
        if key != NO_KEY and key not in former:
            self._empty_keys[owner] = (*former[1 - _KEYS_MAX :], key)

    async def delete(self, subscriber: str, topic: str, topic_id: int, version: int = -1) -> None:
        """Delete the entry of a subscription that has ended. Its keys are outdated."""
        owner = (subscriber, topic_id)
        delivered = await self._find_delivered(topic, owner)
        keys = [key for key, _ in delivered.keys if key != NO_KEY] + list(self._empty_keys.get(owner, ()))
        self._note_outdated(subscriber, topic, keys)
        if keys:
            await record_ended(self._link, subscriber, topic, keys)
        self.delivered.pop(owner, None)
        self._empty_keys.pop(owner, None)
        await self._link.operate(RegistrySet(NAMESPACE, self._entry_key(subscriber, topic_id), None, version))

    async def _delete_known(self, reader: SubscriptionReader) -> None:
        """Delete the entry only in the version that is known: the subscriber may have come back through another
        gateway, and got a message there."""
        with suppress(errors.OnceMQError):
            delivered = await self._find_delivered(reader.topic, _owner(reader))
            if delivered.version:
                await self.delete(reader.subscriber, reader.topic, reader.topic_id, delivered.version)


def nothing_new(reader: SubscriptionReader) -> errors.NothingNew:
    """Return the error of an empty subscription."""
    return errors.NothingNew(f"there is no message for '{reader.subscriber}' on '{reader.topic}'")


def _owner(reader: SubscriptionReader) -> _Owner:
    return reader.subscriber, reader.topic_id
