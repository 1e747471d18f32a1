"""Errors as HTTP responses: application/problem+json, from the table of `oncemq.protocol.errors`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework.endpoint import PROBLEM, Answer
from oncemq.protocol import errors

_encode = msgspec.json.Encoder().encode

#: After a transient error, a request may be repeated after this time.
_RETRY_AFTER_S = b"1"
_CHALLENGE = b'Bearer realm="oncemq"'


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error: `code` is stable, `detail` is for people, `advice` says what to do."""

    type: Annotated[str, Meta(description="`urn:oncemq:error:` followed by the code.")]
    title: Annotated[str, Meta(description="What the code means.")]
    status: Annotated[int, Meta(description="The HTTP status.")]
    detail: Annotated[str, Meta(description="What happened in this case, for people.")]
    code: Annotated[str, Meta(description="Stable; the same in every protocol.")]
    advice: Annotated[str, Meta(description="What to do about it.")]


def problem_of(error: errors.OnceMQError, status: int = 0) -> Problem:
    """Return the body of an error response. `status` replaces that of the error's kind."""
    return Problem(
        type=f"urn:oncemq:error:{error.code}",
        title=(error.__doc__ or "").strip().splitlines()[0],
        status=status or status_of(type(error)),
        detail=error.text,
        code=error.code,
        advice=advice_of(error),
    )


def advice_of(error: errors.OnceMQError) -> str:
    """Return what to do about an error, over HTTP."""
    return error.http_advice or error.advice


def status_of(kind: type[errors.OnceMQError]) -> int:
    return kind.http_status


def answer_of(error: errors.OnceMQError, status: int = 0) -> Answer:
    """Return an error response. `status` replaces that of the error's kind."""
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, errors.TRANSIENT):
        headers.append((b"retry-after", _RETRY_AFTER_S))
    if isinstance(error, errors.Unauthenticated):
        headers.append((b"www-authenticate", _CHALLENGE))
    if isinstance(error, errors.MethodUnknown) and error.methods:
        headers.append((b"allow", ", ".join(error.methods).encode()))
    problem = problem_of(error, status)
    return Answer(_encode(problem), problem.status, PROBLEM, tuple(headers))
