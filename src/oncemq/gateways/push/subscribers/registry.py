"""What the gateway must remember, in the broker's registry, namespace "push":

    NAME/feed/TOPIC               {}: the gateway's own subscription to it is to be ended when nobody listens
    NAME/subscriber/SUBSCRIBER    {"address": …, "topics": […], "new": […]}: a reliable subscriber
    NAME/subscriber-N/SUBSCRIBER  {"topics": […], "new": […]}: further topics of it, since a value has its bound

A topic stays in its entry. So each entry can be written on its own, whatever dies between two of them; the first one
is made first and removed last.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import msgspec

from oncemq.gateways.link import Link, expect
from oncemq.protocol.commands import RegistryList, RegistrySet
from oncemq.protocol.replies import RegistryEntry, RegistryListReply

NAMESPACE = "push"
#: Of one entry: they fit into a value even if each has the longest name.
TOPICS_PER_ENTRY = 50


class Registered(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of a reliable subscriber."""

    #: In the first one.
    address: str = ""
    topics: tuple[str, ...] = ()
    #: Those of them whose subscription may not have been made yet, and begins with what is new. All others begin at
    #: the earliest: what is missing of a subscription that was there went with its topic.
    new: tuple[str, ...] = ()


_REST_OF_KEY = re.compile(r"(?:-(?P<number>[0-9]{1,4}))?/(?P<subscriber>.+)")

decode_registered = msgspec.json.Decoder(Registered).decode
_encode = msgspec.json.Encoder().encode


def _key_of(name: str, subscriber: str, number: int) -> str:
    return f"{name}/subscriber-{number}/{subscriber}" if number else f"{name}/subscriber/{subscriber}"


async def subscribers_of(link: Link, name: str) -> AsyncIterator[tuple[str, int, bytes]]:
    """Subscriber, the entry's number, and its value. Raises as the link does."""
    prefix = f"{name}/subscriber"
    async for entry in entries_of(link, NAMESPACE, prefix):
        found = _REST_OF_KEY.fullmatch(entry.key.removeprefix(prefix))
        if found is not None:
            yield found["subscriber"], int(found["number"] or 0), entry.value


async def register(
    link: Link, name: str, subscriber: str, entries: dict[int, Registered], known: dict[int, Registered | None]
) -> None:
    """Write what is not known to be there; `known` is what is, and is kept true. Raises as the link does."""
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


async def entries_of(link: Link, namespace: str, prefix: str) -> AsyncIterator[RegistryEntry]:
    """All of them, page by page. Raises as the link does."""
    after = ""
    while True:
        reply = expect((await link.ask(RegistryList(namespace, prefix, after)))[0], RegistryListReply)
        for entry in reply.entries:
            yield entry
        if not reply.after:
            return
        after = reply.after
