"""Parsing requests of both forms, and refusing malformed ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncemq.gateways.text.peers import split
from oncemq.gateways.text.requests import Request, format_error, parse
from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, START_NEW

#: Names with characters that have a special meaning somewhere.
NAMES = st.text("ab \"'\\.ü/", min_size=1, max_size=12)


def quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("sub orders alice", Request("sub", "orders", "alice")),
        ("sub orders alice new", Request("sub", "orders", "alice", start=START_NEW)),
        ("sub orders alice earliest", Request("sub", "orders", "alice", start=START_EARLIEST)),
        ("unsub  orders   alice ", Request("unsub", "orders", "alice")),
        ("get orders alice\r\n", Request("get", "orders", "alice")),
        ("put orders one pizza", Request("put", "orders", content=b"one pizza")),
        ("put orders  two  spaces ", Request("put", "orders", content=b" two  spaces ")),
        ("put orders ", Request("put", "orders", content=b"")),
        ("put orders two\nlines\n", Request("put", "orders", content=b"two\nlines\n")),
        ('put orders "as it is"', Request("put", "orders", content=b'"as it is"')),
        ('put "Cooking Recipes" soup', Request("put", "Cooking Recipes", content=b"soup")),
        ("get 'Cooking \"Recipes\"' 'al ice'", Request("get", 'Cooking "Recipes"', "al ice")),
        ('get "a \\"b\\" \\\\c \\d" alice', Request("get", 'a "b" \\c \\d', "alice")),
        ("get it's alice", Request("get", "it's", "alice")),
        ("7f\nsub\nalice\nCooking Recipes", Request("sub", "Cooking Recipes", "alice", id="7f")),
        ("7f\nsub\nalice\norders\nearliest", Request("sub", "orders", "alice", start=START_EARLIEST, id="7f")),
        ("7f\nunsub\nalice\norders\n", Request("unsub", "orders", "alice", id="7f")),
        ("7f\r\nget\r\nalice\r\norders\r\n", Request("get", "orders", "alice", id="7f")),
        ("7f\nput\nalice\norders\ntwo\nlines\n", Request("put", "orders", "alice", b"two\nlines\n", id="7f")),
        ("7f\nput\nalice\norders\n", Request("put", "orders", "alice", b"", id="7f")),
        ('7f\nget\n"al ice"\norders', Request("get", "orders", '"al ice"', id="7f")),
        # The first word decides, so that any content can be put.
        ("put orders x\nget\nalice\norders", Request("put", "orders", content=b"x\nget\nalice\norders")),
    ],
)
def test_a_request_is_read(text: str, request_: Request) -> None:
    assert parse(text.encode()) == request_


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"", "MALFORMED"),
        (b"\xff", "MALFORMED"),
        (b"put orders \xff", "MALFORMED"),
        (b"hello", "MALFORMED"),
        (b"PUT orders x", "MALFORMED"),
        (b"put", "MALFORMED"),
        (b"put orders", "MALFORMED"),
        (b"put\norders\nx", "MALFORMED"),
        (b"sub orders", "MALFORMED"),
        (b'sub "orders alice', "MALFORMED"),
        (b'sub "orders"alice alice', "MALFORMED"),
        (b"sub orders alice later", "MALFORMED"),
        (b"get orders alice earliest", "MALFORMED"),
        (b"get Cooking Recipes alice", "MALFORMED"),
        (b"get " + b"x" * 10_000 + b" alice", "MALFORMED"),
        (b"get " + b"x" * 256 + b" alice", "NAME_INVALID"),
        (b"get orders\x01 alice", "NAME_INVALID"),
        (b'get "" alice', "NAME_INVALID"),
        (b"sub orders.* alice", "NAME_INVALID"),
        (b"7f", "MALFORMED"),
        (b"7f\n", "MALFORMED"),
        (b"7f\nlist\nalice\norders", "MALFORMED"),
        (b"7f\nget\nalice", "MALFORMED"),
        (b"7f\nput\nalice\norders", "MALFORMED"),
        (b"7f\nget\nalice\norders\nearliest", "MALFORMED"),
        (b"\nget\nalice\norders", "MALFORMED"),
        (b"7 f\nget\nalice\norders", "MALFORMED"),
        (b"x" * 256 + b"\nget\nalice\norders", "MALFORMED"),
        (b"get\nget\nalice\norders", "MALFORMED"),
        (b"7f\nget\n\norders", "NAME_INVALID"),
        (b"7f\nget\nalice\n#", "NAME_INVALID"),
    ],
)
def test_what_is_no_request_is_refused(frame: bytes, code: str) -> None:
    with pytest.raises(errors.Refused) as refused:
        parse(frame)
    assert refused.value.code == code


@given(topic=NAMES, subscriber=NAMES, content=st.text())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_name_can_be_quoted_and_any_text_put(topic: str, subscriber: str, content: str) -> None:
    got = parse(f"get {quoted(topic)} {quoted(subscriber)}".encode())
    assert (got.topic, got.subscriber) == (topic, subscriber)
    put = parse(f"put {quoted(topic)} {content}".encode())
    assert (put.topic, put.content) == (topic, content.encode())
    lines = parse(f"id\nput\n{subscriber}\n{topic}\n{content}".encode())
    assert (lines.subscriber, lines.topic, lines.content) == (subscriber, topic, content.encode())


def test_an_error_is_one_line() -> None:
    assert format_error(errors.Malformed("one\n\ttwo")) == b"ERROR MALFORMED one two"


@pytest.mark.parametrize(
    ("frames", "envelope", "body"),
    [
        ([b"id", b"", b"get"], (b"id", b""), [b"get"]),
        ([b"id", b"", b""], (b"id", b""), [b""]),
        ([b"id", b"get"], (b"id",), [b"get"]),
        ([b"id", b""], (b"id",), [b""]),
        ([b"id", b"behind a proxy", b"", b"get"], (b"id", b"behind a proxy", b""), [b"get"]),
        ([b"id", b"one", b"two"], (b"id",), [b"one", b"two"]),
        ([b"id", b"", b"one", b""], (b"id", b""), [b"one", b""]),
        ([b"id"], (b"id",), []),
    ],
)
def test_a_reply_goes_back_the_way_of_its_request(
    frames: list[bytes], envelope: tuple[bytes, ...], body: list[bytes]
) -> None:
    assert split(frames) == (envelope, body)
