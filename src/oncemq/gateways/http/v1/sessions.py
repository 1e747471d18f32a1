"""Sessions, for callers that number their requests: start or resume, list, delete."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.http.framework.fields import INTEGER_MAX, PageParameters, SessionName, struct_from
from oncemq.gateways.http.framework.identity import REFUSALS, Protected, perform
from oncemq.protocol import errors
from oncemq.protocol.commands import Hello, RemoveSession, Sessions
from oncemq.protocol.limits import WINDOW_MAX
from oncemq.protocol.replies import HelloReply, SessionInfo, SessionsReply, Verdict

ENDPOINTS: list[Endpoint] = []
_endpoint = partial(endpoint, ENDPOINTS, tag="sessions")


class SessionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session: SessionName
    #: 0: start it, or take it over. Otherwise: resume it under this epoch.
    epoch: Annotated[int, Meta(ge=0, le=INTEGER_MAX)] = 0
    #: A random number, so that a repetition of this request is recognised and does not take over again. 0: the gateway
    #: chooses one.
    nonce: Annotated[int, Meta(ge=0, le=INTEGER_MAX)] = 0
    #: How many requests may be in flight at a time.
    window: Annotated[int, Meta(ge=1, le=WINDOW_MAX)] = 64
    #: It is deleted a day after its last request.
    anonymous: bool = False


class VerdictView(msgspec.Struct, frozen=True):
    """The outcome of a request whose response the client has not confirmed yet."""

    number: int
    #: `stored`, `refused`, `topic` …
    kind: str
    #: The reply's fields, with the names of the protocol.
    reply: dict[str, Any]


class SessionBegun(msgspec.Struct, frozen=True):
    session: str
    epoch: int
    #: The next request has the number after this one.
    last_number: int
    window: int
    verdicts: list[VerdictView]


class SessionView(msgspec.Struct, frozen=True):
    session: str
    epoch: int
    last_number: int
    window: int
    #: How many outcomes the client has not confirmed yet.
    verdicts: int
    #: It is deleted a day after its last request.
    anonymous: bool
    active_ms: int


class SessionsView(msgspec.Struct, frozen=True):
    sessions: list[SessionView]
    #: The `after` of the next page; empty: this is the last page.
    after: str


class SessionParameters(Protected, frozen=True):
    session: SessionName


_BEGUN = SessionBegun("shop-7", 12, 0, 64, [])
_SESSION = SessionView("shop-7", 12, 5, 64, 1, False, 1_790_000_000_000)


@_endpoint(
    "POST",
    "/v1/sessions",
    summary="Start a session",
    body=SessionBody,
    body_examples={"a new one": {"session": "shop-7", "nonce": 4711}},
    replies=(Reply(body=SessionBegun, description="Its epoch and its last number.", example=_BEGUN),),
    refusals=(errors.NameInvalid, errors.Fenced, errors.SessionUnknown, errors.DiskFull),
)
async def begin_session(call: Call[None, SessionBody]) -> Answer:
    """Starts a session, or takes it over from another client, which is fenced. With its epoch, resumes it. The numbers
    continue in any case. Requests of the session have `OnceMQ-Session`, `OnceMQ-Epoch` and `OnceMQ-Number`."""
    body = call.body
    hello = Hello(body.session, body.epoch, body.nonce or secrets.randbits(63), body.window, body.anonymous)
    reply = await call.link.query(hello, HelloReply)
    verdicts = [_verdict(number, verdict) for number, verdict in reply.verdicts]
    return answer(SessionBegun(body.session, reply.epoch, reply.last_number, reply.window, verdicts))


@_endpoint(
    "GET",
    "/v1/sessions",
    summary="List sessions",
    parameters=PageParameters,
    replies=(Reply(body=SessionsView, description="A page of sessions.", example=SessionsView([_SESSION], "")),),
    refusals=(errors.Busy,),
)
async def list_sessions(call: Call[PageParameters, None]) -> Answer:
    """A page of all sessions, in the order of their names."""
    parameters = call.parameters
    reply = await call.link.query(Sessions(parameters.after, parameters.limit), SessionsReply)
    return answer(SessionsView([_view(session) for session in reply.sessions], reply.after))


@_endpoint(
    "DELETE",
    "/v1/sessions/{session}",
    summary="Delete a session",
    parameters=SessionParameters,
    replies=(Reply(status=204, description="It is deleted."),),
    refusals=REFUSALS,
)
async def remove_session(call: Call[SessionParameters, None]) -> Answer:
    """Deletes a session with all the outcomes that it remembers. Its requests are refused from then on
    (SESSION_UNKNOWN)."""
    await perform(call, RemoveSession(call.parameters.session))
    return Answer(status=204)


def _verdict(number: int, verdict: Verdict) -> VerdictView:
    kind = str(verdict.__struct_config__.tag)
    return VerdictView(number, kind, msgspec.structs.asdict(verdict))


def _view(info: SessionInfo) -> SessionView:
    return struct_from(SessionView, info, session=info.name)
