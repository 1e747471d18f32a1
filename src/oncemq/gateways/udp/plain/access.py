"""Whether plain packets are served, and as which user. A plain packet can't prove who has sent it."""

from __future__ import annotations

from oncemq.gateways.link import Link
from oncemq.gateways.udp.callers import KNOWN_MS, LISTENER, Callers
from oncemq.gateways.udp.context import UdpContext, clock_ms, log
from oncemq.protocol import errors
from oncemq.protocol.commands import NAMED

_OFF = "plain packets are off here; `udp.plain = true` allows them"
_NO_USER = "plain packets have no credentials; use extended packets with a MAC, or set `udp.plain_user`"


class PlainAccess:
    def __init__(self, context: UdpContext, callers: Callers) -> None:
        self._context = context
        self._callers = callers
        self._link: Link | None = None
        #: The user of the setting can't log in. It is tried again after a while.
        self._unknown_until_ms = float("-inf")
        self._logged = ""

    def refusal(self) -> errors.Refused | None:
        """Return why a packet is refused; None: it is served."""
        refusal = self._refusal()
        if refusal is not None and refusal.text != self._logged:
            self._logged = refusal.text
            log.warning("plain packets are refused: %s", refusal.text)
        return refusal

    def _refusal(self) -> errors.Refused | None:
        if not self._context.settings.serves_plain:
            return errors.Forbidden(_OFF)
        self._callers.check_users()
        if self._callers.is_open:
            return None
        user = self._context.settings.plain_user
        if not user:
            return errors.Unauthenticated(_NO_USER)
        if clock_ms() < self._unknown_until_ms:
            return errors.Unauthenticated(f"the broker has no user '{user}', which `udp.plain_user` names")
        return None

    async def link(self) -> Link:
        """Return the link for what plain packets ask for. Raises Forbidden, Unauthenticated, BrokerAway and others."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        if self._callers.is_open:
            return self._context.link
        if self._link is None:
            self._link = await self._log_in()
        return self._link

    async def _log_in(self) -> Link:
        try:
            reply = await self._context.link.login(NAMED, self._context.settings.plain_user, "", LISTENER)
        except errors.Unauthenticated:
            self._unknown_until_ms = clock_ms() + KNOWN_MS
            raise
        return self._callers.link(reply.caller)

    async def is_outdated(self, link: Link | None) -> bool:
        """Return whether a link may not be used any more, because there are users now. For the gateway itself, their
        topics do not exist."""
        if link is not self._context.link:
            return False
        try:
            await self._callers.ask_for_users()
        except errors.OnceMQError:
            return True
        return not self._callers.is_open

    def note(self, error: errors.OnceMQError) -> None:
        """The broker has refused something. Its users may have changed."""
        if isinstance(error, errors.Unauthenticated | errors.Forbidden):
            self._link = None
            self._callers.doubt()
