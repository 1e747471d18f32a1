"""Putting messages over HTTP: every form of body, and what makes a put happen once."""

from __future__ import annotations

import base64
import time
from typing import Any

import httpx
import pytest

from oncemq.gateways.link import Link
from tests.gateways.http.v1 import V1, code_of, v1, values_of

__all__ = ["v1"]

PATH = "/topics/orders/messages"


def post(v1: V1, content: bytes, media: str | None = None, headers: Any = None, **query: Any) -> httpx.Response:
    headers = {**(headers or {}), **({"content-type": media} if media else {})}
    return v1.ask("POST", PATH, content=content, headers=headers, params=query)


def stored(v1: V1) -> list[str]:
    return values_of(v1.ok("GET", PATH))


@pytest.fixture(autouse=True)
def _topic(v1: V1) -> None:
    v1.ok("PUT", "/topics/orders", {"retain_ms": 3_600_000}, 201)


def test_a_body_of_any_other_type_is_one_message(v1: V1) -> None:
    for content, media in ((b"a", "text/plain"), (b"b\n", None), (b"", "text/plain")):
        assert post(v1, content, media).status_code == 201
    assert stored(v1) == ["a", "b\n", ""]


def test_a_body_that_is_surely_meant_otherwise_is_refused(v1: V1) -> None:
    form = post(v1, b'{"value": "a"}', "application/x-www-form-urlencoded")
    assert (code_of(form), "--json" in form.json()["detail"]) == ("MEDIA_UNSUPPORTED", True)
    assert code_of(post(v1, b'{"value": "a"}', "text/json")) == "MEDIA_UNSUPPORTED"
    assert code_of(post(v1, b"")) == "MALFORMED"
    assert stored(v1) == []


@pytest.mark.parametrize("media", ["ndjson", "jsonl", "x-jsonlines", "jsonlines"])
def test_json_lines_have_many_names(v1: V1, media: str) -> None:
    assert post(v1, b"1\n2\n", f"application/{media}").json()["count"] == 2
    assert v1.ask("GET", PATH, headers={"accept": f"application/{media}"}).text.count("\n") == 2


def test_the_reply_to_a_put_says_where_it_is(v1: V1) -> None:
    v1.subscribe("orders", "kitchen")
    before_ms = v1.ok("GET", "/health")["time_ms"]
    reply = post(v1, b"a").json()
    topic_id = v1.ok("GET", "/topics/orders")["topic_id"]
    assert reply.pop("time_ms") >= before_ms
    assert reply == {"topic": "orders", "topic_id": topic_id, "offset": 0, "count": 1, "subscriptions": 1}


def test_json_values_are_stored_as_text_or_as_json(v1: V1) -> None:
    for body in (
        '{"value": "one\\u00e9"}',
        '{"value":  {"a": [1,  2.50]} }',
        '{"value": null}',
        '{"value_base64": "aGk="}',
    ):
        assert post(v1, body.encode(), "application/json; charset=utf-8").status_code == 201
    assert stored(v1) == ["oneé", '{"a": [1,  2.50]}', "null", "hi"]


def test_messages_have_keys_and_headers_and_bytes(v1: V1) -> None:
    binary = base64.b64encode(b"\xff").decode()
    one = {"value": "a", "key": "k", "headers": {"type": "x"}}
    two = {"value_base64": binary, "key_base64": binary, "headers_base64": {"b": binary}}
    put = v1.ok("POST", PATH, {"messages": [one, two, {"value": 3}]}, 201)
    assert (put["offset"], put["count"]) == (0, 3)
    messages = v1.ok("GET", PATH)["messages"]
    for message, given in zip(messages, (one, two, {"value": "3"}), strict=True):
        assert message["idempotency_key"] == f"{put['topic_id']:x}-{message['offset']}"
        assert {name: message[name] for name in message if name in one or name in two} == given


def test_the_key_of_the_query_is_that_of_messages_without_one(v1: V1) -> None:
    v1.ok("POST", PATH, {"messages": [{"value": "a"}, {"value": "b", "key": "own"}]}, 201, params={"key": "k"})
    post(v1, b"c", key="k")
    post(v1, b"1\n2", "application/x-ndjson", key="")
    assert [message["key"] for message in v1.ok("GET", PATH)["messages"]] == ["k", "own", "k", "", ""]


def test_each_line_of_json_lines_is_a_message_as_it_is(v1: V1) -> None:
    reply = post(v1, b'{"a":  1}\n"b"\r\n[ 3 ]\n', "application/x-ndjson").json()
    assert (reply["offset"], reply["count"]) == (0, 3)
    assert stored(v1) == ['{"a":  1}', '"b"', "[ 3 ]"]


@pytest.mark.parametrize(
    ("body", "line"), [(b"1\n{", 2), (b"", 1), (b"1\n\n2", 2), (b'"\xff"', 1), (b"1\n2\n\n", 3), (b"[" * 100_000, 1)]
)
def test_a_line_that_is_not_json_refuses_all_of_them(v1: V1, body: bytes, line: int) -> None:
    response = post(v1, body, "application/x-ndjson")
    assert code_of(response) == "MALFORMED"
    assert f"line {line} " in response.json()["detail"]
    assert stored(v1) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"value": 1, "value_base64": ""}',
        b'{"messages": []}',
        b'{"messages": [{}]}',
        b'{"value": 1, "messages": [{"value": 1}]}',
        b'{"value": 1, "kee": "k"}',
        b'{"value_base64": "?"}',
        b'{"value": "\\ud800"}',
        b'{"value": "\xff"}',
        b'{"value": ' + b"[" * 100_000,
        b'{"value": 1, "headers": {"a": 1}}',
        b'{"value": 1, "key": "k", "key_base64": "aGk="}',
    ],
)
def test_a_json_body_that_is_no_message_is_refused(v1: V1, body: bytes) -> None:
    assert code_of(post(v1, body, "application/json")) == "MALFORMED"
    assert stored(v1) == []


def test_a_put_makes_a_topic_only_if_told_to(v1: V1) -> None:
    assert v1.refused("POST", "/topics/new/messages", {"value": 1}) == "TOPIC_UNKNOWN"
    reply = v1.ok("POST", "/topics/new/messages", {"value": 1}, 201, params={"create": "true"})
    assert (reply["offset"], reply["subscriptions"]) == (0, 0)


def test_a_put_for_later_has_no_offset_yet(v1: V1) -> None:
    hour_ms = 3_600_000
    assert post(v1, b"a", delay_ms=hour_ms).json()["offset"] == -1
    assert post(v1, b"b", due_ms=int(time.time() * 1000) + hour_ms).json()["offset"] == -1
    assert v1.ok("GET", "/topics/orders")["delayed"] == 2
    assert code_of(post(v1, b"a", delay_ms=1, due_ms=1)) == "MALFORMED"


def test_a_put_with_a_time_to_live_expires(v1: V1) -> None:
    v1.subscribe("orders", "kitchen")
    assert post(v1, b"a", ttl_ms=1).status_code == 201
    deadline = time.monotonic() + 30
    while v1.got("orders", "kitchen")["messages"]:
        assert time.monotonic() < deadline


def test_a_body_that_is_too_large_is_refused(v1: V1) -> None:
    assert code_of(post(v1, b"x" * (8 * 2**20 + 1))) == "TOO_LARGE"
    # More than the broker's limit for a batch, in the gateway's first request.
    fresh = V1()
    response = fresh.ask("POST", PATH, content=b"x" * (5 * 2**20), params={"create": "true"})
    fresh.close()
    assert code_of(response) == "TOO_LARGE"


# Once.


def test_a_put_repeated_under_its_key_is_stored_once(v1: V1) -> None:
    for form in ({"content": b"a"}, {"json": {"value": "b"}}):
        headers = {"idempotency-key": f"key of {form}"}
        first, again = (v1.ask("POST", PATH, headers=headers, **form) for _ in range(2))
        assert (first.status_code, first.json()) == (again.status_code, again.json())
        assert first.status_code == 201
    assert stored(v1) == ["a", "b"]


def test_a_key_that_was_used_for_another_put_is_refused(v1: V1) -> None:
    post(v1, b"a", headers={"idempotency-key": "k"})
    assert code_of(post(v1, b"b", headers={"idempotency-key": "k"})) == "KEY_REUSED"
    assert post(v1, b"b", headers={"idempotency-key": "k", "oncemq-principal": "other"}).status_code == 201
    assert stored(v1) == ["a", "b"]


def test_a_refusal_is_repeated_too(v1: V1) -> None:
    headers = {"idempotency-key": "k"}
    assert v1.refused("POST", "/topics/none/messages", {"value": 1}, headers=headers) == "TOPIC_UNKNOWN"
    v1.ok("PUT", "/topics/none", status=201)
    assert v1.refused("POST", "/topics/none/messages", {"value": 1}, headers=headers) == "TOPIC_UNKNOWN"


def test_numbered_puts_are_stored_once_and_in_order(v1: V1) -> None:
    epoch = v1.ok("POST", "/sessions", {"session": "shop"})["epoch"]

    def numbered(number: int, content: bytes) -> httpx.Response:
        headers = {"oncemq-session": "shop", "oncemq-epoch": str(epoch), "oncemq-number": str(number)}
        return post(v1, content, headers=headers)

    assert numbered(1, b"a").json() == numbered(1, b"a").json()
    assert code_of(numbered(3, b"c")) == "GAP"
    assert code_of(numbered(1, b"b")) == "SEQUENCE_REUSED"
    assert numbered(2, b"b").status_code == 201
    assert code_of(numbered(1, b"a")) == "VERDICT_FORGOTTEN"
    assert stored(v1) == ["a", "b"]


@pytest.mark.parametrize(
    "headers",
    [
        {"idempotency-key": "k", "oncemq-session": "s", "oncemq-epoch": "1", "oncemq-number": "1"},
        {"idempotency-key": "k", "oncemq-number": "1"},
        {"oncemq-session": "s"},
        {"oncemq-session": "s", "oncemq-epoch": "1"},
        {"oncemq-session": "s", "oncemq-epoch": "1", "oncemq-number": "0"},
        {"oncemq-session": "s", "oncemq-epoch": "1", "oncemq-number": "9" * 30},
        {"oncemq-number": "1"},
        {"oncemq-principal": "p"},
    ],
)
def test_headers_that_protect_by_halves_are_refused(v1: V1, headers: dict[str, str]) -> None:
    assert code_of(post(v1, b"a", headers=headers)) == "MALFORMED"
    assert stored(v1) == []


def test_a_session_without_its_numbers_is_told_what_is_missing(v1: V1) -> None:
    detail = post(v1, b"a", headers={"oncemq-session": "s"}).json()["detail"]
    assert detail == "oncemq-session is given without oncemq-epoch and oncemq-number"


def test_a_key_that_is_no_key_is_refused(v1: V1) -> None:
    assert code_of(post(v1, b"a", headers={"idempotency-key": ""})) == "NAME_INVALID"
    assert code_of(post(v1, b"a", headers={"idempotency-key": "k" * 513})) == "NAME_INVALID"
    assert code_of(post(v1, b"a", headers={"idempotency-key": b"\xff"})) == "MALFORMED"


def test_a_protected_put_for_later_names_the_moment(v1: V1) -> None:
    key = {"idempotency-key": "k"}
    assert code_of(post(v1, b"a", delay_ms=1000, headers=key)) == "MALFORMED"
    due_ms = int(time.time() * 1000) + 3_600_000
    assert post(v1, b"a", due_ms=due_ms, headers=key).json() == post(v1, b"a", due_ms=due_ms, headers=key).json()
    assert v1.ok("GET", "/topics/orders")["delayed"] == 1


# Together.


def test_puts_of_many_callers_at_once_become_few_requests(v1: V1, monkeypatch: pytest.MonkeyPatch) -> None:
    post(v1, b"first")
    link = v1.app._link
    assert isinstance(link, Link)
    sent: list[Any] = []
    transport = link._session.driver().transport
    send = transport.send

    def counting(frames: Any) -> None:
        sent.append(frames)
        send(frames)

    monkeypatch.setattr(transport, "send", counting)
    replies = v1.together(*(v1.client.post(f"/v1{PATH}", content=b"%d" % number) for number in range(64)))
    assert sorted(reply.json()["offset"] for reply in replies) == list(range(1, 65))
    assert len(sent) <= 4
    values = stored(v1)
    assert [values[reply.json()["offset"]] for reply in replies] == [str(number) for number in range(64)]


def test_of_puts_that_travel_together_only_the_large_one_is_refused(v1: V1) -> None:
    large = b"x" * (5 * 2**20)
    contents = (b"a", large, b"b")
    replies = v1.together(*(v1.client.post(f"/v1{PATH}", content=content) for content in contents))
    assert [reply.status_code for reply in replies] == [201, 413, 201]


def test_a_topic_that_is_full_holds_up_nobody_else(v1: V1) -> None:
    v1.ok("PUT", "/topics/full", {"quota_bytes": 200}, 201)
    v1.subscribe("full", "slow")
    v1.ok("POST", "/topics/full/messages", {"value": "x" * 100}, 201)
    paths = ["/v1/topics/full/messages", f"/v1{PATH}"] * 4
    replies = v1.together(*(v1.client.post(path, content=b"x" * 100) for path in paths))
    assert [reply.status_code for reply in replies] == [507, 201] * 4
    assert {code_of(reply) for reply in replies[::2]} == {"TOPIC_FULL"}
    assert replies[0].headers["retry-after"] == "1"
    key = {"idempotency-key": "k"}
    assert v1.refused("POST", "/topics/full/messages", {"value": "x" * 100}, headers=key) == "TOPIC_FULL"
    # Nothing was decided: the same request succeeds when there is space.
    v1.ok("POST", "/topics/full/subscriptions/slow/ack", {"upto": 1})
    v1.ok("POST", "/topics/full/messages", {"value": "x" * 100}, 201, headers=key)
