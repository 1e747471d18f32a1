"""Whom a token belongs to, as the broker has answered, remembered for a short time: so that a request costs no
additional round trip.

A token that was removed is of no use meanwhile, since the broker checks the caller of each command. Tokens are
remembered as hashes.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import NoReturn

from oncemq.gateways.bounded_dict import BoundedDict
from oncemq.gateways.link import Link
from oncemq.gateways.tasks import start_awaited
from oncemq.protocol import errors
from oncemq.protocol.commands import NO_CREDENTIAL, TOKEN, Health
from oncemq.protocol.replies import HealthReply

#: How long an answer is remembered.
KNOWN_S = 30.0
#: The same for a refusal: a token that was just created soon works.
REFUSED_S = 1.0
_LISTENER = "http"
#: Logins that the broker is asked about at a time.
_IN_PROGRESS_MAX = 256
_NOT_ACCEPTED = "the broker does not accept this gateway, which needs the token of a user with `role gateway`"

#: The hash of a token; empty for a request without one.
_Key = bytes


class Logins:
    """Belongs to one event loop."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._now_s = asyncio.get_running_loop().time
        #: Caller, and until when it is remembered. Refusals have a table of their own, so that wrong tokens, of which
        #: anybody can send many, do not displace valid ones.
        self._known: BoundedDict[_Key, tuple[str, float]] = BoundedDict()
        self._refused: BoundedDict[_Key, float] = BoundedDict()
        self._in_progress: dict[tuple[_Key, str], asyncio.Task[str]] = {}
        #: The broker has accepted the gateway's own credentials: until then it is not asked again.
        self._accepted_until_s = 0.0

    async def find_caller(self, token: str, address: str) -> str:
        """Return the caller of a token, or (empty) of a request without one; "" = there are no users. Raises
        Unauthenticated, RateLimited, BrokerAway."""
        key = _key_of(token)
        known = self._known.get(key)
        if known is not None and self._now_s() < known[1]:
            return known[0]
        if self._now_s() < self._refused.get(key, 0.0):
            raise _unauthenticated(key)
        try:
            return await self._find_anew(key, token, address)
        except errors.RateLimited:
            # Somebody guesses this token at the same address, such as that of a proxy: no reason to refuse it.
            known = self._known.get(key)
            if known is None:
                raise
        self._known[key] = known[0], self._now_s() + KNOWN_S
        return known[0]

    async def _find_anew(self, key: _Key, token: str, address: str) -> str:
        task = self._in_progress.get((key, address))
        if task is None:
            if len(self._in_progress) >= _IN_PROGRESS_MAX:
                raise errors.Overloaded("there are too many logins at the moment")
            task = self._in_progress[key, address] = start_awaited(self._log_in(key, token, address))
            task.add_done_callback(lambda _: self._in_progress.pop((key, address), None))
        # A request that is cancelled must not cancel the login for the others.
        return await asyncio.shield(task)

    async def _log_in(self, key: _Key, token: str, address: str) -> str:
        try:
            reply = await self._link.login(TOKEN if token else NO_CREDENTIAL, token, address, _LISTENER)
        except errors.Unauthenticated:
            await self._check_gateway()
            return self._refuse(key)
        except errors.Forbidden as error:
            raise errors.BrokerAway(f"{_NOT_ACCEPTED}: {error.text}") from None
        except errors.RateLimited:
            if not token:
                # Nothing was tried: there are users, and this is nobody.
                return self._refuse(key)
            raise
        self._refused.pop(key, None)
        self._known[key] = reply.caller, self._now_s() + KNOWN_S
        return reply.caller

    async def _check_gateway(self) -> None:
        """Find out whether the broker has refused the gateway itself. Raises BrokerAway."""
        if self._now_s() < self._accepted_until_s:
            return
        try:
            await self._link.query(Health(), HealthReply)
        except errors.Unauthenticated as error:
            raise errors.BrokerAway(f"{_NOT_ACCEPTED}: {error.text}") from None
        self._accepted_until_s = self._now_s() + KNOWN_S

    def _refuse(self, key: _Key) -> NoReturn:
        self._known.pop(key, None)
        self._refused[key] = self._now_s() + REFUSED_S
        raise _unauthenticated(key)

    def forget(self, token: str) -> None:
        """The broker has refused the caller of a token, so it must be asked again."""
        self._known.pop(_key_of(token), None)


def _key_of(token: str) -> _Key:
    return hashlib.sha256(token.encode()).digest() if token else b""


def _unauthenticated(key: _Key) -> errors.Unauthenticated:
    return errors.Unauthenticated("the token is not valid" if key else "the request has no valid credentials")
