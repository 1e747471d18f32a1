"""The endpoints that describe the gateway: /openapi.json, /docs and the files of that page. Their content is generated
at the first request.

They are not part of the document that they show.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from oncemq.gateways.http.docs.openapi import document
from oncemq.gateways.http.docs.pages.page import render
from oncemq.gateways.http.framework.endpoint import JSON, Answer, Call, Endpoint, Handler, Reply

_REPLY = (Reply(description="The file."),)
#: The page may load only its own files, and may connect only to its own gateway.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", _POLICY),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
)


def endpoints(described: Sequence[Endpoint]) -> list[Endpoint]:
    """Return the endpoints that serve the description of `described`."""

    @cache
    def described_once() -> dict[str, Any]:
        return document(described)

    return [
        _file("/openapi.json", JSON, lambda: msgspec.json.encode(described_once())),
        _file("/docs", "text/html; charset=utf-8", lambda: render(described_once())),
        _file("/docs/docs.css", "text/css; charset=utf-8", lambda: _packaged("docs.css")),
        _file("/docs/docs.js", "text/javascript; charset=utf-8", lambda: _packaged("docs.js")),
        _file("/docs/icon.svg", "image/svg+xml", lambda: _packaged("icon.svg")),
        _endpoint("/", _redirect),
    ]


def _packaged(name: str) -> bytes:
    return files("oncemq.gateways.http.docs.pages").joinpath(name).read_bytes()


def _file(path: str, media: str, make: Callable[[], bytes]) -> Endpoint:
    @cache
    def made() -> tuple[bytes, bytes]:
        content = make()
        return content, b'"%s"' % hashlib.sha256(content).hexdigest()[:32].encode()

    async def serve(call: Call[None, None]) -> Answer:
        content, tag = made()
        headers = ((b"etag", tag), *_HEADERS)
        if tag in call.headers.get(b"if-none-match", b""):
            return Answer(b"", 304, media, headers)
        return Answer(content, 200, media, headers)

    return _endpoint(path, serve)


def _endpoint(path: str, handler: Handler) -> Endpoint:
    return Endpoint(method="GET", path=path, handler=handler, tag="docs", summary=path, description="", replies=_REPLY)


async def _redirect(_: Call[None, None]) -> Answer:
    return Answer(b"", 307, "text/plain", ((b"location", b"/docs"),))
