"""What makes a request happen once, however often it is sent: a key, or a session and a number, in its headers.

A key is remembered for seven days, a number for ever. A request with neither happens once as long as the gateway
gets its answer from the broker; who repeats it, since its own answer was lost, may do it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from oncemq.client.core.core import Payloads
from oncemq.gateways.http.framework.endpoint import Call, header
from oncemq.protocol import errors
from oncemq.protocol.commands import Keyed, Numbered, Operation
from oncemq.protocol.limits import KEY_BYTES_MAX, NAME_BYTES_MAX
from oncemq.protocol.replies import Reply

#: Of keys that nobody claims for himself.
DEFAULT_PRINCIPAL = "http"

_KEY = b"idempotency-key"
_PRINCIPAL = b"oncemq-principal"
_SESSION = b"oncemq-session"
_EPOCH = b"oncemq-epoch"
_NUMBER = b"oncemq-number"
_SEEN_BELOW = b"oncemq-seen-below"

#: All of them.
PROTECTING = (_KEY, _PRINCIPAL, _SESSION, _EPOCH, _NUMBER, _SEEN_BELOW)

_INTEGER_MAX = 2**63 - 1


class Protected(msgspec.Struct, frozen=True, kw_only=True):
    """The headers, as parameters of every endpoint that changes something."""

    idempotency_key: Annotated[
        str,
        header("Idempotency-Key", "The request happens once under this key, for seven days.", length_max=KEY_BYTES_MAX),
    ] = ""
    principal: Annotated[
        str, header("OnceMQ-Principal", "Whose key it is; keys of others are other keys.", length_max=NAME_BYTES_MAX)
    ] = DEFAULT_PRINCIPAL
    session_name: Annotated[
        str,
        header(
            "OnceMQ-Session", "In place of a key: the session that numbers this request.", length_max=NAME_BYTES_MAX
        ),
    ] = ""
    session_epoch: Annotated[
        int, header("OnceMQ-Epoch", "The session's epoch, from POST /v1/sessions.", ge=1, le=_INTEGER_MAX)
    ] = 1
    session_number: Annotated[
        int, header("OnceMQ-Number", "The request's number: one more than the last.", ge=1, le=_INTEGER_MAX)
    ] = 1
    session_seen_below: Annotated[
        int,
        header(
            "OnceMQ-Seen-Below",
            "All answers below this number were seen, and may be forgotten. Left out: all below this request's.",
            ge=1,
            le=_INTEGER_MAX,
        ),
    ] = 1


#: Beside an endpoint's own: what a protected request may be refused with.
REFUSALS: tuple[type[errors.OnceMQError], ...] = (
    errors.KeyReused,
    errors.SessionUnknown,
    errors.Fenced,
    errors.SequenceReused,
    errors.VerdictForgotten,
    errors.NameInvalid,
)


def is_protected(call: Call[Any, Any]) -> bool:
    """A repetition of this request will be recognised, so it has to say the same."""
    return _KEY in call.headers or _SESSION in call.headers


def refuse_protection(call: Call[Any, Any]) -> None:
    """Raises Malformed, for what needs none and would use up no number."""
    for name in PROTECTING:
        if name in call.headers:
            raise errors.Malformed(f"{name.decode()} is given, and an `upto` needs none: it may be repeated as it is")


async def perform(call: Call[Any, Any], operation: Operation, payload: Payloads = None) -> Reply:
    """Do it, once as far as the request's headers allow. Raises what it is refused with."""
    headers = call.headers
    if _KEY not in headers and _SESSION not in headers:
        _refuse_half(headers)
        return await call.link.operate(operation, payload)
    command = _keyed(headers, operation) if _SESSION not in headers else _numbered(headers, operation)
    return (await call.link.ask(command, payload))[0]


def _refuse_half(headers: Mapping[bytes, bytes]) -> None:
    for name in (_EPOCH, _NUMBER, _SEEN_BELOW):
        if name in headers:
            raise errors.Malformed(f"{name.decode()} is given, and oncemq-session is not")
    if _PRINCIPAL in headers:
        raise errors.Malformed("oncemq-principal is given, and idempotency-key is not")


def _keyed(headers: Mapping[bytes, bytes], operation: Operation) -> Keyed:
    for name in (_EPOCH, _NUMBER, _SEEN_BELOW):
        if name in headers:
            raise errors.Malformed(f"a request has an idempotency-key, or a session and a number: {name.decode()}")
    principal = _text(headers, _PRINCIPAL) if _PRINCIPAL in headers else DEFAULT_PRINCIPAL
    return Keyed(principal, _text(headers, _KEY), operation)


def _numbered(headers: Mapping[bytes, bytes], operation: Operation) -> Numbered:
    if _KEY in headers or _PRINCIPAL in headers:
        raise errors.Malformed("a request has an idempotency-key, or a session and a number: not both")
    missing = [name.decode() for name in (_EPOCH, _NUMBER) if name not in headers]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        raise errors.Malformed(f"oncemq-session is given, and {' and '.join(missing)} {verb} missing")
    number = _integer(headers, _NUMBER)
    seen_below = _integer(headers, _SEEN_BELOW) if _SEEN_BELOW in headers else number
    return Numbered(_text(headers, _SESSION), _integer(headers, _EPOCH), number, seen_below, operation)


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    try:
        return headers[name].decode()
    except UnicodeDecodeError:
        raise errors.Malformed(f"{name.decode()} is not UTF-8") from None


def _integer(headers: Mapping[bytes, bytes], name: bytes) -> int:
    value = headers.get(name, b"")
    if not value.isdigit() or len(value) > 19 or not 1 <= int(value) <= _INTEGER_MAX:
        raise errors.Malformed(f"{name.decode()} is a whole number from 1 on, not '{value.decode('latin-1')}'")
    return int(value)
