"""The gateway's entries in the broker's registry, namespace "push":

    NAME/feed/TOPIC               {}: the gateway's own subscription, which must be deleted when nobody listens
    NAME/subscriber/SUBSCRIBER    {"address": …, "topics": […], "new": […]}: a reliable subscriber
    NAME/subscriber-N/SUBSCRIBER  {"topics": […], "new": […]}: further topics of it, since a value has a size limit

A topic stays in its entry. So each entry can be written independently, even if there is a crash between two of them.
The first entry is created first and deleted last.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import msgspec

from oncemq.gateways.link import Link
from oncemq.gateways.registry import iterate_entries
from oncemq.protocol.commands import RegistrySet

NAMESPACE = "push"
#: They fit into one value even if all names have the maximum length.
TOPICS_PER_ENTRY = 50


class Registered(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of a reliable subscriber."""

    #: Only in the first entry.
    address: str = ""
    topics: tuple[str, ...] = ()
    #: Topics whose subscription may not have been created yet, and starts with new messages. All others start at the
    #: earliest message: if such a subscription is missing, it was deleted with its topic.
    new: tuple[str, ...] = ()


_REST_OF_KEY = re.compile(r"(?:-(?P<number>[0-9]{1,4}))?/(?P<subscriber>.+)")

decode_registered = msgspec.json.Decoder(Registered).decode
_encode = msgspec.json.Encoder().encode


def _key_of(name: str, subscriber: str, number: int) -> str:
    return f"{name}/subscriber-{number}/{subscriber}" if number else f"{name}/subscriber/{subscriber}"


async def subscribers_of(link: Link, name: str) -> AsyncIterator[tuple[str, int, bytes]]:
    """Yield subscriber, the entry's number, and its value. Raises as the link does."""
    prefix = f"{name}/subscriber"
    async for entry in iterate_entries(link, NAMESPACE, prefix):
        found = _REST_OF_KEY.fullmatch(entry.key.removeprefix(prefix))
        if found is not None:
            yield found["subscriber"], int(found["number"] or 0), entry.value


async def register(
    link: Link, name: str, subscriber: str, entries: dict[int, Registered], known: dict[int, Registered | None]
) -> None:
    """Write the entries that are not in the registry yet. `known` are those that are; it is kept up to date. Raises as
    the link does."""
    for number in sorted({*entries, *known}, reverse=not entries):
        entry = entries.get(number)
        if entry is not None and known.get(number) == entry:
            continue
        known[number] = None
        value = None if entry is None else _encode(entry)
        await link.operate(RegistrySet(NAMESPACE, _key_of(name, subscriber, number), value))
        if entry is None:
            del known[number]
        else:
            known[number] = entry
