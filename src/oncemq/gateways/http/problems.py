"""Refusals as HTTP knows them: application/problem+json, out of the one table of errors.py."""

from __future__ import annotations

import msgspec

from oncemq import errors
from oncemq.gateways.http.endpoint import PROBLEM, Answer

_encode = msgspec.json.Encoder().encode

#: "Not now" is worth another try after so many seconds.
_RETRY_AFTER_S = b"1"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: `code` is stable, `detail` is for people, `advice` says what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    advice: str


def problem_of(error: errors.OnceMQError) -> Problem:
    return Problem(
        type=f"urn:oncemq:error:{error.code}",
        title=(error.__doc__ or "").strip().splitlines()[0],
        status=status_of(type(error)),
        detail=error.text,
        code=error.code,
        advice=error.advice,
    )


def status_of(kind: type[errors.OnceMQError]) -> int:
    return kind.http_status


def answer_of(error: errors.OnceMQError) -> Answer:
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, errors.NotNow | errors.BrokerAway):
        headers.append((b"retry-after", _RETRY_AFTER_S))
    if isinstance(error, errors.MethodUnknown) and error.methods:
        headers.append((b"allow", ", ".join(error.methods).encode()))
    return Answer(_encode(problem_of(error)), status_of(type(error)), PROBLEM, tuple(headers))
