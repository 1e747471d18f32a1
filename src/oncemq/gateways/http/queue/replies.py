"""Responses of the queue's endpoints: JSON with a `status`, "success" or "failure".

An error has the code, the advice and the HTTP status of `oncemq.protocol.errors`. An empty queue is an error too,
NOTHING_NEW. Its status is 404 here: elsewhere it is 204, but a response with 204 has no body.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework import problems
from oncemq.gateways.http.framework.endpoint import JSON, Answer, ErrorFormat, answer, endpoint
from oncemq.protocol import errors

#: No HTTP cache may answer instead of the queue.
_NO_STORE = ((b"cache-control", b"no-store"),)

#: Where the general advice names requests outside the queue.
_ADVICE: dict[type[errors.OnceMQError], str] = {
    errors.TopicUnknown: "Create it (POST /topics), or register a producer for it (POST /producer/register).",
    errors.NotSubscribed: "Register the consumer for the topic first: POST /consumer/register.",
    errors.LimitReached: "Delete what is no longer needed, or raise the broker's limit.",
}

_encode = msgspec.json.Encoder().encode


class Success(msgspec.Struct, frozen=True, kw_only=True):
    """The part that all successful responses have."""

    status: Annotated[Literal["success"], Meta(description="The request succeeded.")] = "success"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error: `code` is stable, `error` is for people, `advice` says what to do."""

    status: Annotated[Literal["failure"], Meta(description="The request failed.")] = "failure"
    error: Annotated[str, Meta(description="What is wrong, for people.")]
    code: Annotated[str, Meta(description="What is wrong, for programs. Stable.")]
    advice: Annotated[str, Meta(description="What to do about it.")]
    position: (
        Annotated[int, Meta(description="With `CONSUMED`: the offset of the first message that is not confirmed.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET


def succeed(success: Success) -> Answer:
    return answer(success, headers=_NO_STORE)


def failure_of(error: errors.OnceMQError) -> Failure:
    position = error.position if isinstance(error, errors.Consumed) and error.position >= 0 else msgspec.UNSET
    return Failure(error=error.text, code=error.code, advice=_advice_of(error), position=position)


def _advice_of(error: errors.OnceMQError) -> str:
    return _ADVICE.get(type(error)) or problems.advice_of(error)


def status_of(kind: type[errors.OnceMQError]) -> int:
    return 404 if issubclass(kind, errors.NothingNew) else problems.status_of(kind)


def answer_of(error: errors.OnceMQError) -> Answer:
    headers = problems.answer_of(error).headers
    return Answer(_encode(failure_of(error)), status_of(type(error)), JSON, _NO_STORE + headers)


_ERROR_FORMAT = ErrorFormat(body=Failure, failure_of=failure_of, status_of=status_of, answer_of=answer_of)

#: Declares an endpoint of the queue. Its parameters are in the query or in the body.
queue_endpoint = partial(endpoint, tag="queue", is_in_body=True, error_format=_ERROR_FORMAT)
