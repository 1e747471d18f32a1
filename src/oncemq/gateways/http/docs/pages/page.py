"""/docs: the OpenAPI document as a page for people. It is complete without JavaScript; with JavaScript (docs.js),
requests can be tried.

Knows only the document, not the endpoints: other tools see everything that it shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from oncemq.gateways.http.docs.pages.markup import Html, element, inline, markdown, together
from oncemq.gateways.http.docs.pages.schema_text import fields_of, pretty, resolved, type_text
from oncemq.gateways.http.docs.pages.try_form import try_form
from oncemq.gateways.http.framework.endpoint import PROBLEM

Json = dict[str, Any]
_METHODS = ("get", "put", "post", "patch", "delete")


def render(document: Json) -> bytes:
    """Return the page as HTML."""
    operations = list(_operations(document))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{document['info']['title']} over HTTP"),
        element("link", rel="icon", href="/docs/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href="/docs/docs.css"),
        element("script", src="/docs/docs.js", defer=True),
    )
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        _navigation(document, operations),
        _main(document, operations),
    )
    return ("<!doctype html>\n" + element("html", head, body, lang="en") + "\n").encode()


class _Operation:
    """One method of one path, as the document declares it."""

    def __init__(self, path: str, method: str, declared: Json) -> None:
        self.path = path
        self.method = method.upper()
        self.declared = declared
        self.tag: str = declared["tags"][0]
        self.summary: str = declared["summary"]
        self.anchor: str = declared["operationId"].replace("_", "-")

    @property
    def label(self) -> Html:
        method = element("span", self.method, class_=f"method {self.method.lower()}")
        return together(method, " ", element("code", self.path))


def _operations(document: Json) -> Iterator[_Operation]:
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield _Operation(path, method, methods[method])


def _navigation(document: Json, operations: list[_Operation]) -> Html:
    groups = []
    for tag in document["tags"]:
        links = [
            element("li", element("a", operation.label, href=f"#{operation.anchor}", title=operation.summary))
            for operation in operations
            if operation.tag == tag["name"]
        ]
        groups += [element("h2", tag["name"]), element("ul", *links)]
    info = document["info"]
    return element(
        "nav",
        element("p", element("strong", info["title"]), " ", element("small", info["version"]), class_="title"),
        element("p", element("a", "openapi.json", href="/openapi.json"), " · ", element("a", "errors", href="#errors")),
        element("label", "Find ", element("input", id="find", type="search", autocomplete="off"), class_="only-script"),
        _login(),
        *groups,
        aria_label="Endpoints",
    )


def _login() -> Html:
    """Return the forms to log in and out. The page shows the one that fits, if the broker has users (docs.js)."""
    token = element("input", name="token", type="password", autocomplete="off", required=True)
    log_in = element(
        "form",
        element("label", "Token", token),
        element("button", "Log in", type="submit"),
        element("p", class_="bad", role="alert"),
        id="login-form",
        hidden=True,
    )
    log_out = element(
        "form",
        "User ",
        element("strong"),
        " ",
        element("button", "Log out", type="submit"),
        id="logout-form",
        hidden=True,
    )
    return together(log_in, log_out)


def _main(document: Json, operations: list[_Operation]) -> Html:
    sections = [
        element(
            "section",
            element("h2", tag["name"]),
            markdown(tag["description"]),
            *(_article(document, operation) for operation in operations if operation.tag == tag["name"]),
        )
        for tag in document["tags"]
    ]
    info = document["info"]
    title = element("h1", f"{info['title']} over HTTP")
    overview = element("section", title, markdown(info["description"]), class_="overview")
    return element("main", overview, *sections, _errors(document), id="content", tabindex="-1")


def _article(document: Json, operation: _Operation) -> Html:
    declared = operation.declared
    summary = element("summary", element("h3", operation.label), element("span", operation.summary))
    description = element(
        "div",
        markdown(declared.get("description", "")),
        _parameters(declared.get("parameters", [])),
        _request_body(document, declared.get("requestBody")),
        _replies(document, declared["responses"]),
        _refusals(declared["responses"]),
        class_="description",
    )
    form = try_form(operation.method, operation.path, declared)
    columns = element("div", description, form, class_="columns")
    return element("details", summary, columns, id=operation.anchor, class_="operation")


def _parameters(parameters: list[Json]) -> Html:
    parts = []
    for place, title in (("path", "In the path"), ("query", "In the query"), ("header", "In headers")):
        rows = [
            (
                together(element("code", parameter["name"]), _required(parameter.get("required", False))),
                type_text(parameter["schema"]),
                inline(parameter.get("description", "")),
            )
            for parameter in parameters
            if parameter["in"] == place
        ]
        parts += [element("h4", title), _table(rows)] if rows else []
    return together(*parts)


def _request_body(document: Json, body: Json | None) -> Html:
    if body is None:
        return Html()
    parts = [element("h4", "Body")]
    for media, content in body["content"].items():
        parts.append(element("p", element("code", media), "" if body.get("required") else " (optional)"))
        parts.append(_fields(document, content["schema"]))
    return together(*parts)


def _replies(document: Json, responses: Json) -> Html:
    parts = [element("h4", "Responses")]
    for status, response in responses.items():
        if int(status) < 400:
            parts.append(element("p", element("strong", status), " ", inline(response["description"])))
            parts += [_header_list(response.get("headers", {}))]
            parts += [_content(document, media, content) for media, content in response.get("content", {}).items()]
    return together(*parts)


def _header_list(headers: Json) -> Html:
    rows = [(element("code", name), "header", inline(header["description"])) for name, header in headers.items()]
    return _table(rows) if rows else Html()


def _content(document: Json, media: str, content: Json) -> Html:
    parts = [element("p", element("code", media)), _fields(document, content["schema"])]
    if "example" in content:
        parts.append(element("pre", element("code", pretty(content["example"])), tabindex="0"))
    return together(*parts)


def _fields(document: Json, schema: Json) -> Html:
    rows = [
        (together(element("code", field.name), _required(field.is_required)), field.type, inline(field.description))
        for field in fields_of(document, schema)
    ]
    return _table(rows) if rows else Html()


def _refusals(responses: Json) -> Html:
    """List the errors by code. Their meanings are in one table at the end of the page."""
    items = [
        element("li", status, " ", *(_code_link(code) for code in response["content"][PROBLEM]["examples"]))
        for status, response in responses.items()
        if int(status) >= 400
    ]
    return element("details", element("summary", "Errors"), element("ul", *items), class_="refusals")


def _code_link(code: str) -> Html:
    return together(element("a", element("code", code), href=f"#{code}"), " ")


def _errors(document: Json) -> Html:
    rows = []
    for code, example in document["components"]["examples"].items():
        value = resolved(document, example)["value"]
        meaning = together(example["summary"], " ", element("em", inline(value["advice"])))
        rows.append((together(element("code", code, id=code), f" {value['status']}"), "", meaning))
    return element("section", element("h2", "Errors"), _table(rows), id="errors")


def _required(is_required: bool) -> Html:
    return element("span", " required", class_="required") if is_required else Html()


def _type(kind: str) -> Html:
    return element("span", kind, class_="type") if kind else Html()


def _table(rows: Sequence[tuple[str, str, str]]) -> Html:
    lines = [
        element("tr", element("th", name, scope="row"), element("td", text, _type(kind))) for name, kind, text in rows
    ]
    return element("table", element("tbody", *lines))
