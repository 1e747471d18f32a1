"""The OpenAPI 3.1 document, generated from the declarations of the endpoints and the table of errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from oncemq.auth.http_operations import depends_on_user, describe_needs, is_public
from oncemq.gateways.http.docs.schemas import REF, Schemas, is_typed
from oncemq.gateways.http.framework import problems
from oncemq.gateways.http.framework.authentication import CSRF_HEADER
from oncemq.gateways.http.framework.browser_sessions import SECURE_COOKIE
from oncemq.gateways.http.framework.endpoint import ALWAYS, FORM, JSON, PROBLEM, Endpoint, Reply
from oncemq.gateways.http.framework.problems import Problem, problem_of
from oncemq.protocol import errors
from oncemq.protocol.version import __version__

#: In the order of the page.
TAGS = {
    "topics": "A topic is a named, ordered log of messages. Offsets number them from 0, without gaps.",
    "schemas": "A topic can have a schema with versions: then every message must match one of them.",
    "messages": "Put messages on a topic, and read them by offset, without a subscription.",
    "subscriptions": "A subscription has a durable position in its topic. Every message that is put while it exists is "
    "stored for it.",
    "consuming": "Get a subscription's messages in order, and ack them. A get does not move the subscription, so it is "
    "safe to repeat; an ack does.",
    "sharing": "A shared subscription delivers each message to one of several consumers, for the duration of a lease.",
    "transactions": "Ack messages and put the results in one step: all of it happens, or nothing.",
    "sessions": "A session numbers requests. A numbered request happens once, even if it is repeated much later.",
    "access": "Programs send `Authorization: Bearer TOKEN` with each request. A page in a browser logs in once, and "
    "gets a session with a cookie.",
    "queue": "A simple queue of producers and consumers with ids: each consumer of a topic gets every message once, in "
    "order. Responses have a `status`, `success` or `failure`.",
    "health": "The health and the metrics of the broker.",
}

#: Examples of parameters whose declarations have none, by name.
_EXAMPLES = {"topic": "orders", "subscriber": "billing", "offset": 0}

#: Errors of endpoints that need a user.
_OF_USERS = (errors.Unauthenticated, errors.Forbidden, errors.QuotaReached, errors.RateLimited)
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A token of a user."},
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": SECURE_COOKIE,
        "description": "The session of a browser, from POST /v1/login. Without TLS, the cookie is named `oncemq`.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": CSRF_HEADER,
        "description": "The `csrf_token` of POST /v1/login, with the cookie.",
    },
}

Json = dict[str, Any]


def overview() -> str:
    """Return the introduction for all endpoints, in Markdown."""
    return files("oncemq.gateways.http.docs.pages").joinpath("overview.md").read_text(encoding="utf-8")


def document(endpoints: Sequence[Endpoint]) -> Json:
    """Return the OpenAPI document of these endpoints."""
    schemas = Schemas(endpoints, Problem)
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    kinds = {kind for endpoint in endpoints for kind in refusals_of(endpoint)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "OnceMQ",
            "summary": "Durable topics over HTTP; every command that changes something happens once.",
            "description": overview(),
            "version": __version__,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This gateway"}],
        "tags": _tags(endpoints),
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "examples": {kind.code: _problem_example(kind) for kind in sorted(kinds, key=lambda kind: kind.code)},
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


def refusals_of(endpoint: Endpoint) -> list[type[errors.OnceMQError]]:
    """Return all errors of an endpoint: those that it declares, those of any request, and their subclasses with the
    same status."""
    of_users = _OF_USERS if depends_on_user(endpoint.method, endpoint.path) else ()
    kinds: tuple[type[errors.OnceMQError], ...] = (*endpoint.refusals, *ALWAYS, *of_users, errors.BrokerBug)
    found: dict[type[errors.OnceMQError], None] = {}
    for kind in kinds:
        specials = (special for special in kind.__subclasses__() if special.http_status == kind.http_status)
        found |= dict.fromkeys([kind, *specials])
    return list(found)


def _tags(endpoints: Iterable[Endpoint]) -> list[Json]:
    used = dict.fromkeys(endpoint.tag for endpoint in endpoints)
    names = [name for name in TAGS if name in used] + [name for name in used if name not in TAGS]
    return [{"name": name, "description": TAGS.get(name, "")} for name in names]


def _operation(endpoint: Endpoint, schemas: Schemas) -> Json:
    operation: Json = {
        "operationId": endpoint.handler.__name__,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "description": f"{endpoint.description}\n\nRights: {describe_needs(endpoint.method, endpoint.path)}.",
        "security": _security(endpoint),
    }
    operation["parameters"] = _parameters(endpoint, schemas.of_parameters(endpoint))
    if _has_parameters_in_body(endpoint):
        operation["description"] += "\n\nThe fields of the body may be given as query parameters instead."
        operation["requestBody"] = _parameters_body(endpoint, schemas.of_parameters(endpoint))
    elif endpoint.body is not None:
        operation["requestBody"] = _body(endpoint, schemas)
    operation["responses"] = {
        **{str(reply.status): _reply(reply, schemas) for reply in endpoint.replies},
        **_refusals(endpoint, schemas),
    }
    return {name: value for name, value in operation.items() if value not in ([], "") or name == "security"}


def _security(endpoint: Endpoint) -> list[Json]:
    """A broker without users needs none of it, which OpenAPI can't say."""
    if not depends_on_user(endpoint.method, endpoint.path):
        return []
    cookie: Json = {"cookie": []}
    if endpoint.method != "GET" or endpoint.is_changing:
        cookie["csrf"] = []
    optional: list[Json] = [{}] if is_public(endpoint.method, endpoint.path) else []
    return [{"bearer": []}, cookie, *optional]


# Requests.


def _parameters(endpoint: Endpoint, struct: Json) -> list[Json]:
    required = struct.get("required", ())
    found = []
    for name, schema in struct["properties"].items():
        location, public_name = _location(endpoint, name, schema)
        if location != "body":
            found.append(_parameter(location, public_name, schema, location == "path" or name in required))
    return found


def _location(endpoint: Endpoint, name: str, schema: Json) -> tuple[str, str]:
    """Return where a parameter is sent, and under which name."""
    if "{" + name + "}" in endpoint.segments:
        return "path", name
    if "x-header" in schema:
        return "header", str(schema["x-header"])
    return "body" if _has_parameters_in_body(endpoint) else "query", name


def _parameter(location: str, name: str, schema: Json, is_required: bool) -> Json:
    parameter: Json = {"name": name, "in": location}
    if "description" in schema:
        parameter["description"] = schema["description"]
    if is_required:
        parameter["required"] = True
    parameter["schema"] = {key: value for key, value in schema.items() if key not in ("description", "x-header")}
    if location == "header":
        _drop_default(parameter["schema"])
    if name in _EXAMPLES and is_required and "examples" not in schema:
        parameter["example"] = _EXAMPLES[name]
    return parameter


def _drop_default(schema: Json) -> None:
    """The default of a header is only internal: a missing header is not the same as one with the default value. A
    header that is present is not empty."""
    schema.pop("default", None)
    if schema.get("type") == "string":
        schema.setdefault("minLength", 1)


def _has_parameters_in_body(endpoint: Endpoint) -> bool:
    # Most clients can't send a body with GET, so that the document shows the query instead.
    return endpoint.is_in_body and endpoint.method != "GET"


def _parameters_body(endpoint: Endpoint, struct: Json) -> Json:
    inside = {
        name: schema for name, schema in struct["properties"].items() if _location(endpoint, name, schema)[0] == "body"
    }
    required = [name for name in struct.get("required", ()) if name in inside]
    schema: Json = {"type": "object", "properties": inside, "additionalProperties": False}
    if required:
        schema["required"] = required
    content: Json = {"schema": schema}
    if endpoint.body_examples:
        content["examples"] = {name: {"value": value} for name, value in endpoint.body_examples.items()}
    return {"required": bool(required), "content": {JSON: content, FORM: content}}


def _body(endpoint: Endpoint, schemas: Schemas) -> Json:
    content: dict[str, Json] = {}
    for media in endpoint.body_media or (JSON if is_typed(endpoint.body) else "*/*",):
        entry: Json = {"schema": schemas.of(endpoint.body_kinds.get(media, endpoint.body))}
        examples = {
            name: {"value": value}
            for name, value in endpoint.body_examples.items()
            if endpoint.example_media(name, value) == media
        }
        if examples:
            entry["examples"] = examples
        content[media] = entry
    return {"required": endpoint.is_body_required, "content": content}


# Responses.


def _reply(reply: Reply, schemas: Schemas) -> Json:
    response: Json = {"description": reply.description}
    if reply.headers:
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in reply.headers.items()
        }
    if reply.status not in (204, 304):
        response["content"] = {media: _reply_content(reply, media, schemas) for media in reply.media}
    return response


def _reply_content(reply: Reply, media: str, schemas: Schemas) -> Json:
    content: Json = {"schema": schemas.of(reply.body) if media == JSON else {}}
    example = reply.examples.get(media, reply.example)
    if example is not None and (media in reply.examples or (media == JSON) == (not isinstance(example, str | bytes))):
        content["example"] = msgspec.to_builtins(example) if media == JSON else example
    return content


def _refusals(endpoint: Endpoint, schemas: Schemas) -> dict[str, Json]:
    status_of = endpoint.error_format.status_of if endpoint.error_format is not None else problems.status_of
    by_status: dict[int, list[type[errors.OnceMQError]]] = {}
    for kind in refusals_of(endpoint):
        by_status.setdefault(status_of(kind), []).append(kind)
    return {str(status): _refusal(endpoint, kinds, schemas) for status, kinds in sorted(by_status.items())}


def _refusal(endpoint: Endpoint, kinds: list[type[errors.OnceMQError]], schemas: Schemas) -> Json:
    response: Json = {"description": "\n".join(f"- `{kind.code}`: {meaning(kind)}" for kind in kinds)}
    if any(issubclass(kind, errors.TRANSIENT) for kind in kinds):
        response["headers"] = {
            "Retry-After": {"description": "When to try again, in seconds.", "schema": {"type": "integer"}}
        }
    response["content"] = {
        PROBLEM: {
            "schema": {"$ref": REF.format(name="Problem")},
            "examples": {kind.code: {"$ref": f"#/components/examples/{kind.code}"} for kind in kinds},
        }
    }
    error_format = endpoint.error_format
    if error_format is not None:
        examples = {
            kind.code: {"summary": meaning(kind), "value": msgspec.to_builtins(error_format.failure_of(kind()))}
            for kind in kinds
        }
        # A request that is refused before its endpoint is found still gets a problem.
        own_content = {JSON: {"schema": schemas.of(error_format.body), "examples": examples}}
        response["content"] = own_content | response["content"]
    return response


def _problem_example(kind: type[errors.OnceMQError]) -> Json:
    return {"summary": meaning(kind), "value": msgspec.to_builtins(problem_of(kind()))}


def meaning(kind: type[errors.OnceMQError]) -> str:
    """Return the description of an error."""
    return " ".join((kind.__doc__ or "").split())
