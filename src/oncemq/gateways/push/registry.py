"""What the gateway must remember, in the broker's registry, namespace "push":

    NAME/feed/TOPIC               {}: the gateway's own subscription to it is to be ended when nobody listens
    NAME/subscriber/SUBSCRIBER    {"address": …, "topics": […]}: a reliable subscriber
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from oncemq.engine.commands import RegistryList
from oncemq.engine.replies import RegistryEntry, RegistryListReply
from oncemq.gateways.link import Link, expect


class Registered(msgspec.Struct, frozen=True):
    """A reliable subscriber, as it is remembered."""

    address: str
    topics: tuple[str, ...]


decode_registered = msgspec.json.Decoder(Registered).decode
encode_registered = msgspec.json.Encoder().encode


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
