"""Batches that are no batches: the broker refuses them, and consumers get past those that are stored nevertheless."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import oncemq
from oncemq.client.runtime.rpc import wait_for_reply
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import Envelope, Operation, Put, Stage, Transact
from oncemq.protocol.replies import Reply

GOOD = encode_batch([b"x"], headers=[{"a": b"b"}])
#: Its head is right, and its headers are not.
BAD = GOOD[:-8] + b"\xff" * 4 + GOOD[-4:]


@pytest.fixture
def client() -> Iterator[oncemq.Client]:
    with oncemq.connect("memory:") as client:
        yield client


def send(client: oncemq.Client, operation: Operation, *payloads: bytes) -> Reply:
    driver = client._driver
    return driver.run(wait_for_reply(driver, driver.core.submit(operation, payloads)))


def envelope(payload: bytes, count: int = 1) -> Envelope:
    return Envelope(count, len(payload), checksum(payload))


_MALFORMED = {
    "text": (b"not a batch at all, but long enough for a head", 1),
    "nothing": (b"", 1),
    "short": (encode_batch([b"x"])[:-1], 1),
    "long": (encode_batch([b"x"]) + bytes(8), 1),
    "another count": (encode_batch([b"x", b"y"]), 1),
    "no messages": (encode_batch([]), 0),
    "first offset": (encode_batch([b"x" * 8, b"y"])[:24] + b"\x01" + encode_batch([b"x" * 8, b"y"])[25:], 2),
    "last offset": (encode_batch([b"x"])[:28] + b"\x02" + encode_batch([b"x"])[29:], 1),
}


@pytest.mark.parametrize(("payload", "count"), _MALFORMED.values(), ids=_MALFORMED)
def test_a_put_of_something_else_is_refused(client: oncemq.Client, payload: bytes, count: int) -> None:
    client.subscribe("t", "s")
    with pytest.raises(errors.Refused) as caught:
        send(client, Put("t", envelope(payload, count)), payload)
    assert caught.value.code == "MALFORMED"
    assert client.put("t", b"next").offset == 0


def test_every_kind_of_put_is_checked(client: oncemq.Client) -> None:
    client.subscribe("t", "s")
    bad = b"\x01" * 40
    good = encode_batch([b"x"])
    puts = (Put("t", envelope(good)), Put("t", envelope(bad)))
    for operation, payloads in (
        (Transact(puts=puts), (good, bad)),
        (Stage("stage", "t", "writer", 1, envelope(bad)), (bad,)),
        (Put("t", Envelope(1, len(bad), checksum(bad), due_ms=int(time.time() * 1000) + 60_000)), (bad,)),
    ):
        with pytest.raises(errors.Refused) as caught:
            send(client, operation, *payloads)
        assert caught.value.code == "MALFORMED", operation
    assert client.put("t", b"next").offset == 0


def test_a_consumer_is_told_what_can_not_be_decoded_and_how_to_skip_it(client: oncemq.Client) -> None:
    subscription = client.subscribe("t", "s", auto_ack=False)
    send(client, Put("t", envelope(BAD)), BAD)
    client.put("t", b"behind")
    for _ in range(2):
        with pytest.raises(errors.Undecodable, match=r"^offset 0 of 't' can't be decoded: .* ack offset 0, .* to 1$"):
            subscription.get(timeout_s=0)
    subscription.ack(0)
    message = subscription.get(timeout_s=0)
    assert message is not None
    assert message.value == b"behind"


def test_after_a_seek_a_consumer_continues_behind_what_can_not_be_decoded(client: oncemq.Client) -> None:
    subscription = client.subscribe("t", "s")
    send(client, Put("t", envelope(BAD)), BAD)
    client.put("t", b"behind")
    with pytest.raises(errors.Undecodable):
        subscription.get(timeout_s=0)
    client.seek("t", "s", 1)
    assert [message.value for message in subscription.messages(timeout_s=0)] == [b"behind"]


def test_a_batch_that_no_worker_can_decode_becomes_one_dead_letter(client: oncemq.Client) -> None:
    two = encode_batch([b"x", b"y"], headers=[{"a": b"b"}, {"a": b"b"}])
    bad = two[:-16] + b"\xff" * 12 + two[-4:]
    workers = client.subscribe_shared("t", "s", tries_max=2, dead_topic="dead", lease_s=0.1)
    send(client, Put("t", envelope(bad, 2)), bad)
    client.put("t", b"behind")
    errors_seen = 0
    values: list[bytes] = []
    until_s = time.monotonic() + 20
    while not values or not client.dead_letters("dead"):
        assert time.monotonic() < until_s
        try:
            tasks = workers.take_many(10, timeout_s=0.05)
        except errors.Undecodable:
            errors_seen += 1
            continue
        for task in tasks:
            values.append(task.value)
            task.ack()
    assert values == [b"behind"]
    assert errors_seen == 1
    [letter] = client.dead_letters("dead")
    assert (letter.topic, letter.offset, letter.value) == ("t", 0, bad)
    assert "can't be decoded" in letter.reason
    workers.flush()
    assert client.subscriptions("t")[0].acked == 3
