"""The part of /docs that sends a request: a form, its curl command, and the response."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import quote, urlencode

from oncemq.gateways.http.docs.pages.markup import Html, element, together
from oncemq.gateways.http.docs.pages.schema_text import pretty
from oncemq.gateways.http.framework.endpoint import ANY, FORM
from oncemq.gateways.http.settings import DEFAULT_ADDRESS

Json = dict[str, Any]


def try_form(method: str, path: str, declared: Json) -> Html:
    """Return the form of an endpoint."""
    parameters = declared.get("parameters", [])
    bodies = _bodies(declared.get("requestBody"))
    return element(
        "form",
        element("h4", "Try it"),
        *(_field(parameter) for parameter in parameters if parameter["in"] != "header"),
        _header_fields([parameter for parameter in parameters if parameter["in"] == "header"]),
        _body_field(bodies),
        element(
            "p",
            element("button", "Send", type="submit"),
            " ",
            element("button", "Stop", type="button", class_="stop", hidden=True),
            class_="only-script",
        ),
        _command(_curl(method, path, parameters, bodies)),
        element("output", class_="reply", aria_live="polite"),
        data_method=method,
        data_path=path,
        aria_label=f"Try {method} {path}",
        class_="try",
    )


def _command(curl: str) -> Html:
    return element(
        "div",
        element("pre", element("code", curl), class_="curl", tabindex="0"),
        element("button", "Copy", type="button", class_="copy only-script"),
        class_="copied",
    )


def _header_fields(parameters: list[Json]) -> Html:
    if not parameters:
        return Html()
    return element("details", element("summary", "Headers"), *(_field(parameter) for parameter in parameters))


def _field(parameter: Json) -> Html:
    schema = parameter["schema"]
    marks: Json = {"name": parameter["name"], "data_in": parameter["in"], "required": parameter.get("required", False)}
    choices = schema.get("enum") or (["true", "false"] if schema.get("type") == "boolean" else None)
    if choices:
        options = [element("option", "", value=""), *(element("option", str(choice)) for choice in choices)]
        return element("label", parameter["name"], element("select", *options, **marks))
    kind = "number" if schema.get("type") == "integer" else "text"
    placeholder = "" if schema.get("default") is None else str(schema["default"])
    box = element("input", type=kind, value=_example(parameter), placeholder=placeholder, autocomplete="off", **marks)
    return element("label", parameter["name"], box)


def _example(parameter: Json) -> str:
    """Return the initial value of a field: only required fields have one."""
    if not parameter.get("required"):
        return ""
    examples = parameter["schema"].get("examples", [])
    return str(parameter.get("example", examples[0] if examples else ""))


def _bodies(body: Json | None) -> list[tuple[str, str, str]]:
    """Return media type, name and text of each example."""
    found = []
    contents = (body or {"content": {}})["content"]
    for media, content in contents.items():
        if media == ANY and len(contents) > 1:
            continue
        for name, example in content.get("examples", {"": {"value": ""}}).items():
            found.append((media, name, _as_form(example["value"]) if media == FORM else pretty(example["value"])))
    return found


def _as_form(value: Any) -> str:
    return urlencode(value) if isinstance(value, dict) else str(value)


def _body_field(bodies: list[tuple[str, str, str]]) -> Html:
    if not bodies:
        return Html()
    options = [
        element("option", media if name in ("", media) else f"{media}: {name}", data_media=media, data_text=text)
        for media, name, text in bodies
    ]
    text = bodies[0][2]
    rows = str(min(14, text.count("\n") + 2))
    return together(
        element("label", "Body", element("select", *options, class_="media")),
        element("textarea", text, class_="body", rows=rows, spellcheck="false", aria_label="The text of the body"),
    )


def _curl(method: str, path: str, parameters: list[Json], bodies: list[tuple[str, str, str]]) -> str:
    words = ["curl"] if method == "GET" else ["curl", "-X", method]
    query = {}
    for parameter in parameters:
        value = _example(parameter)
        if parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", quote(value or parameter["name"], safe=""))
        elif value and parameter["in"] == "query":
            query[parameter["name"]] = value
    words.append(shlex.quote(f"http://{DEFAULT_ADDRESS}{path}" + (f"?{urlencode(query)}" if query else "")))
    if bodies:
        media, _, text = bodies[0]
        words += ["\\\n ", "-H", shlex.quote(f"Content-Type: {media}"), "\\\n ", "--data-binary", shlex.quote(text)]
    return " ".join(words)
