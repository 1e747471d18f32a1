"""How messages look when they are printed."""

from __future__ import annotations

import json

import click
import pytest

from oncemq import terminal
from oncemq.cli.messages.formats import compile_template, json_bytes, renderer
from oncemq.protocol.message import Message

HELLO = Message(
    topic="orders",
    offset=12,
    value=b"hello",
    key=b"k",
    headers={"a": b"1"},
    timestamp_ms=1_700_000_000_123,
    topic_id=31,
)
BINARY = Message(
    topic="orders", offset=0, value=b"\xff\0", key=None, headers={"h": b"\xfe"}, timestamp_ms=0, topic_id=1
)


def test_a_message_is_printed_as_its_bytes_and_a_lines_end() -> None:
    assert renderer(as_json=False, template=None, null=False)(BINARY) == b"\xff\0\n"
    assert renderer(as_json=False, template=None, null=True)(HELLO) == b"hello\0"


def test_json_has_text_where_it_is_text() -> None:
    assert json.loads(json_bytes(HELLO)) == {
        "topic": "orders",
        "offset": 12,
        "timestamp_ms": 1_700_000_000_123,
        "idempotency_key": "1f-12",
        "key": "k",
        "headers": {"a": "1"},
        "value": "hello",
    }


def test_json_has_base64_where_it_is_not() -> None:
    entry = json.loads(json_bytes(BINARY))
    assert entry["value_base64"] == "/wA="
    assert entry["headers"] == {"h_base64": "/g=="}
    assert "value" not in entry
    assert "key" not in entry


def test_a_template_names_parts_of_the_message() -> None:
    render = compile_template(
        r"{offset}\t{key}\t{value} {header:a}{header:none} {{x}} {time} {topic} {idempotency_key}"
    )
    assert render(HELLO) == b"12\tk\thello 1 {x} 2023-11-14T22:13:20.123Z orders 1f-12"


def test_bytes_pass_a_template_unchanged() -> None:
    assert compile_template("<{value}>")(BINARY) == b"<\xff\0>"


@pytest.mark.parametrize("template", ["{colour}", "{", "{header}", "{0}"])
def test_an_invalid_template_is_refused(template: str) -> None:
    with pytest.raises(click.BadParameter):
        compile_template(template)


def test_a_table_has_numbers_to_the_right() -> None:
    assert terminal.table(["TOPIC", "END"], [("a", 12_345), ("long name", 7)]) == [
        "TOPIC         END",
        "a          12,345",
        "long name       7",
    ]


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**41, "2.0 TiB")])
def test_sizes_are_readable(size: int, text: str) -> None:
    assert terminal.bytes_text(size) == text


@pytest.mark.parametrize(("span_ms", "text"), [(5, "5 ms"), (90_000, "1.5 min"), (86_400_000, "1 d")])
def test_durations_are_readable(span_ms: int, text: str) -> None:
    assert terminal.duration_text(span_ms) == text


HOSTILE = Message(
    topic="a\u202eb",
    offset=1,
    value=b"\x1b[2J\xc2\x9b31m\r\x07 caf\xc3\xa9\tand \xff\n",
    key=b"\x1b]0;title\x07",
    headers={"h": "\u2066left".encode()},
    timestamp_ms=0,
    topic_id=1,
)
UNSAFE = ("\x1b", "\x07", "\r", "\x9b", "\u202e", "\u2066")


def test_a_message_cannot_control_the_terminal_on_which_it_is_printed() -> None:
    for template in (None, "{topic} {key} {header:h} {value}"):
        shown = renderer(False, template, null=False, for_terminal=True)(HOSTILE).decode()
        assert not [letter for letter in UNSAFE if letter in shown]
    assert shown.startswith("a\\u202eb \\x1b]0;title\\x07 \\u2066left \\x1b[2J\\x9b31m\\r\\x07 café\tand \\xff\n")


def test_json_on_a_terminal_is_escaped_and_stands_for_the_same_message() -> None:
    shown = renderer(True, None, null=False, for_terminal=True)(HOSTILE)
    assert json.loads(shown) == json.loads(json_bytes(HOSTILE))
    assert not [letter for letter in UNSAFE if letter in shown.decode()]


def test_a_pipe_gets_the_bytes_as_they_are() -> None:
    assert renderer(False, None, null=False)(HOSTILE) == HOSTILE.value + b"\n"
    assert renderer(False, "{key}", null=False)(HOSTILE) == b"\x1b]0;title\x07\n"
