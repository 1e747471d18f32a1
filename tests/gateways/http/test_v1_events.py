"""Server-sent events: what a browser sees, what it acks by coming back, and how a stream ends."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from oncemq.gateways.http.v1 import events
from tests.gateways.http.served import eventually
from tests.gateways.http.v1 import V1, Visit, v1

__all__ = ["v1"]

PATH = "/v1/topics/orders/subscriptions/kitchen"


@pytest.fixture(autouse=True)
def _subscription(v1: V1) -> None:
    v1.subscribe("orders", "kitchen")


def watch(v1: V1, do: Callable[[Visit], Awaitable[None]], query: str = "", seen: str = "") -> Visit:
    headers = {"last-event-id": seen} if seen else {}

    async def visiting() -> Visit:
        async with Visit(v1, f"{PATH}/events", query, headers) as visit:
            await do(visit)
        return visit

    return v1.run(visiting())


def seeing(*offsets: int) -> Callable[[Visit], Awaitable[None]]:
    async def see(visit: Visit) -> None:
        await eventually(lambda: visit.offsets == list(offsets))

    return see


async def being_sent_away(visit: Visit) -> None:
    await visit.serving
    assert (visit.status, visit.text) == (204, "")


def acked(v1: V1) -> int:
    return int(v1.ok("GET", "/topics/orders/subscriptions/kitchen")["acked"])


async def put(v1: V1, value: str) -> None:
    assert (await v1.client.post("/v1/topics/orders/messages", content=value.encode())).status_code == 201


def test_messages_are_sent_as_they_come(v1: V1) -> None:
    v1.store("orders", "a", "b")

    async def more(visit: Visit) -> None:
        await seeing(0, 1)(visit)
        await put(v1, "late")
        await seeing(0, 1, 2)(visit)

    visit = watch(v1, more)
    assert visit.status == 200
    data = [json.loads(line[6:]) for line in visit.text.splitlines() if line.startswith("data: ")]
    assert [(each["offset"], each["value"]) for each in data] == [(0, "a"), (1, "b"), (2, "late")]
    assert acked(v1) == 0


def test_a_browser_that_comes_back_gets_each_message_once(v1: V1) -> None:
    v1.store("orders", "a", "b", "c")
    ids = watch(v1, seeing(0, 1, 2)).ids
    # The reader has seen two of them before it lost its connection.
    watch(v1, seeing(2), seen=ids[2])
    assert acked(v1) == 2
    # The response was lost, and with it the newer id: the reader comes back with the old one.
    ids = watch(v1, seeing(2), seen=ids[2]).ids
    watch(v1, seeing(), seen=ids[-1])
    assert acked(v1) == 3


def test_what_was_seen_before_a_seek_is_not_acked_after_it(v1: V1) -> None:
    v1.subscribe("orders", "keeper")
    v1.store("orders", "a", "b", "c")
    ids = watch(v1, seeing(0, 1, 2)).ids
    v1.ok("POST", "/topics/orders/subscriptions/kitchen/seek", {"to": 0})
    for _ in range(2):
        watch(v1, seeing(0, 1, 2), seen=ids[-1])
        assert acked(v1) == 0

    async def seek(visit: Visit) -> None:
        await seeing(0, 1, 2)(visit)
        await v1.client.post(f"{PATH}/seek", json={"to": 1})
        await seeing(0, 1, 2, 1, 2)(visit)

    # The stream continues at the new position; a reader that does not know it acks nothing.
    ids = watch(v1, seek).ids
    watch(v1, seeing(1, 2), seen=ids[3])
    assert acked(v1) == 1


def test_what_was_seen_of_a_topic_that_was_made_again_is_not_acked(v1: V1) -> None:
    v1.store("orders", "a", "b")
    ids = watch(v1, seeing(0, 1)).ids
    epoch = int(ids[0].split("-")[1])
    v1.ok("DELETE", "/topics/orders", status=204)
    v1.subscribe("orders", "kitchen")
    v1.store("orders", "c", "d")
    watch(v1, seeing(0, 1), seen=ids[-1])
    assert acked(v1) == 0
    opened = v1.ok("POST", "/topics/orders/subscriptions/kitchen/open")
    watch(v1, seeing(0, 1), f"epoch={opened['epoch']}", seen=ids[-1])
    assert (acked(v1), opened["epoch"] > epoch) == (0, True)


def test_who_comes_back_to_a_stream_that_another_one_has_taken_is_sent_away(v1: V1) -> None:
    v1.store("orders", "a", "b")
    first = watch(v1, seeing(0, 1))
    second = watch(v1, seeing(0, 1))
    for seen in (first.ids[0], first.ids[-1]):
        watch(v1, being_sent_away, seen=seen)
    assert acked(v1) == 0
    watch(v1, seeing(1), seen=second.ids[1])
    watch(v1, being_sent_away, seen=first.ids[-1])


def test_what_was_sent_is_done_if_the_caller_says_so(v1: V1) -> None:
    v1.store("orders", "a", "b", "c")

    async def until_acked(_: Visit) -> None:
        while (await v1.client.get(PATH)).json()["acked"] < 3:
            pass

    watch(v1, until_acked, "ack=sent")


def test_a_stream_starts_where_it_is_told_to(v1: V1) -> None:
    v1.store("orders", "a", "b", "c")
    watch(v1, seeing(1, 2), "position=1")
    epoch = v1.ok("POST", "/topics/orders/subscriptions/kitchen/open")["epoch"]
    v1.ok("POST", "/topics/orders/subscriptions/kitchen/ack", {"upto": 2, "epoch": epoch})
    watch(v1, seeing(2), f"epoch={epoch}")


def test_a_quiet_stream_tells_the_next_offset(v1: V1, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_MS", 20)
    v1.store("orders", "a")

    async def quiet(visit: Visit) -> None:
        await visit.until(lambda text: text.count(": next offset 1\n\n") >= 4)

    assert watch(v1, quiet).offsets == [0]


def test_a_second_stream_takes_over_and_the_first_ends(v1: V1) -> None:
    async def second(first: Visit) -> None:
        await first.until(lambda text: "next offset" in text)
        async with Visit(v1, f"{PATH}/events") as visit:
            await first.until(lambda text: "event: problem" in text)
            await first.serving
            await put(v1, "a")
            await seeing(0)(visit)

    first = watch(v1, second)
    problem = json.loads(first.text.split("event: problem\ndata: ")[1])
    assert (problem["code"], problem["status"], first.offsets) == ("FENCED", 409, [])


def test_acks_without_an_epoch_do_not_disturb_a_stream(v1: V1) -> None:
    v1.store("orders", "a")

    async def ack(visit: Visit) -> None:
        await seeing(0)(visit)
        await v1.client.post(f"{PATH}/ack", json={"upto": 1})
        await put(v1, "b")
        await seeing(0, 1)(visit)

    watch(v1, ack)
    assert acked(v1) == 1


def test_two_streams_with_one_epoch_do_not_spin(v1: V1) -> None:
    epoch = v1.ok("POST", "/topics/orders/subscriptions/kitchen/open")["epoch"]

    async def second(first: Visit) -> None:
        async with Visit(v1, f"{PATH}/events", f"epoch={epoch}") as visit:
            await put(v1, "a")
            await seeing(0)(visit)
            await seeing(0)(first)

    watch(v1, second, f"epoch={epoch}")


def test_a_stream_follows_a_seek(v1: V1) -> None:
    v1.ok("PUT", "/topics/orders", {"retain_ms": 3_600_000})
    v1.store("orders", "a", "b")

    async def seek(visit: Visit) -> None:
        await seeing(0, 1)(visit)
        await v1.client.post(f"{PATH}/seek", json={"to": 1})
        await seeing(0, 1, 1)(visit)

    watch(v1, seek)


def test_a_stream_ends_when_its_topic_is_deleted(v1: V1) -> None:
    async def delete(visit: Visit) -> None:
        await visit.until(lambda text: "next offset" in text)
        await v1.client.delete("/v1/topics/orders")
        await visit.until(lambda text: '"code":"TOPIC_GONE"' in text)
        await visit.serving

    watch(v1, delete)


def test_a_stream_ends_when_the_gateway_stops(v1: V1) -> None:
    async def stop(visit: Visit) -> None:
        await visit.until(lambda text: "next offset" in text)
        v1.app.stop()
        await visit.serving

    assert "problem" not in watch(v1, stop).text


def test_a_stream_that_can_not_begin_is_refused_as_anything(v1: V1) -> None:
    path = "/topics/orders/subscriptions"
    assert v1.refused("GET", f"{path}/nobody/events") == "NOT_SUBSCRIBED"
    assert v1.refused("GET", f"{path}/kitchen/events", params={"position": 9}) == "OFFSET_OUT_OF_RANGE"
    assert v1.refused("GET", f"{path}/kitchen/events", headers={"last-event-id": "4"}) == "MALFORMED"
    assert v1.refused("GET", f"{path}/kitchen/events", params={"ack": "all"}) == "MALFORMED"


def test_many_streams_at_once_are_served(v1: V1) -> None:
    for number in range(100):
        v1.subscribe("orders", f"s{number}")

    async def all_of_them() -> None:
        visits = [Visit(v1, f"/v1/topics/orders/subscriptions/s{number}/events") for number in range(100)]
        for visit in visits:
            await visit.__aenter__()
        await put(v1, "a")
        for visit in visits:
            await seeing(0)(visit)
            await visit.leave()

    v1.run(all_of_them())
