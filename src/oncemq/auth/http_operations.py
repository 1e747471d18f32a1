"""The table of what each endpoint of the HTTP gateway needs. The gateway asks for a user where the table says so, and
refuses to start with an endpoint that has no row; the OpenAPI document, /docs and the tests are generated from it. The
broker itself checks what a user may do: operations.py is its table of commands.
"""

from __future__ import annotations

from functools import cache

from oncemq.auth.operations import ANYONE, OWN
from oncemq.auth.rules import CONFIGURE, CONSUME, CREATE, DELETE, DESCRIBE, READ, WRITE

#: Nobody needs to log in for it.
PUBLIC = "public"

#: (verb, what it is needed for). In place of a verb: PUBLIC, ANYONE, or OWN for what belongs to its user.
HttpNeed = tuple[str, str]

_TOPIC = "the topic"
_SUBSCRIPTION = (OWN, "the subscription")
_LIST = ((ANYONE, "the list has what the user may see"),)
_DESCRIBES = ((DESCRIBE, _TOPIC),)
_CONSUMES = ((CONSUME, _TOPIC), _SUBSCRIPTION)
_PAGE = ((PUBLIC, "it contains no data of the broker"),)

_V1_TOPIC = "/v1/topics/{topic}"
_V1_SUBSCRIPTION = "/v1/topics/{topic}/subscriptions/{subscriber}"

#: (method, path of the endpoint) → all that it needs. An endpoint that is PUBLIC and has other needs answers everybody,
#: and tells more to those who have what it needs.
HTTP_NEEDS: dict[tuple[str, str], tuple[HttpNeed, ...]] = {
    # Topics.
    ("GET", "/v1/topics"): _LIST,
    ("GET", _V1_TOPIC): _DESCRIBES,
    ("PUT", _V1_TOPIC): (
        (CREATE, "a topic that does not exist"),
        (DESCRIBE, "a topic that exists"),
        (CONFIGURE, "a topic that exists, with `alter`"),
    ),
    ("DELETE", _V1_TOPIC): ((DELETE, _TOPIC),),
    ("GET", _V1_TOPIC + "/schemas"): _DESCRIBES,
    ("PUT", _V1_TOPIC + "/schemas"): ((CONFIGURE, _TOPIC),),
    ("POST", _V1_TOPIC + "/schemas/check"): _DESCRIBES,
    # Messages.
    ("POST", _V1_TOPIC + "/messages"): ((WRITE, _TOPIC), (CREATE, "a topic that does not exist, with `create`")),
    ("GET", _V1_TOPIC + "/messages"): ((READ, _TOPIC),),
    # Subscriptions.
    ("GET", _V1_TOPIC + "/subscriptions"): _DESCRIBES,
    ("PUT", _V1_SUBSCRIPTION): (
        (CONSUME, _TOPIC),
        (CREATE, "a topic that does not exist"),
        (WRITE, "the dead-letter topic"),
        _SUBSCRIPTION,
    ),
    ("GET", _V1_SUBSCRIPTION): _DESCRIBES,
    ("DELETE", _V1_SUBSCRIPTION): (_SUBSCRIPTION,),
    ("POST", _V1_SUBSCRIPTION + "/seek"): _CONSUMES,
    ("POST", _V1_SUBSCRIPTION + "/open"): _CONSUMES,
    ("GET", _V1_SUBSCRIPTION + "/messages"): _CONSUMES,
    ("GET", _V1_SUBSCRIPTION + "/events"): _CONSUMES,
    ("POST", _V1_SUBSCRIPTION + "/take"): _CONSUMES,
    ("POST", _V1_SUBSCRIPTION + "/ack"): _CONSUMES,
    ("POST", _V1_SUBSCRIPTION + "/nack"): _CONSUMES,
    ("POST", _V1_SUBSCRIPTION + "/extend"): _CONSUMES,
    # Transactions and sessions.
    ("POST", "/v1/transactions"): (
        (CONSUME, "the topic of each ack and each settlement"),
        (OWN, "the subscription of each ack and each settlement"),
        (WRITE, "the topic of each put"),
        (CREATE, "a topic that does not exist, of a put with `create`"),
    ),
    ("POST", "/v1/sessions"): ((OWN, "the session"),),
    ("GET", "/v1/sessions"): _LIST,
    ("DELETE", "/v1/sessions/{session}"): ((OWN, "the session"),),
    # Access.
    ("POST", "/v1/login"): ((PUBLIC, "the token is checked"),),
    ("POST", "/v1/logout"): ((ANYONE, "the browser's own session"),),
    ("GET", "/v1/whoami"): ((ANYONE, "the caller itself"),),
    # Monitoring.
    ("GET", "/v1/health"): ((PUBLIC, "whether the broker replies"), (ANYONE, "the details")),
    ("GET", "/metrics"): _LIST,
    # The queue.
    ("GET", "/topics"): _LIST,
    ("POST", "/topics"): ((CREATE, _TOPIC),),
    ("POST", "/producer/register"): ((CREATE, "a topic that does not exist"), (OWN, "the producer's id")),
    ("POST", "/producer/produce"): ((WRITE, _TOPIC), (OWN, "the producer's id")),
    ("POST", "/consumer/register"): ((CONSUME, _TOPIC), (OWN, "the consumer's id")),
    ("GET", "/size"): ((DESCRIBE, _TOPIC), (OWN, "the consumer's id")),
    ("GET", "/consumer/consume"): ((CONSUME, _TOPIC), (OWN, "the consumer's id")),
    # Documentation.
    ("GET", "/openapi.json"): _PAGE,
    ("GET", "/docs"): _PAGE,
    ("GET", "/docs/docs.css"): _PAGE,
    ("GET", "/docs/docs.js"): _PAGE,
    ("GET", "/docs/icon.svg"): _PAGE,
    ("GET", "/"): _PAGE,
}


@cache
def is_public(method: str, path: str) -> bool:
    """Return whether an endpoint answers everybody."""
    return any(verb == PUBLIC for verb, _ in HTTP_NEEDS[method, path])


@cache
def depends_on_user(method: str, path: str) -> bool:
    """Return whether it matters to an endpoint who has sent a request."""
    return any(verb != PUBLIC for verb, _ in HTTP_NEEDS[method, path])


def describe_needs(method: str, path: str) -> str:
    """Return what an endpoint needs, for people, in Markdown.

    >>> describe_needs("GET", "/size")
    "`describe` (the topic), owner (the consumer's id)"
    """
    return ", ".join(f"{_NAMES.get(verb, f'`{verb}`')} ({what})" for verb, what in HTTP_NEEDS[method, path])


_NAMES = {PUBLIC: "everybody", ANYONE: "any user", OWN: "owner"}
