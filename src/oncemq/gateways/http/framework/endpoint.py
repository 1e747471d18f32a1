"""An endpoint is one method of one path. It is declared once, for the router, the OpenAPI document and /docs.

    class TopicParameters(msgspec.Struct):
        topic: Annotated[str, Meta(description="The topic's name.")]                  # in the path: {topic}
        limit: Annotated[int, Meta(ge=1, le=1000, description="…")] = 100             # in the query
        idempotency_key: Annotated[str, header("Idempotency-Key", "…")] = ""          # in a header

    ENDPOINTS: list[Endpoint] = []

    @endpoint(ENDPOINTS, "DELETE", "/v1/topics/{topic}", tag="topics", summary="Delete a topic",
              parameters=TopicParameters, replies=(Reply(status=204, description="The topic is deleted."),),
              refusals=(errors.TopicUnknown,))
    async def delete_topic(call: Call[TopicParameters, None]) -> Answer:
        ...

A module's endpoints are in its `ENDPOINTS`, in the order of their declaration. `gateways/http/endpoints.py` lists all
modules: a new module is added there. Handlers raise errors of `oncemq.protocol.errors`; problems.py turns them into
responses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from oncemq.gateways.http.settings import GatewaySettings
from oncemq.gateways.link import Link
from oncemq.protocol import errors

P = TypeVar("P")
B = TypeVar("B")

JSON = "application/json"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
TEXT = "text/plain"
EVENTS = "text/event-stream"
PROBLEM = "application/problem+json"
FORM = "application/x-www-form-urlencoded"
ANY = "*/*"
#: Other names of the same media type.
SYNONYMS = dict.fromkeys(
    ("application/ndjson", "application/jsonl", "application/x-jsonlines", "application/jsonlines"), NDJSON
)

_encode = msgspec.json.Encoder().encode

#: Errors that any endpoint may answer with, so that an endpoint need not list them.
ALWAYS: tuple[type[errors.OnceMQError], ...] = (
    errors.Malformed,
    errors.OriginRefused,
    errors.TooLarge,
    errors.MediaUnsupported,
    errors.LimitReached,
    errors.NotNow,
    errors.BrokerAway,
)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A response that is sent as a whole."""

    body: bytes = b""
    status: int = 200
    media: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Streamed(msgspec.Struct, frozen=True):
    """A response without an end; it is closed when the client disconnects."""

    parts: AsyncIterator[bytes]
    media: str = EVENTS


def answer(value: object, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    """Return a struct as a JSON response."""
    return Answer(_encode(value), status, JSON, headers)


class Call(Generic[P, B]):
    """One request, parsed and validated."""

    __slots__ = ("access", "body", "headers", "link", "media", "parameters", "settings", "state")

    def __init__(
        self,
        link: Link,
        settings: GatewaySettings,
        parameters: P,
        body: B,
        headers: dict[bytes, bytes],
        state: Any,
        access: Any = None,
    ) -> None:
        #: Sends commands of the caller, who may do less than the gateway.
        self.link = link
        self.settings = settings
        self.parameters = parameters
        #: The endpoint's `body`, decoded; bytes if that is `bytes`; None if the endpoint takes no body.
        self.body = body
        #: Names in lower case.
        self.headers = headers
        #: The media type of the body, without its parameters.
        media = headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode("latin-1")
        self.media = SYNONYMS.get(media, media)
        #: What the endpoints keep between requests of the caller's user (`gateways.http.state.State`); None for a
        #: request of nobody, at a public endpoint.
        self.state = state
        #: Who has sent the request (`framework.authentication.Access`).
        self.access = access


Handler = Callable[[Call[Any, Any]], Coroutine[Any, Any, Answer | Streamed]]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A successful response, for the OpenAPI document."""

    status: int = 200
    #: A struct for JSON; None: there is no body, or it is not JSON.
    body: Any = None
    media: tuple[str, ...] = (JSON,)
    description: str
    #: For a JSON body: a struct or a JSON value; otherwise text.
    example: Any = None
    #: media type → example, if one example does not fit all media types
    examples: dict[str, Any] = {}
    #: name → description
    headers: dict[str, str] = {}


class ErrorFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of an endpoint's error responses, if it is not that of problems.py."""

    #: A struct, for JSON.
    body: Any
    #: An error as such a struct, as a status, and as the whole response.
    failure_of: Callable[[errors.OnceMQError], Any]
    status_of: Callable[[type[errors.OnceMQError]], int]
    answer_of: Callable[[errors.OnceMQError], Answer]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    handler: Handler
    tag: str
    summary: str
    #: Markdown; the handler's docstring.
    description: str
    #: A struct: path, query and header parameters. None: there are none.
    parameters: Any = None
    #: What the body is decoded to: a struct (JSON), `bytes` (as it is), or None.
    body: Any = None
    #: Accepted media types; other bodies are refused with MEDIA_UNSUPPORTED. Empty, or with ANY: all. Default of a
    #: struct: JSON.
    body_media: tuple[str, ...] = ()
    #: name → an example of the body: a JSON value, or text; the name may be its media type
    body_examples: dict[str, Any] = {}
    #: media type → type of its body, for the OpenAPI document, if `body` is bytes and the handler decodes it
    body_kinds: dict[str, Any] = {}
    is_body_required: bool = True
    #: Query parameters may also be given in a JSON or form body.
    is_in_body: bool = False
    #: It waits for messages (`wait_ms` of its parameters or its body). It is cancelled when the caller disconnects.
    waits: bool = False
    replies: tuple[Reply, ...]
    #: In addition to ALWAYS.
    refusals: tuple[type[errors.OnceMQError], ...] = ()
    #: None: the form of problems.py.
    error_format: ErrorFormat | None = None
    #: A GET that changes something: it does not answer HEAD, and a browser must show where it comes from.
    is_changing: bool = False
    #: It answers with a stream.
    is_stream: bool = False
    #: It is answered even if there are too many other requests.
    is_monitoring: bool = False

    @property
    def segments(self) -> list[str]:
        return self.path.strip("/").split("/")

    def example_media(self, name: str, value: object) -> str:
        """Return the media type of an example of the body."""
        if name in self.body_media:
            return name
        medias = self.body_media or (JSON,)
        is_text = isinstance(value, str | bytes) and len(medias) > 1
        return next((media for media in medias if (media != JSON) == is_text), medias[0])


def header(name: str, description: str, *, length_max: int = 0, **constraints: Any) -> Meta:
    """Declare a parameter that is sent in a header. `length_max` is for the OpenAPI document: the broker itself refuses
    values that are empty or too long."""
    schema: dict[str, Any] = {"x-header": name}
    if length_max:
        schema["maxLength"] = length_max
    return Meta(description=description, extra_json_schema=schema, **constraints)


def text_or_integer(description: str, **constraints: Any) -> Meta:
    """Declare a text parameter that a JSON body may also give as an integer: it is the text of its digits."""
    return Meta(description=description, extra_json_schema={"type": ["string", "integer"]}, **constraints)


def endpoint(endpoints: list[Endpoint], method: str, path: str, **declared: Any) -> Callable[[Handler], Handler]:
    """Declare an endpoint: its handler is added to a module's list. The docstring is the description."""

    def declare(handler: Handler) -> Handler:
        description = "\n".join(line.strip() for line in (handler.__doc__ or "").strip().splitlines())
        if declared.get("body") not in (None, bytes):
            declared.setdefault("body_media", (JSON,))
        endpoints.append(Endpoint(method=method, path=path, handler=handler, description=description, **declared))
        return handler

    return declare
