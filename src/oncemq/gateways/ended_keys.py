"""The last keys of subscriptions that were deleted: a late copy of a request under one of them must not take a message
of a new subscription of the same name.

The registry keeps them, so that they outlive the gateway: namespace "given-ended", a fixed number of entries for each
user, each with the subscriptions that ended last. The keys are hashed, so that an entry stays small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from oncemq.gateways.link import Link
from oncemq.gateways.registry import find_entry
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistrySet

NAMESPACE = "given-ended"
_ENTRIES = 64
_SUBSCRIPTIONS_PER_ENTRY = 16
_KEYS_PER_SUBSCRIPTION = 32
#: Attempts to write while other gateways write the same entry.
_ATTEMPTS = 5


class _Ended(msgspec.Struct, array_like=True, frozen=True):
    subscriber: str
    topic: str
    #: The hashes of its keys, the latest at the end.
    hashes: tuple[str, ...]


_decode = msgspec.json.Decoder(tuple[_Ended, ...]).decode


def hash_of(key: str) -> str:
    return _hash(key).hex()


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


async def find_ended_hashes(link: Link, subscriber: str, topic: str) -> tuple[str, ...]:
    """Return the hashes of the keys that belonged to deleted subscriptions of this name."""
    ended, _ = await _read(link, _entry_key(link, subscriber, topic))
    return _hashes_of(ended, subscriber, topic)


async def record_ended(link: Link, subscriber: str, topic: str, keys: Iterable[str]) -> None:
    """Record the keys of a subscription that is deleted. Raises as the link does."""
    entry_key, hashes = _entry_key(link, subscriber, topic), tuple(map(hash_of, keys))
    for attempt in range(_ATTEMPTS):
        ended, version = await _read(link, entry_key)
        merged = dict.fromkeys((*_hashes_of(ended, subscriber, topic), *hashes))
        others = [each for each in ended if (each.subscriber, each.topic) != (subscriber, topic)]
        latest = _Ended(subscriber, topic, tuple(merged)[-_KEYS_PER_SUBSCRIPTION:])
        value = msgspec.json.encode((*others[1 - _SUBSCRIPTIONS_PER_ENTRY :], latest))
        try:
            await link.operate(RegistrySet(NAMESPACE, entry_key, value, version))
        except errors.RegistryConflict:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


async def _read(link: Link, entry_key: str) -> tuple[tuple[_Ended, ...], int]:
    entry = await find_entry(link, NAMESPACE, entry_key)
    return ((), 0) if entry is None else (_decode(entry.value), entry.version)


def _hashes_of(ended: tuple[_Ended, ...], subscriber: str, topic: str) -> tuple[str, ...]:
    return next((each.hashes for each in ended if (each.subscriber, each.topic) == (subscriber, topic)), ())


def _entry_key(link: Link, subscriber: str, topic: str) -> str:
    return link.principal(f"{_hash(f'{subscriber} {topic}')[0] % _ENTRIES:02}")
