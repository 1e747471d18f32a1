"""Delays, time to live, seek, filters and quotas through the client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import oncemq
from oncemq.protocol import errors


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/data"


@pytest.fixture
def client(url: str) -> Iterator[oncemq.Client]:
    with oncemq.connect(url, timeout_s=0.2, tries=2) as client:
        yield client


def texts(subscription: oncemq.Subscription, timeout_s: float = 0.0) -> list[str]:
    return [message.text for message in subscription.messages(timeout_s=timeout_s)]


# Times.


def test_a_delayed_message_is_delivered_later_and_survives_a_restart(client: oncemq.Client, url: str) -> None:
    kitchen = client.subscribe("orders", "kitchen")
    receipt = client.put("orders", "later", delay_s=0.4)
    client.put("orders", "now")
    assert receipt.offset == -1
    assert texts(kitchen) == ["now"]
    client.close()
    with oncemq.connect(url) as another:
        assert [topic.delayed for topic in another.topics()] == [1]
        message = another.subscription("orders", "kitchen").get(timeout_s=30)
        assert message is not None
        assert (message.text, message.offset) == ("later", 1)


def test_an_expired_message_is_not_delivered(client: oncemq.Client) -> None:
    client.create_topic("orders", retain_ms=10**9)
    kitchen = client.subscribe("orders", "kitchen")
    client.put("orders", "short", ttl_s=0.001)
    client.put("orders", "long", ttl_s=3600)
    time.sleep(0.005)
    deadline = time.monotonic() + 10
    while client.subscriptions("orders")[0].acked == 0 and time.monotonic() < deadline:
        # The broker records expiry as an event, with its next check.
        if texts(kitchen) == ["long"]:
            break
    else:
        pytest.fail("it did not expire")
    assert [message.text for message in client.read("orders")] == ["short", "long"]


def test_put_nowait_has_times_too(client: oncemq.Client) -> None:
    kitchen = client.subscribe("orders", "kitchen")
    handles = [client.put_nowait("orders", "a"), client.put_nowait("orders", "b", delay_s=0.05)]
    handles.append(client.put_nowait("orders", "c", ttl_s=3600))
    client.flush()
    assert handles[0].result().offset == 0
    assert sorted(texts(kitchen, timeout_s=0.5)) == ["a", "b", "c"]
    client.put_many("orders", ["d", "e"], delay_s=0.01, ttl_s=3600)
    assert texts(kitchen, timeout_s=0.5) == ["d", "e"]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_an_invalid_time_is_refused(client: oncemq.Client, seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        client.put("orders", "x", ttl_s=seconds, create=True)


# Seeking.


@pytest.fixture
def replay(client: oncemq.Client) -> oncemq.Subscription:
    client.create_topic("orders", retain_ms=10**9)
    subscription = client.subscribe("orders", "kitchen")
    client.put_many("orders", [str(number) for number in range(10)])
    assert len(texts(subscription)) == 10
    return subscription


def test_a_subscription_can_be_moved_back_and_forth(client: oncemq.Client, replay: oncemq.Subscription) -> None:
    assert replay.seek(7) == 7
    assert texts(replay) == ["7", "8", "9"]
    assert replay.seek("earliest") == 0
    assert replay.get(timeout_s=1).text == "0"  # type: ignore[union-attr]
    assert replay.seek("new") == 10
    assert texts(replay) == []
    with pytest.raises(errors.OffsetOutOfRange):
        replay.seek(11)
    client.put("orders", "10")
    assert texts(replay) == ["10"]


def test_seek_to_a_time_finds_the_first_message_since_then(client: oncemq.Client, replay: oncemq.Subscription) -> None:
    deadline = time.monotonic() + 5
    first_ms = client.put("orders", "tick").timestamp_ms
    while (second := client.put("orders", "tock")).timestamp_ms == first_ms and time.monotonic() < deadline:
        pass
    moment = datetime.fromtimestamp(second.timestamp_ms / 1000, UTC)
    assert replay.seek(moment) == second.offset == client.find("orders", moment)
    assert texts(replay) == ["tock"]
    assert next(iter(client.read("orders", start=moment))).offset == second.offset
    assert client.find("orders", datetime(2100, 1, 1, tzinfo=UTC)) == second.offset + 1


def test_a_consumer_continues_where_another_client_sought(client: oncemq.Client, replay: oncemq.Subscription) -> None:
    client.put("orders", "10")
    in_hand = replay.get(timeout_s=1)
    assert in_hand is not None
    client.seek("orders", "kitchen", 8)
    found = texts(replay, timeout_s=0.05)
    assert found[-3:] == ["8", "9", "10"]
    replay.close()
    assert client.subscriptions("orders")[0].acked == 11


def test_an_ack_of_a_message_from_before_the_seek_does_not_undo_it(client: oncemq.Client) -> None:
    client.create_topic("orders", retain_ms=10**9)
    kitchen = client.subscribe("orders", "kitchen", auto_ack=False)
    client.put_many("orders", ["0", "1", "2"])
    messages = kitchen.get_many(10, timeout_s=1)
    client.seek("orders", "kitchen", "earliest")
    kitchen.ack(messages[2], wait=True)
    kitchen.ack(messages[2], wait=True)
    assert client.subscriptions("orders")[0].acked == 0
    assert [message.text for message in kitchen.get_many(10, timeout_s=1)] == ["0", "1", "2"]


# Filters.


def test_a_filter_skips_other_messages_and_acks_them(client: oncemq.Client) -> None:
    kitchen = client.subscribe("orders", "kitchen", filter={"for": ["kitchen", "all"]})
    for number, whom in enumerate(["kitchen", "bar", "all", "bar", "bar"]):
        client.put("orders", str(number), headers={"for": whom})
    client.put("orders", "no headers")
    assert texts(kitchen) == ["0", "2"]
    kitchen.close()
    assert client.subscriptions("orders")[0].lag == 0


def test_a_filter_may_be_a_function(client: oncemq.Client) -> None:
    kitchen = client.subscribe("orders", "kitchen", filter=lambda message: message.value > b"5")
    client.put_many("orders", [str(number) for number in range(10)])
    assert texts(kitchen) == ["6", "7", "8", "9"]
    with pytest.raises(TypeError, match="filter"):
        client.subscribe("orders", "bar", filter=5)  # type: ignore[arg-type]


def test_skipped_messages_do_not_ack_the_message_before_them(client: oncemq.Client) -> None:
    kitchen = client.subscribe("orders", "kitchen", filter={"for": "kitchen"})
    client.put("orders", "wanted", headers={"for": "kitchen"})
    client.put_many("orders", ["not wanted"] * 5)
    assert kitchen.get(timeout_s=1) is not None
    kitchen._driver.run(kitchen.consumer.close(clean=False))
    message = client.subscription("orders", "kitchen").get(timeout_s=1)
    assert message is not None
    assert message.text == "wanted"


# Quotas.


def test_a_full_topic_refuses_puts_until_there_is_space(client: oncemq.Client) -> None:
    client.create_topic("orders", quota_bytes=4000)
    kitchen = client.subscribe("orders", "kitchen")
    client.put_many("orders", [bytes(1000)] * 3)
    with pytest.raises(errors.TopicFull):
        client.put("orders", bytes(1000))
    assert len(list(kitchen.messages(timeout_s=0))) == 3
    kitchen.close()
    assert client.put("orders", bytes(1000)).offset == 3


def test_a_topic_may_drop_its_oldest_messages_and_counts_them(client: oncemq.Client) -> None:
    with pytest.raises(ValueError, match="'refuse', 'drop' or 'expire'"):
        client.create_topic("orders", quota_bytes=4000, overflow="dorp")  # type: ignore[arg-type]
    client.create_topic("orders", quota_bytes=4000, overflow="drop")
    kitchen = client.subscribe("orders", "kitchen")
    for number in range(10):
        client.put("orders", bytes(1000) + str(number).encode())
    found = [message.value[1000:] for message in kitchen.messages(timeout_s=0)]
    assert found == [b"7", b"8", b"9"]
    assert kitchen.dropped == 7
    assert client.subscriptions("orders")[0].dropped == 7


def test_a_slow_subscription_may_be_deleted_and_its_consumer_gets_an_error(client: oncemq.Client) -> None:
    client.create_topic("orders", quota_bytes=4000, overflow="expire")
    slow = client.subscribe("orders", "slow")
    for number in range(6):
        client.put("orders", bytes(1000) + str(number).encode())
    with pytest.raises(errors.SubscriptionExpired):
        slow.get(timeout_s=1)
    assert client.subscribe("orders", "slow").get() is None


def test_settings_of_a_topic_can_be_changed(client: oncemq.Client) -> None:
    client.create_topic("orders", quota_bytes=4000)
    with pytest.raises(errors.TopicExists):
        client.create_topic("orders", quota_bytes=8000)
    assert client.create_topic("orders", quota_bytes=8000, alter=True) is False
    assert client.topics()[0].quota_bytes == 8000


def test_a_seek_does_not_make_a_former_owner_the_owner_again(client: oncemq.Client, url: str) -> None:
    client.create_topic("orders", retain_ms=10**9)
    first = client.subscribe("orders", "kitchen")
    client.put_many("orders", ["0", "1", "2"])
    assert first.get(timeout_s=1) is not None
    client.seek("orders", "kitchen", 1)
    client.seek("orders", "kitchen", "earliest")
    with oncemq.connect(url) as other:
        second = other.subscription("orders", "kitchen")
        assert second.get(timeout_s=1) is not None
        with pytest.raises(oncemq.Fenced):
            list(first.messages(timeout_s=0.1))
        assert [message.text for message in second.messages(timeout_s=0.05)] == ["1", "2"]


def test_an_owner_continues_after_any_number_of_seeks(client: oncemq.Client) -> None:
    client.create_topic("orders", retain_ms=10**9)
    kitchen = client.subscribe("orders", "kitchen")
    client.put_many("orders", ["0", "1", "2"])
    assert texts(kitchen) == ["0", "1", "2"]
    for position in (2, 1):
        client.seek("orders", "kitchen", position)
    assert texts(kitchen) == ["1", "2"]


@pytest.mark.parametrize("topic", ["orders", "orders.*"])
def test_skipped_batches_do_not_ack_the_messages_before_them(client: oncemq.Client, topic: str) -> None:
    """Of three batches, only the first has messages that pass the filter. One call filters all of them."""
    client.create_topic("orders.eu" if "*" in topic else "orders")
    where = "orders.eu" if "*" in topic else "orders"
    wanted = {"for": "kitchen"}
    if "*" in topic:
        kitchen: oncemq.Subscription | oncemq.PatternSubscription = client.subscribe_pattern(
            topic, "kitchen", filter=wanted
        )
    else:
        kitchen = client.subscribe(topic, "kitchen", filter=wanted)
    client.put(where, "wanted", headers=wanted)
    for _ in range(3):
        client.put_many(where, ["not wanted"] * 300)
    found: list[oncemq.Message] = []
    while not found:
        found = kitchen.get_many(1000, timeout_s=1)
    assert [message.text for message in found] == ["wanted"]
    client._driver.run(kitchen.consumer.close(clean=False))
    assert client.subscriptions(where)[0].acked == 0
    again = client.pattern_subscription(topic, "kitchen") if "*" in topic else client.subscription(topic, "kitchen")
    message = again.get(timeout_s=1)
    assert message is not None
    assert message.text == "wanted"


@pytest.mark.parametrize("by_pattern", [False, True])
def test_a_filter_that_fails_loses_nothing(client: oncemq.Client, by_pattern: bool) -> None:
    is_broken = True

    def wanted(message: oncemq.Message) -> bool:
        if is_broken and message.text == "poison":
            raise KeyError("poison")
        return True

    client.create_topic("orders.eu")
    if by_pattern:
        kitchen: oncemq.Subscription | oncemq.PatternSubscription = client.subscribe_pattern(
            "orders.*", "kitchen", filter=wanted
        )
    else:
        kitchen = client.subscribe("orders.eu", "kitchen", filter=wanted)
    for values in (["a"] * 300, ["b", "poison", "c"]):
        client.put_many("orders.eu", values)
    with pytest.raises(KeyError):
        for _ in range(3):
            kitchen.get_many(1000, timeout_s=1)
    is_broken = False
    found = [message.text for message in kitchen.messages(timeout_s=0.05)]
    assert found[-3:] == ["b", "poison", "c"]
