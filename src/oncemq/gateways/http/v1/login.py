"""Logging in and out with a browser, and who the caller is. Programs send their token with each request instead."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.gateways.http.framework.authentication import Access
from oncemq.gateways.http.framework.browser_sessions import csrf_token_of, session_id_in, set_cookie
from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.protocol import errors
from oncemq.protocol.commands import Topics
from oncemq.protocol.replies import TopicsReply

ENDPOINTS: list[Endpoint] = []
_endpoint = partial(endpoint, ENDPOINTS, tag="access")

_NO_STORE = (b"cache-control", b"no-store")


class LoginBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: `oncemq auth token USER` creates it.
    token: Annotated[str, Meta(min_length=1, max_length=1000)]

    def __repr__(self) -> str:
        return "LoginBody(…)"


class WhoAmI(msgspec.Struct, frozen=True, omit_defaults=True):
    #: Empty: the broker has no users, and everybody may do everything.
    user: str
    #: What the user has logged in with; of a token its public part.
    credential: str | UnsetType = UNSET
    #: Of a browser's session: requests that change something need it in the header `OnceMQ-CSRF`.
    csrf_token: str | UnsetType = UNSET


_USER = WhoAmI("kitchen", "k3v9x2aa", "9b1f…")


@_endpoint(
    "POST",
    "/v1/login",
    summary="Log in with a browser",
    body=LoginBody,
    body_examples={"a token": {"token": "omq_k3v9x2aa_…"}},
    replies=(
        Reply(
            body=WhoAmI,
            description="The user.",
            example=_USER,
            headers={"Set-Cookie": "The session, for 12 hours. Scripts can't read it. Absent if there are no users."},
        ),
    ),
    refusals=(errors.Unauthenticated, errors.RateLimited),
)
async def log_in(call: Call[None, LoginBody]) -> Answer:
    """Starts a session that a cookie identifies, so that a page need not keep the token. With the cookie, every request
    that changes something also needs the header `OnceMQ-CSRF` with `csrf_token`, and so do the GETs that consume: a
    page of another site can't know it. `EventSource` can't send it: use `fetch` for streams.

    The session ends after 12 hours, with POST /v1/logout, with the token, or with the gateway."""
    access: Access = call.access
    caller = await access.authentication.log_in(call.body.token, access.sender)
    if not caller:
        return answer(WhoAmI(""), headers=(_NO_STORE,))
    sessions, is_encrypted = access.authentication.sessions, access.sender.is_encrypted
    sessions.end(session_id_in(call.headers.get(b"cookie", b""), is_encrypted=is_encrypted))
    session_id = sessions.start(caller)
    cookie = set_cookie(session_id, is_encrypted=is_encrypted)
    return answer(_view(caller, session_id), headers=(_NO_STORE, cookie))


@_endpoint(
    "POST",
    "/v1/logout",
    summary="Log out with a browser",
    replies=(
        Reply(
            status=204, description="The session has ended.", headers={"Set-Cookie": "It deletes the session's cookie."}
        ),
    ),
)
async def log_out(call: Call[None, None]) -> Answer:
    """Ends the session of the cookie. Nothing happens to a request with a token."""
    access: Access = call.access
    access.authentication.sessions.end(access.identity.session_id)
    return Answer(status=204, headers=(_NO_STORE, set_cookie("", is_encrypted=access.sender.is_encrypted)))


@_endpoint(
    "GET",
    "/v1/whoami",
    summary="Show the user",
    replies=(Reply(body=WhoAmI, description="The user.", example=_USER),),
)
async def who_am_i(call: Call[None, None]) -> Answer:
    """The user that the request's token or cookie belongs to. A page that was loaded again finds the `csrf_token` of
    its session here."""
    if call.link.caller:
        # The broker knows whether the credentials are still valid.
        await call.link.query(Topics("", 1), TopicsReply)
    access: Access = call.access
    return answer(_view(call.link.caller, access.identity.session_id), headers=(_NO_STORE,))


def _view(caller: str, session_id: str) -> WhoAmI:
    user, _, credential = caller.partition("/")
    csrf_token: Any = csrf_token_of(session_id) if session_id else UNSET
    return WhoAmI(user, credential or UNSET, csrf_token)
