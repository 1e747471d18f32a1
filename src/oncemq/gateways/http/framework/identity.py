"""Deduplication of requests: a key, or a session and a number, in the headers of a request.

A key is remembered for seven days, a number without a time limit. A request with neither happens once as long as the
gateway gets the broker's reply. A caller that repeats such a request, because it lost the response, may do it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from oncemq.client.gateway_api import Payloads
from oncemq.gateways.http.framework.endpoint import Call, header
from oncemq.protocol import errors
from oncemq.protocol.commands import Keyed, Numbered, Operation
from oncemq.protocol.limits import KEY_BYTES_MAX, NAME_BYTES_MAX
from oncemq.protocol.replies import Reply

#: The principal of keys without one.
DEFAULT_PRINCIPAL = "http"

_KEY = b"idempotency-key"
_PRINCIPAL = b"oncemq-principal"
_SESSION = b"oncemq-session"
_EPOCH = b"oncemq-epoch"
_NUMBER = b"oncemq-number"
_SEEN_BELOW = b"oncemq-seen-below"

#: All headers of this module.
PROTECTING = (_KEY, _PRINCIPAL, _SESSION, _EPOCH, _NUMBER, _SEEN_BELOW)

_INTEGER_MAX = 2**63 - 1


class Protected(msgspec.Struct, frozen=True, kw_only=True):
    """The headers as parameters, for every endpoint that changes something."""

    idempotency_key: Annotated[
        str,
        header("Idempotency-Key", "The request happens once under this key, for seven days.", length_max=KEY_BYTES_MAX),
    ] = ""
    principal: Annotated[
        str,
        header(
            "OnceMQ-Principal",
            "The owner of the key, within a user. The same key of another principal, or of another user, is another "
            "key.",
            length_max=NAME_BYTES_MAX,
        ),
    ] = DEFAULT_PRINCIPAL
    session_name: Annotated[
        str,
        header("OnceMQ-Session", "Instead of a key: the session that numbers this request.", length_max=NAME_BYTES_MAX),
    ] = ""
    session_epoch: Annotated[
        int, header("OnceMQ-Epoch", "The session's epoch, from POST /v1/sessions.", ge=1, le=_INTEGER_MAX)
    ] = 1
    session_number: Annotated[
        int, header("OnceMQ-Number", "The request's number: the session's last number plus one.", ge=1, le=_INTEGER_MAX)
    ] = 1
    session_seen_below: Annotated[
        int,
        header(
            "OnceMQ-Seen-Below",
            "The client has all responses below this number, so the broker may forget them. Default: this number.",
            ge=1,
            le=_INTEGER_MAX,
        ),
    ] = 1


#: Errors of requests with a key or a number, in addition to an endpoint's own.
REFUSALS: tuple[type[errors.OnceMQError], ...] = (
    errors.KeyReused,
    errors.SessionUnknown,
    errors.Fenced,
    errors.SequenceReused,
    errors.VerdictForgotten,
    errors.NameInvalid,
)


def is_protected(call: Call[Any, Any]) -> bool:
    """Return whether a repetition of this request will be recognised. Then it must have the same content."""
    return _KEY in call.headers or _SESSION in call.headers


def refuse_protection(call: Call[Any, Any]) -> None:
    """Raises Malformed. For requests that are safe to repeat and would not use a number."""
    for name in PROTECTING:
        if name in call.headers:
            raise errors.Malformed(f"{name.decode()} is not accepted with `upto`, which is safe to repeat without it")


async def perform(call: Call[Any, Any], operation: Operation, payload: Payloads = None) -> Reply:
    """Send an operation: once, as far as the request's headers allow it. Raises what the broker refuses it with."""
    # RequestParser has checked that the headers are UTF-8.
    headers = call.headers
    if _KEY not in headers and _SESSION not in headers:
        _refuse_incomplete(headers)
        return await call.link.operate(operation, payload)
    command = _keyed(call, operation) if _SESSION not in headers else _numbered(headers, operation)
    return (await call.link.ask(command, payload))[0]


def _refuse_incomplete(headers: Mapping[bytes, bytes]) -> None:
    for name in (_EPOCH, _NUMBER, _SEEN_BELOW):
        if name in headers:
            raise errors.Malformed(f"{name.decode()} is given without oncemq-session")
    if _PRINCIPAL in headers:
        raise errors.Malformed("oncemq-principal is given without idempotency-key")


def _keyed(call: Call[Any, Any], operation: Operation) -> Keyed:
    headers = call.headers
    for name in (_EPOCH, _NUMBER, _SEEN_BELOW):
        if name in headers:
            raise errors.Malformed(
                f"{name.decode()} is given with idempotency-key; use a key, or a session and a number"
            )
    principal = headers[_PRINCIPAL].decode() if _PRINCIPAL in headers else DEFAULT_PRINCIPAL
    return Keyed(call.link.principal(principal), headers[_KEY].decode(), operation)


def _numbered(headers: Mapping[bytes, bytes], operation: Operation) -> Numbered:
    if _KEY in headers or _PRINCIPAL in headers:
        raise errors.Malformed("use an idempotency-key, or a session and a number, not both")
    missing = [name.decode() for name in (_EPOCH, _NUMBER) if name not in headers]
    if missing:
        raise errors.Malformed(f"oncemq-session is given without {' and '.join(missing)}")
    number = _integer(headers, _NUMBER)
    seen_below = _integer(headers, _SEEN_BELOW) if _SEEN_BELOW in headers else number
    return Numbered(headers[_SESSION].decode(), _integer(headers, _EPOCH), number, seen_below, operation)


def _integer(headers: Mapping[bytes, bytes], name: bytes) -> int:
    value = headers.get(name, b"")
    if not value.isdigit() or len(value) > 19 or not 1 <= int(value) <= _INTEGER_MAX:
        raise errors.Malformed(f"{name.decode()} must be a whole number of at least 1, not '{value.decode('latin-1')}'")
    return int(value)
