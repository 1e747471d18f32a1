"""How messages are printed: the value alone, as JSON, or with a template of the user."""

from __future__ import annotations

import base64
import string
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from oncemq.terminal import printable_bytes, printable_json

if TYPE_CHECKING:
    from oncemq.protocol.message import Message

Render = Callable[["Message"], bytes]

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}

FORMAT_HELP = (
    "Template for each message: text with {value}, {key}, {offset}, {topic}, {time}, {timestamp_ms}, "
    "{idempotency_key}, {header:NAME}; \\t and \\n stand for tab and newline. [default: {value}]"
)

_FIELDS: dict[str, Render] = {
    "value": lambda message: message.value,
    "key": lambda message: message.key or b"",
    "offset": lambda message: b"%d" % message.offset,
    "topic": lambda message: message.topic.encode(),
    "time": lambda message: time_text(message.timestamp_ms).encode(),
    "timestamp_ms": lambda message: b"%d" % message.timestamp_ms,
    "idempotency_key": lambda message: message.idempotency_key.encode(),
}


def renderer(as_json: bool, template: str | None, null: bool, *, for_terminal: bool = False) -> Render:
    """Return the function that turns a message into the bytes to print, with the terminator. `for_terminal` escapes
    what could control a terminal; a pipe or file gets the bytes as they are."""
    if as_json and template is not None:
        raise click.UsageError("--json and --format exclude each other.")
    if as_json:
        return _json_lines(for_terminal)
    end = b"\0" if null else b"\n"
    render = compile_template("{value}" if template is None else template, for_terminal=for_terminal)
    return lambda message: render(message) + end


def _json_lines(for_terminal: bool) -> Render:
    if for_terminal:
        return lambda message: printable_json(json_bytes(message).decode()).encode() + b"\n"
    return lambda message: json_bytes(message) + b"\n"


def json_bytes(message: Message) -> bytes:
    """Return a message as one JSON object. Bytes become text if they are UTF-8, otherwise base64 under another name."""
    entry: dict[str, Any] = {
        "topic": message.topic,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
        "idempotency_key": message.idempotency_key,
    }
    return msgspec.json.encode(entry | bytes_entry(message.key, message.headers, message.value))


def bytes_entry(key: bytes | None, headers: Mapping[str, bytes], value: bytes) -> dict[str, Any]:
    """Return the JSON fields of what the producer gave: key, headers and value."""
    entry: dict[str, Any] = {}
    _add_bytes(entry, "key", key)
    if headers:
        entry["headers"] = {}
        for name, header in headers.items():
            _add_bytes(entry["headers"], name, header)
    _add_bytes(entry, "value", value)
    return entry


def _add_bytes(entry: dict[str, Any], name: str, value: bytes | None) -> None:
    if value is None:
        return
    try:
        entry[name] = value.decode()
    except UnicodeDecodeError:
        entry[f"{name}_base64"] = base64.b64encode(value).decode()


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp in ISO 8601, in UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def compile_template(template: str, *, for_terminal: bool = False) -> Render:
    """Compile a template. Raises BadParameter if it has a field that messages do not have."""
    parts: list[Render] = []
    try:
        for literal, field, name, _ in string.Formatter().parse(_unescape(template)):
            parts += [_literal(literal)] if literal else []
            if field is not None:
                render = _field(field, name)
                parts.append(_escaped(render) if for_terminal else render)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--format") from None
    return parts[0] if len(parts) == 1 else lambda message: b"".join(part(message) for part in parts)


def _unescape(template: str) -> str:
    result, at = [], 0
    while at < len(template):
        pair = template[at : at + 2]
        result.append(_ESCAPES.get(pair, template[at]))
        at += 2 if pair in _ESCAPES else 1
    return "".join(result)


def _literal(text: str) -> Render:
    data = text.encode()
    return lambda _: data


def _field(field: str, name: str | None) -> Render:
    if field == "header" and name:
        return lambda message: message.headers.get(name, b"")
    if field in _FIELDS:
        return _FIELDS[field]
    raise ValueError(f"{{{field}}} is not a field; the fields are {', '.join(_FIELDS)} and header:NAME")


def _escaped(render: Render) -> Render:
    return lambda message: printable_bytes(render(message))
