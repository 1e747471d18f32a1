"""Stored messages that can't be decoded, over HTTP."""

from __future__ import annotations

import msgspec
import pytest

import oncemq
from oncemq.protocol.batch import encode_batch
from oncemq.protocol.commands import Put
from tests.client.test_undecodable import BAD, envelope, send
from tests.gateways.http.v1 import V1, v1

__all__ = ["v1"]

PATH = "/topics/orders/subscriptions/cooks"


def store_bad(v1: V1, payload: bytes = BAD, count: int = 1) -> None:
    with oncemq.connect(v1.broker) as client:
        send(client, Put("orders", envelope(payload, count)), payload)


@pytest.mark.parametrize("ack", [False, True])
def test_a_get_names_them_and_a_seek_or_an_ack_skips_them(v1: V1, ack: bool) -> None:
    v1.subscribe("orders", "cooks")
    store_bad(v1)
    v1.store("orders", "behind")
    response = v1.ask("GET", f"{PATH}/messages")
    assert response.json()["code"] == "UNDECODABLE"
    assert "offset 0 of 'orders'" in response.json()["detail"]
    if ack:
        v1.ok("POST", f"{PATH}/ack", {"upto": 1})
    else:
        v1.ok("POST", f"{PATH}/seek", {"to": 1})
    assert [message["value"] for message in v1.got("orders", "cooks")["messages"]] == ["behind"]


@pytest.mark.parametrize("bad_count", [1, 3])
def test_the_error_says_where_the_next_message_is_that_can_be_decoded(v1: V1, bad_count: int) -> None:
    headers, broken = {"a": b"b"}, b"\xc1" * 6
    batch = encode_batch([b"%d" % number for number in range(3)], headers=[headers] * 3)
    v1.ok("PUT", "/topics/orders", status=201)
    assert v1.post("/consumer/register", topic="orders", consumer_id="cooks").is_success
    store_bad(v1, batch.replace(msgspec.msgpack.encode(headers), broken, bad_count), 3)
    v1.store("orders", "3")
    consumed = v1.get("/consumer/consume", topic="orders", consumer_id="cooks")
    got = v1.ask("GET", f"{PATH}/messages", params={"limit": 1})
    for response in (consumed, got):
        assert response.json()["code"] == "UNDECODABLE"
        assert f"seek the subscription to {bad_count}" in response.text
    v1.ok("POST", f"{PATH}/seek", {"to": bad_count})
    assert v1.got("orders", "cooks", limit=1)["messages"][0]["value"] == str(bad_count)


def test_a_take_has_tasks_that_can_be_acked(v1: V1) -> None:
    v1.subscribe("orders", "cooks", sharing={"lease_ms": 60_000})
    store_bad(v1)
    v1.store("orders", "behind")
    taken = v1.ok("POST", f"{PATH}/take", {"member": "m", "number": 1, "count_max": 10})
    bad, good = taken["tasks"]
    assert "can't be decoded" in bad["error"]
    assert bad["idempotency_key"] == good["idempotency_key"].replace("-1", "-0")
    assert (good["value"], "error" in good) == ("behind", False)
    acked = v1.ok("POST", f"{PATH}/ack", {"token": taken["token"], "offsets": [0, 1]})
    assert acked["lost"] == []
