"""Entries of the broker's registry, where gateways keep what must survive them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from oncemq.gateways.link import Link
from oncemq.protocol.commands import RegistryList
from oncemq.protocol.replies import RegistryEntry, RegistryListReply


async def find_entry(link: Link, namespace: str, key: str) -> RegistryEntry | None:
    """Return one entry; None if it does not exist."""
    # The list holds the keys that start with this one, and this one sorts first.
    entries = (await link.query(RegistryList(namespace, key, limit=1), RegistryListReply)).entries
    return entries[0] if entries and entries[0].key == key else None


async def iterate_entries(link: Link, namespace: str, prefix: str = "") -> AsyncIterator[RegistryEntry]:
    """Yield all entries whose keys start with a prefix, page by page."""
    after = ""
    while True:
        page = await link.query(RegistryList(namespace, prefix, after), RegistryListReply)
        for entry in page.entries:
            yield entry
        after = page.after
        if not after:
            return
