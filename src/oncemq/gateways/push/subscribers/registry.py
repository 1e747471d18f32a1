"""The gateway's entries in the broker's registry, namespace "push":

    NAME/feed/TOPIC               {}: the gateway's own subscription, which must be deleted when nobody listens
    NAME/subscriber/SUBSCRIBER    {"address": …, "topics": […], "new": […]}: a reliable subscriber
    NAME/subscriber-N/SUBSCRIBER  {"topics": […], "new": […]}: further topics of it, since a value has a size limit

What belongs to a user has NAME/of/USER instead of NAME, and {"caller": …}: on behalf of whom the gateway continues
after a restart. The entries themselves belong to the gateway: no user can write them.

A topic stays in its entry. So each entry can be written independently, even if there is a crash between two of them.
The first entry is created first and deleted last.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import msgspec

from oncemq.auth.users import user_of
from oncemq.gateways.link import Link
from oncemq.gateways.registry import iterate_entries
from oncemq.protocol.commands import RegistrySet

NAMESPACE = "push"
#: They fit into one value even if all names have the maximum length.
TOPICS_PER_ENTRY = 50


class Followed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of a topic that is followed."""

    caller: str = ""


class Registered(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of a reliable subscriber."""

    #: Only in the first entry.
    address: str = ""
    topics: tuple[str, ...] = ()
    #: Topics whose subscription may not have been created yet, and starts with new messages. All others start at the
    #: earliest message: if such a subscription is missing, it was deleted with its topic.
    new: tuple[str, ...] = ()
    caller: str = ""


#: A user's name contains no slash.
_SUBSCRIBER_KEY = re.compile(
    r"(?:of/(?P<user>[^/]+)/)?subscriber(?:-(?P<number>[0-9]{1,4}))?/(?P<subscriber>.+)", re.DOTALL
)
_FEED_KEY = re.compile(r"(?:of/(?P<user>[^/]+)/)?feed/(?P<topic>.+)", re.DOTALL)

decode_registered = msgspec.json.Decoder(Registered).decode
_decode_followed = msgspec.json.Decoder(Followed).decode
_encode = msgspec.json.Encoder().encode


def _place(name: str, user: str) -> str:
    return f"{name}/of/{user}" if user else name


def _key_of(name: str, user: str, subscriber: str, number: int) -> str:
    kind = f"subscriber-{number}" if number else "subscriber"
    return f"{_place(name, user)}/{kind}/{subscriber}"


async def subscribers_of(link: Link, name: str) -> AsyncIterator[tuple[str, str, int, bytes]]:
    """Yield user, subscriber, the entry's number, and its value. Raises as the link does."""
    for prefix in (f"{name}/subscriber", f"{name}/of/"):
        async for entry in iterate_entries(link, NAMESPACE, prefix):
            found = _SUBSCRIBER_KEY.fullmatch(entry.key.removeprefix(f"{name}/"))
            if found is not None:
                yield found["user"] or "", found["subscriber"], int(found["number"] or 0), entry.value


async def followed_by(link: Link, name: str) -> AsyncIterator[tuple[str, str]]:
    """Yield caller and topic of what the gateway follows. Raises as the link does."""
    for prefix in (f"{name}/feed/", f"{name}/of/"):
        async for entry in iterate_entries(link, NAMESPACE, prefix):
            found = _FEED_KEY.fullmatch(entry.key.removeprefix(f"{name}/"))
            if found is not None:
                caller = _decode_followed(entry.value).caller
                if user_of(caller) == (found["user"] or ""):
                    yield caller, found["topic"]


async def note_followed(link: Link, name: str, caller: str, topic: str) -> None:
    """Write the entry of a topic that is followed for a caller. Raises as the link does."""
    key = f"{_place(name, user_of(caller))}/feed/{topic}"
    await link.operate(RegistrySet(NAMESPACE, key, _encode(Followed(caller))))


async def forget_followed(link: Link, name: str, user: str, topic: str) -> None:
    """Delete the entry of a topic that was followed. Raises as the link does."""
    await link.operate(RegistrySet(NAMESPACE, f"{_place(name, user)}/feed/{topic}", None))


async def register(
    link: Link,
    name: str,
    user: str,
    subscriber: str,
    entries: dict[int, Registered],
    known: dict[int, Registered | None],
) -> None:
    """Write the entries that are not in the registry yet. `known` are those that are; it is kept up to date. Raises as
    the link does."""
    for number in sorted({*entries, *known}, reverse=not entries):
        entry = entries.get(number)
        if entry is not None and known.get(number) == entry:
            continue
        known[number] = None
        value = None if entry is None else _encode(entry)
        await link.operate(RegistrySet(NAMESPACE, _key_of(name, user, subscriber, number), value))
        if entry is None:
            del known[number]
        else:
            known[number] = entry
