"""Who the senders of packets are: asks the broker, and remembers its answers for a few seconds.

What is remembered decides only whether a packet is genuine. The broker checks each command of a caller again.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from weakref import WeakValueDictionary

import msgspec

from oncemq.gateways.link import Link
from oncemq.gateways.udp.context import UdpContext, clock_ms, log
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors
from oncemq.protocol.commands import MAC, NO_CREDENTIAL

LISTENER = "udp"
_TOKEN_ID = re.compile(r"[a-z0-9]{8}")
#: How long an answer of the broker is used.
KNOWN_MS = 5000
#: Maximum number of access tokens that are remembered. As many unknown ones are remembered on their own.
KNOWN_MAX = 1000
#: Access tokens that are looked up at a time. Further hellos are dropped, and peers repeat them.
LOOKUPS_MAX = 64


class Known(msgspec.Struct, frozen=True):
    """What the broker says of the id of an access token."""

    #: "" = there are no users. None: it is not the id of a token.
    caller: str | None
    key: bytes
    until_ms: float

    def __repr__(self) -> str:
        return f"Known({self.caller!r})"


_NOBODY = Known(None, b"", float("inf"))


class Callers:
    def __init__(self, context: UdpContext) -> None:
        self._context = context
        #: Everybody may do everything, because the broker has no users. Until the broker says whether it has, this is
        #: assumed: nobody gets rights by it, since the broker decides.
        self._open = asyncio.Event()
        self._open.set()
        self._open_until_ms = float("-inf")
        self._is_asking = False
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._unknown: OrderedDict[str, Known] = OrderedDict()
        self._lookups: dict[str, asyncio.Event] = {}
        self._links: WeakValueDictionary[str, Link] = WeakValueDictionary()

    def link(self, caller: str) -> Link:
        """Return the link for a caller. All peers of a caller share what it remembers."""
        link = self._links.get(caller)
        if link is None:
            link = self._links[caller] = self._context.link.for_caller(caller)
        return link

    # Whether there are users.

    @property
    def is_open(self) -> bool:
        """Whether the broker has no users."""
        return self._open.is_set()

    async def wait_until_open(self) -> None:
        await self._open.wait()

    def check_users(self) -> None:
        """A packet without a MAC has arrived: ask in the background whether there are users, if that is not known."""
        if not self._is_asking and clock_ms() > self._open_until_ms:
            self._is_asking = True
            self._context.run_in_background(self.ask_for_users(), "asking whether there are users")

    def doubt(self) -> None:
        """The broker has refused something that it would allow, if what is known were true."""
        if self.is_open:
            self._open_until_ms = float("-inf")

    async def ask_for_users(self) -> None:
        """Raises BrokerAway."""
        self._is_asking = True
        try:
            # Without an address: nobody has tried to log in.
            reply = await self._context.link.login(NO_CREDENTIAL, "", "", LISTENER)
            self._note_users(are_there=bool(reply.caller))
        except (errors.Unauthenticated, errors.Forbidden):
            self._note_users(are_there=True)
        finally:
            self._is_asking = False
            self._open_until_ms = clock_ms() + KNOWN_MS

    def _note_users(self, *, are_there: bool) -> None:
        if self.is_open and are_there:
            log.info("the broker has users: extended packets need a MAC")
            self._open.clear()
        elif not self.is_open and not are_there:
            log.info("the broker has no users: extended packets need no MAC")
            self._open.set()

    # Access tokens.

    def known(self, token_id: str) -> Known | None:
        """Return what is known of an access token; None if the broker has to be asked."""
        if _TOKEN_ID.fullmatch(token_id) is None:
            return _NOBODY
        found = self._known.get(token_id) or self._unknown.get(token_id)
        return found if found is not None and found.until_ms > clock_ms() else None

    @property
    def is_busy(self) -> bool:
        """No further access token can be looked up now."""
        return len(self._lookups) >= LOOKUPS_MAX

    async def find(self, token_id: str, address: Address) -> Known:
        """Ask the broker for an access token. Raises RateLimited, BrokerAway and others."""
        lookup = self._lookups.get(token_id)
        if lookup is None:
            return await self._look_up(token_id, address)
        await lookup.wait()
        known = self.known(token_id)
        if known is None:
            raise errors.BrokerAway("the access token can't be looked up now")
        return known

    async def _look_up(self, token_id: str, address: Address) -> Known:
        lookup = self._lookups[token_id] = asyncio.Event()
        try:
            reply = await self._context.link.login(MAC, token_id, address[0], LISTENER)
            self._note_users(are_there=bool(reply.caller))
            return self._remember(self._known, token_id, reply.caller, reply.key)
        except errors.Unauthenticated:
            self._note_users(are_there=True)
            return self._remember(self._unknown, token_id, None, b"")
        finally:
            del self._lookups[token_id]
            lookup.set()

    def _remember(self, where: OrderedDict[str, Known], token_id: str, caller: str | None, key: bytes) -> Known:
        self._known.pop(token_id, None)
        self._unknown.pop(token_id, None)
        where[token_id] = known = Known(caller, key, clock_ms() + KNOWN_MS)
        if len(where) > KNOWN_MAX:
            where.popitem(last=False)
        return known
