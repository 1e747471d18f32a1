"""How the queue's endpoints answer: JSON with a `status`, "success" or "failure".

A refusal has the code, the advice and the HTTP status of the one table (errors.py). An empty queue is a refusal too,
NOTHING_NEW: 204, its status elsewhere, has no body that could say so, so that it is 404 here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework import problems
from oncemq.gateways.http.framework.endpoint import JSON, Answer, Refusing, answer
from oncemq.protocol import errors

#: No cache on the way may answer in the queue's place.
_NO_STORE = ((b"cache-control", b"no-store"),)

_encode = msgspec.json.Encoder().encode


class Success(msgspec.Struct, frozen=True, kw_only=True):
    """What every success has."""

    status: Annotated[Literal["success"], Meta(description="It was done.")] = "success"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why not: `code` is stable, `error` is for people, `advice` says what to do."""

    status: Annotated[Literal["failure"], Meta(description="It was not done.")] = "failure"
    error: Annotated[str, Meta(description="What is wrong, for people.")]
    code: Annotated[str, Meta(description="What is wrong, for programs: it never changes.")]
    advice: Annotated[str, Meta(description="What to do about it.")]
    position: (
        Annotated[int, Meta(description="With `CONSUMED`: of the first message that is not confirmed.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET


def succeed(success: Success) -> Answer:
    return answer(success, headers=_NO_STORE)


def failure_of(error: errors.OnceMQError) -> Failure:
    position = error.position if isinstance(error, errors.Consumed) and error.position >= 0 else msgspec.UNSET
    return Failure(error=error.text, code=error.code, advice=problems.advice_of(error), position=position)


def status_of(kind: type[errors.OnceMQError]) -> int:
    return 404 if issubclass(kind, errors.NothingNew) else problems.status_of(kind)


def answer_of(error: errors.OnceMQError) -> Answer:
    headers = problems.answer_of(error).headers
    return Answer(_encode(failure_of(error)), status_of(type(error)), JSON, _NO_STORE + headers)


#: Of all endpoints of the queue.
REFUSING = Refusing(body=Failure, failure_of=failure_of, status_of=status_of, answer_of=answer_of)
