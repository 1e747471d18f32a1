"""Parses and validates a request: parameters from path, query, headers and body."""

from __future__ import annotations

import asyncio
import functools
import typing
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from oncemq.gateways.http.framework.byte_budget import Reservation
from oncemq.gateways.http.framework.endpoint import ANY, FORM, JSON, Endpoint
from oncemq.gateways.http.framework.memory import SMALL_BYTES, Disconnected, RequestMemory
from oncemq.gateways.http.framework.validation_errors import explain, listed
from oncemq.protocol import errors

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


#: Time limit for receiving a body. Each part that arrives extends it, as if it had come at this rate.
BODY_S = 30.0
_BODY_BYTES_PER_S = 16 * 1024
#: How long a large body waits until there is space for it.
_SPACE_S = 30.0


class BodyLate(Exception):
    """The client sends its body too slowly."""


class _Fields(msgspec.Struct, frozen=True):
    """Where an endpoint's parameters are sent."""

    #: (field, header)
    headers: list[tuple[str, bytes]]
    #: Query parameters that may be repeated.
    lists: set[str]
    #: All parameters that are not in headers.
    names: set[str]
    #: Text that may be given as an integer.
    integers: set[str]


@functools.cache
def _fields_of(parameters: Any) -> _Fields:
    found = _Fields([], set(), set(), set())
    hints = typing.get_type_hints(parameters, include_extras=True)
    for field in msgspec.structs.fields(parameters):
        hint = hints[field.name]
        name = header_name(hint)
        if name:
            found.headers.append((field.name, name.lower().encode()))
        else:
            found.names.add(field.encode_name)
            if typing.get_origin(_plain(hint)) in (list, tuple):
                found.lists.add(field.encode_name)
            if "integer" in _json_schema(hint).get("type", ()):
                found.integers.add(field.encode_name)
    return found


class RequestParser:
    """Parses the requests of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        fields = _Fields([], set(), set(), set())
        if endpoint.parameters is not None:
            fields = _fields_of(endpoint.parameters)
        self._headers, self._lists, self._names = fields.headers, fields.lists, fields.names
        self._integers = fields.integers
        self._decode = None
        if endpoint.body not in (None, bytes):
            self._decode = msgspec.json.Decoder(endpoint.body).decode

    def parameters(
        self, path: dict[str, str], query: bytes, headers: dict[bytes, bytes], body: bytes, media: str
    ) -> Any:
        """Return the endpoint's `parameters`. Raises Malformed."""
        kind = self._endpoint.parameters
        if kind is None:
            if query:
                raise errors.Malformed(f"{self._endpoint.path} has no parameters")
            return None
        given: dict[str, Any] = {}
        if query:
            self._parse_pairs(query, given)
        if self._endpoint.is_in_body and body:
            self._parse_body(body, media, given)
        for field, name in self._headers:
            value = headers.get(name)
            if value is not None:
                given[field] = _text_of(value)
        given.update(path)
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            raise errors.Malformed(explain(str(error), kind)) from None

    def _parse_pairs(self, query: bytes, given: dict[str, Any]) -> None:
        try:
            pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError:
            raise errors.Malformed("the query is not percent-encoded UTF-8 with at most 100 fields") from None
        for name, value in pairs:
            self._check_name(name)
            if name in self._lists:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise errors.Malformed(f"'{name}' is given more than once")
            else:
                given[name] = value

    def _parse_body(self, body: bytes, media: str, given: dict[str, Any]) -> None:
        if media == FORM:
            self._parse_pairs(body, given)
        elif media in (JSON, ""):
            try:
                members = _decode_object(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise errors.Malformed(f"the body is not a JSON object: {error}") from None
            for name, value in members.items():
                self._check_name(name)
                if name in self._integers and type(value) is int:
                    value = str(value)
                if given.setdefault(name, value) != value:
                    raise errors.Malformed(f"'{name}' has different values in the query and in the body")
        else:
            raise errors.MediaUnsupported(f"'{media}' is not accepted; use {JSON} or {FORM}")

    def _check_name(self, name: str) -> None:
        if name not in self._names:
            known = listed(sorted(self._names)) or "none"
            raise errors.Malformed(f"'{name}' is not a parameter of this endpoint; its parameters: {known}")

    def body(self, body: bytes, media: str) -> Any:
        """Return the endpoint's `body`. Raises Malformed, MediaUnsupported."""
        endpoint = self._endpoint
        if endpoint.body is None:
            if body and not endpoint.is_in_body:
                raise errors.Malformed(f"{endpoint.method} {endpoint.path} takes no body")
            return None
        if media and not self._accepts(media):
            raise errors.MediaUnsupported(f"'{media}' is not accepted; use {listed(endpoint.body_media, 'or')}")
        if self._decode is None:
            return body
        if not body and not endpoint.is_body_required:
            body = b"{}"
        if not body:
            raise errors.Malformed("the body is empty; it must be JSON")
        try:
            return self._decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise errors.Malformed(f"the body: {explain(str(error), endpoint.body)}") from None

    def _accepts(self, media: str) -> bool:
        medias = self._endpoint.body_media
        return not medias or media in medias or ANY in medias


async def read_body(receive: Receive, bytes_max: int, headers: dict[bytes, bytes], memory: RequestMemory) -> bytes:
    """Receive a request's body. Raises TooLarge as early as possible, Disconnected, BodyLate, Overloaded."""
    announced = headers.get(b"content-length")
    if announced is None and b"transfer-encoding" not in headers:
        return await _read_whole(receive, bytes_max)
    announced_bytes = int(announced) if announced is not None and announced.isdigit() else 0
    if announced_bytes > bytes_max:
        raise _too_large(bytes_max)
    return await _BodyReader(receive, bytes_max, memory).read(announced_bytes)


async def _read_whole(receive: Receive, bytes_max: int) -> bytes:
    """Read a body that was not announced: an ASGI server without a network may have one."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        parts.append(message.get("body", b""))
        if sum(map(len, parts)) > bytes_max:
            raise _too_large(bytes_max)
        if not message.get("more_body"):
            return b"".join(parts)


class _BodyReader:
    def __init__(self, receive: Receive, bytes_max: int, memory: RequestMemory) -> None:
        self._receive = receive
        self._bytes_max = bytes_max
        self._memory = memory
        self._reservation: Reservation | None = None

    async def read(self, announced_bytes: int) -> bytes:
        if announced_bytes > SMALL_BYTES:
            await self._reserve(announced_bytes)
        parts: list[bytes] = []
        size = 0
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + BODY_S
        more = True
        while more:
            part, more = await self._part(until_s)
            parts.append(part)
            size += len(part)
            if size > self._bytes_max:
                raise _too_large(self._bytes_max)
            until_s += len(part) / _BODY_BYTES_PER_S
            if more and size > SMALL_BYTES and self._reservation is None:
                waited_from_s = now_s()
                await self._reserve(self._bytes_max)
                until_s += now_s() - waited_from_s
            if self._reservation is not None:
                self._reservation.note_moved(len(part))
        self._memory.keep_body(size)
        return b"".join(parts)

    async def _reserve(self, body_bytes: int) -> None:
        try:
            async with asyncio.timeout(_SPACE_S):
                self._reservation = await self._memory.reserve_body(body_bytes)
        except TimeoutError:
            raise errors.Overloaded("there are too many large requests at the moment") from None

    async def _part(self, until_s: float) -> tuple[bytes, bool]:
        try:
            async with asyncio.timeout_at(until_s):
                message = await self._receive()
        except TimeoutError:
            raise BodyLate from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        return message.get("body", b""), message.get("more_body", False)


def _too_large(bytes_max: int) -> errors.TooLarge:
    return errors.TooLarge(f"the body is too large: the limit is {bytes_max} bytes")


def header_name(hint: Any) -> str:
    """Return the header that a parameter is sent in; empty if it is not sent in a header."""
    return str(_json_schema(hint).get("x-header", ""))


def _json_schema(hint: Any) -> dict[str, Any]:
    """Return what was declared in addition to the type."""
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra_json_schema:
            return meta.extra_json_schema
    return {}


def _plain(hint: Any) -> Any:
    return typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def _text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise errors.Malformed("a header is not UTF-8") from None
