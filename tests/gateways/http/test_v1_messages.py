"""Consuming over HTTP: a get moves nothing, one owner at a time, and what a seek does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from oncemq.gateways import bounded_dict, link
from oncemq.protocol.commands import Get
from tests.gateways.http.rig import Json
from tests.gateways.http.served import eventually
from tests.gateways.http.v1 import V1, Visit, code_of, v1, values_of

__all__ = ["v1"]

PATH = "/topics/orders/subscriptions/kitchen"
MESSAGES = f"{PATH}/messages"


@pytest.fixture(autouse=True)
def _subscription(v1: V1) -> None:
    v1.subscribe("orders", "kitchen")


def get(v1: V1, **query: Any) -> Json:
    return v1.ok("GET", MESSAGES, params=query)


def test_a_get_moves_nothing(v1: V1) -> None:
    put = v1.store("orders", "a", "b", "c")
    got = get(v1)
    assert values_of(got) == ["a", "b", "c"]
    wanted = {"topic": "orders", "topic_id": put["topic_id"], "position": 0, "next_position": 3, "acked": 0}
    assert {name: got[name] for name in wanted} == wanted
    assert (got["end_offset"], got["dropped"]) == (3, 0)
    assert get(v1) == get(v1, position=0) == got
    assert values_of(get(v1, position=1)) == ["b", "c"]


def test_an_ack_rides_on_a_get(v1: V1) -> None:
    v1.store("orders", "a", "b", "c")
    seen: list[str] = []
    got = get(v1, limit=1)
    while got["messages"]:
        seen += values_of(got)
        got = get(v1, limit=1, ack=got["next_position"])
    assert seen == ["a", "b", "c"]
    assert (got["acked"], got["position"]) == (3, 3)
    assert v1.ok("GET", PATH)["lag"] == 0


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_a_limit_cuts_batches_and_nothing_is_left_out(v1: V1, limit: int) -> None:
    v1.store("orders", "a", "b", "c", "d")
    v1.store("orders", "e")
    v1.store("orders", "f", "g")
    seen: list[str] = []
    position = 0
    while position < 7:
        got = get(v1, limit=limit, position=position)
        assert got["position"] == position
        assert len(got["messages"]) <= limit
        assert got["next_position"] == position + len(got["messages"])
        seen += values_of(got)
        position = got["next_position"]
    assert "".join(seen) == "abcdefg"


def test_an_ack_is_a_maximum(v1: V1) -> None:
    v1.store("orders", "a", "b", "c")
    assert [v1.ok("POST", f"{PATH}/ack", {"upto": upto})["acked"] for upto in (2, 1, 2)] == [2, 2, 2]
    assert values_of(get(v1)) == ["c"]
    assert v1.refused("POST", f"{PATH}/ack", {"upto": 4}) == "OFFSET_OUT_OF_RANGE"
    assert code_of(v1.ask("GET", MESSAGES, params={"ack": 9})) == "OFFSET_OUT_OF_RANGE"


def test_an_ack_elsewhere_is_seen_by_the_next_get(v1: V1) -> None:
    v1.store("orders", "a", "b", "c")
    epoch = get(v1)["epoch"]
    v1.ok("POST", f"{PATH}/ack", {"upto": 2, "epoch": epoch})
    assert (get(v1)["position"], get(v1, epoch=epoch)["position"]) == (2, 2)
    # As if another client had acked.
    v1.state.subscriptions.opened["orders", "kitchen"].owned.acked = 0
    assert values_of(get(v1)) == ["c"]


def test_who_opens_a_subscription_fences_the_owner_before(v1: V1) -> None:
    v1.store("orders", "a")
    first, second = (v1.ok("POST", f"{PATH}/open") for _ in range(2))
    assert first["epoch"] < second["epoch"]
    assert v1.refused("GET", MESSAGES, params={"epoch": first["epoch"]}) == "FENCED"
    assert v1.refused("POST", f"{PATH}/ack", {"upto": 1, "epoch": first["epoch"]}) == "FENCED"
    assert values_of(get(v1, epoch=second["epoch"])) == ["a"]
    assert v1.ok("POST", f"{PATH}/ack", {"upto": 1, "epoch": second["epoch"]})["acked"] == 1


def test_an_open_repeated_under_its_key_fences_nobody(v1: V1) -> None:
    key = {"idempotency-key": "open"}
    first = v1.ok("POST", f"{PATH}/open", headers=key)
    assert v1.ok("POST", f"{PATH}/open", headers=key) == first
    get(v1, epoch=first["epoch"])


def test_the_gateway_takes_back_what_it_owns_for_callers_without_an_epoch(v1: V1) -> None:
    v1.store("orders", "a", "b")
    own = get(v1)["epoch"]
    assert get(v1)["epoch"] == own
    theirs = v1.ok("POST", f"{PATH}/open")["epoch"]
    assert own < theirs < get(v1, ack=1)["epoch"]
    assert v1.refused("GET", MESSAGES, params={"epoch": theirs}) == "FENCED"


def test_callers_who_come_at_once_share_one_opening(v1: V1) -> None:
    v1.store("orders", "a")
    replies = v1.together(*(v1.client.get(f"/v1{MESSAGES}") for _ in range(8)))
    assert len({reply.json()["epoch"] for reply in replies}) == 1


def test_what_the_gateway_keeps_of_subscriptions_is_bounded(v1: V1, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_dict, "_ENTRIES_MAX", 2)
    v1.store("orders", "a")
    for name in ("b", "c", "d"):
        v1.subscribe("orders", name)
        v1.got("orders", name)
    assert len(v1.state.subscriptions.opened) == 2
    assert values_of(get(v1)) == ["a"]


def test_after_a_seek_who_names_offsets_is_told_once(v1: V1) -> None:
    v1.ok("PUT", "/topics/orders", {"retain_ms": 3_600_000})
    v1.store("orders", "a", "b", "c")
    get(v1, ack=3)
    epoch = v1.ok("POST", f"{PATH}/open")["epoch"]
    get(v1)
    assert v1.ok("POST", f"{PATH}/seek", {"to": "earliest"})["acked"] == 0
    assert v1.refused("GET", MESSAGES, params={"position": 3}) == "SOUGHT"
    assert values_of(get(v1)) == ["a", "b", "c"]
    v1.ok("POST", f"{PATH}/seek", {"to": 1})
    assert v1.refused("GET", MESSAGES, params={"ack": 3}) == "SOUGHT"
    assert values_of(get(v1)) == ["b", "c"]
    v1.ok("POST", f"{PATH}/seek", {"to": 2})
    assert v1.refused("POST", f"{PATH}/ack", {"upto": 3}) == "SOUGHT"
    assert values_of(get(v1)) == ["c"]
    v1.ok("POST", f"{PATH}/seek", {"to": 0})
    assert values_of(get(v1)) == ["a", "b", "c"]
    assert v1.refused("GET", MESSAGES, params={"epoch": epoch}) == "FENCED"


def test_an_owner_with_an_epoch_is_told_of_a_seek(v1: V1) -> None:
    epoch = v1.ok("POST", f"{PATH}/open")["epoch"]
    v1.ok("POST", f"{PATH}/seek", {"to": "new"})
    assert v1.refused("GET", MESSAGES, params={"epoch": epoch}) == "SOUGHT"


def test_a_seek_by_time_takes_milliseconds_and_iso(v1: V1) -> None:
    v1.ok("PUT", "/topics/orders", {"retain_ms": 3_600_000})
    time_ms = v1.store("orders", "a", "b")["time_ms"]
    get(v1, ack=2)
    assert v1.ok("POST", f"{PATH}/seek", {"time": time_ms})["acked"] == 0
    assert v1.ok("POST", f"{PATH}/seek", {"time": time_ms + 60_000})["acked"] == 2
    assert v1.ok("POST", f"{PATH}/seek", {"time": "2020-01-01T00:00:00Z"})["acked"] == 0
    for body in ({}, {"to": 1, "time": 5}, {"time": "yesterday"}, {"time": "1960-01-01T00:00:00Z"}, {"time": 0}):
        assert v1.refused("POST", f"{PATH}/seek", body) == "MALFORMED"


def test_a_topic_that_is_made_again_is_another_one(v1: V1) -> None:
    v1.store("orders", "a", "b")
    epoch = v1.ok("POST", f"{PATH}/open")["epoch"]
    assert get(v1, epoch=epoch)["next_position"] == 2
    own = get(v1)
    v1.ok("DELETE", "/topics/orders", status=204)
    assert v1.refused("GET", MESSAGES, params={"epoch": epoch}) == "TOPIC_UNKNOWN"
    v1.subscribe("orders", "kitchen")
    v1.store("orders", "c")
    assert v1.refused("GET", MESSAGES, params={"position": own["next_position"]}) == "TOPIC_GONE"
    assert values_of(get(v1)) == ["c"]
    assert v1.refused("GET", MESSAGES, params={"epoch": epoch}) == "FENCED"


# Forms.


def accept(v1: V1, media: str, path: str = MESSAGES, **query: Any) -> httpx.Response:
    return v1.ask("GET", path, headers={"accept": media}, params=query)


@pytest.mark.parametrize("path", [MESSAGES, "/topics/orders/messages"])
def test_one_message_comes_as_it_is(v1: V1, path: str) -> None:
    v1.ok(
        "POST",
        "/topics/orders/messages",
        {"messages": [{"value_base64": "/wA=", "key": "k é", "headers": {"a b": "c&"}}, {"value": "b"}]},
        201,
    )
    first = accept(v1, "application/octet-stream", path)
    assert (first.status_code, first.content) == (200, b"\xff\x00")
    assert first.headers["content-type"] == "application/octet-stream"
    names = ("offset", "position", "next-position", "end-offset", "key", "headers")
    assert [first.headers[f"oncemq-{name}"] for name in names] == ["0", "0", "1", "2", "k%20%C3%A9", "a+b=c%26"]
    second = accept(v1, "application/octet-stream", path, position=1)
    assert (second.content, "oncemq-key" in second.headers) == (b"b", False)
    none = accept(v1, "application/octet-stream", path, position=2)
    assert (none.status_code, none.content, none.headers["oncemq-next-position"]) == (204, b"", "2")


@pytest.mark.parametrize("path", [MESSAGES, "/topics/orders/messages"])
def test_messages_come_as_lines(v1: V1, path: str) -> None:
    v1.store("orders", "a", "b\n")
    reply = accept(v1, "application/x-ndjson", path)
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["value"] for line in reply.text.splitlines()] == ["a", "b\n"]
    assert reply.headers["oncemq-next-position"] == "2"
    assert accept(v1, "application/x-ndjson", path, position=2).text == ""


@pytest.mark.parametrize(
    ("wanted", "media"),
    [
        ("*/*", "application/json"),
        ("text/html, application/*;q=0.8", "application/json"),
        ("", "application/json"),
        ("application/json;q=0.5, application/x-ndjson", "application/x-ndjson"),
        ("image/png", "application/json"),
        ("application/octet-stream;q=0.1, */*;q=x", "application/octet-stream"),
    ],
)
def test_what_is_accepted_decides_the_form(v1: V1, wanted: str, media: str) -> None:
    v1.store("orders", "a")
    assert accept(v1, wanted).headers["content-type"] == media


def test_a_topic_is_read_without_a_subscription(v1: V1) -> None:
    v1.store("orders", "a", "b", "c")
    read = v1.ok("GET", "/topics/orders/messages", params={"position": 1, "limit": 1})
    assert (values_of(read), read["position"], read["next_position"], read["first_offset"]) == (["b"], 1, 2, 0)
    assert values_of(v1.ok("GET", "/topics/orders/messages", params={"position": "new"})) == []
    assert v1.ok("GET", PATH)["acked"] == 0
    assert v1.refused("GET", "/topics/orders/messages", params={"topic_id": 1}) == "TOPIC_GONE"
    assert v1.refused("GET", "/topics/orders/messages", params={"position": 9}) == "OFFSET_OUT_OF_RANGE"


# Waiting.


@pytest.mark.parametrize("path", [MESSAGES, "/topics/orders/messages"])
def test_a_get_waits_for_a_message(v1: V1, path: str) -> None:
    async def both() -> Json:
        waiting = asyncio.ensure_future(v1.client.get(f"/v1{path}?wait_ms=30000"))
        await eventually(lambda: _parked(v1) == 1)
        await v1.client.post("/v1/topics/orders/messages", content=b"late")
        return dict((await waiting).json())

    assert values_of(v1.run(both())) == ["late"]


def test_a_long_wait_is_asked_for_again_and_again(v1: V1, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "WAIT_SLICE_MS", 10)
    asked: list[Any] = []
    ask = link.Link.ask

    async def counting(self: link.Link, command: Any, payload: Any = None) -> Any:
        asked.append(command)
        return await ask(self, command, payload)

    monkeypatch.setattr(link.Link, "ask", counting)

    async def both() -> Json:
        waiting = asyncio.ensure_future(v1.client.get(f"/v1{MESSAGES}?wait_ms=30000"))
        await eventually(lambda: len([each for each in asked if isinstance(each, Get)]) >= 3)
        await v1.client.post("/v1/topics/orders/messages", content=b"late")
        return dict((await waiting).json())

    assert values_of(v1.run(both())) == ["late"]


def test_two_callers_who_wait_for_the_same_messages_do_not_spin(v1: V1) -> None:
    async def both() -> list[Json]:
        replies = await asyncio.gather(*(v1.client.get(f"/v1{MESSAGES}?wait_ms=600") for _ in range(2)))
        return [reply.json() for reply in replies]

    assert [reply["messages"] for reply in v1.run(both())] == [[], []]


def test_a_get_that_waits_in_vain_ends(v1: V1) -> None:
    got = get(v1, wait_ms=1)
    assert (got["messages"], got["next_position"]) == ([], 0)


@pytest.mark.parametrize("path", [MESSAGES, "/topics/orders/messages"])
def test_a_caller_that_goes_while_it_waits_leaves_nothing_behind(v1: V1, path: str) -> None:
    async def visit() -> None:
        async with Visit(v1, f"/v1{path}", "wait_ms=60000") as visit:
            await eventually(lambda: _parked(v1) == 1)
            await visit.leave()
            assert visit.status == 0
        await eventually(lambda: _parked(v1) == 0)

    v1.run(visit())


def test_who_waits_is_told_when_the_gateway_stops(v1: V1) -> None:
    async def visit() -> None:
        async with Visit(v1, f"/v1{MESSAGES}", "wait_ms=60000") as visit:
            await eventually(lambda: _parked(v1) == 1)
            v1.app.stop()
            await visit.until(lambda text: "STOPPING" in text)
            assert visit.status == 503

    v1.run(visit())


def _parked(v1: V1) -> int:
    sessions = v1.app._link._poll_sessions if v1.app._link is not None else []
    return sum(len(session.driver().core._commands.unnumbered) for session in sessions)
