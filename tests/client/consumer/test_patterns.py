"""Subscriptions by pattern through the client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncemq
from oncemq.protocol import errors


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory:{tmp_path.name}"


@pytest.fixture
def client(url: str) -> Iterator[oncemq.Client]:
    with oncemq.connect(url) as client:
        yield client


def put(client: oncemq.Client, topic: str, *values: str) -> None:
    client.put_many(topic, values, create=True)


def lags(client: oncemq.Client) -> dict[str, int]:
    return {info.topic: info.lag for info in client.subscriptions()}


def test_topics_that_match_and_will_match_are_delivered_in_their_order(client: oncemq.Client) -> None:
    put(client, "orders.eu", "before")
    audit = client.subscribe_pattern("orders.*", "audit")
    put(client, "orders.eu", "1", "2")
    put(client, "orders.us", "3")
    put(client, "orders.us.east", "another level")
    put(client, "invoices", "another topic")
    put(client, "orders.eu", "4")
    found: dict[str, list[str]] = defaultdict(list)
    for message in audit.messages(timeout_s=0.05):
        found[message.topic].append(message.text)
    assert found == {"orders.eu": ["1", "2", "4"], "orders.us": ["3"]}
    audit.close()
    assert lags(client) == {"orders.eu": 0, "orders.us": 0}


def test_what_was_not_acked_comes_again(client: oncemq.Client) -> None:
    with client.subscribe_pattern("orders.#", "audit", auto_ack=False) as audit:
        put(client, "orders", "a", "b")
        put(client, "orders.eu", "c")
        messages = audit.get_many(10, timeout_s=1) + audit.get_many(10)
        assert sorted(message.text for message in messages) == ["a", "b", "c"]
        audit.ack(next(message for message in messages if message.text == "a"), wait=True)
    again = client.pattern_subscription("orders.#", "audit")
    assert sorted(message.text for message in again.messages(timeout_s=0.05)) == ["b", "c"]


def test_a_second_owner_fences_the_first(client: oncemq.Client, url: str) -> None:
    first = client.subscribe_pattern("orders.*", "audit")
    put(client, "orders.eu", "1", "2")
    assert first.get() is not None
    with oncemq.connect(url) as other:
        second = other.pattern_subscription("orders.*", "audit")
        assert second.get() is not None
        with pytest.raises(oncemq.Fenced):
            list(first.messages(timeout_s=1))


def test_a_busy_topic_does_not_starve_the_others(client: oncemq.Client) -> None:
    audit = client.subscribe_pattern("orders.*", "audit", prefetch_bytes=64 * 1024)
    for _ in range(20):
        client.put_many("orders.busy", [bytes(1000)] * 50, create=True)
    for number in range(8):
        put(client, f"orders.{number}", "quiet")
    seen: list[str] = []
    for message in audit.messages(timeout_s=0.05):
        seen.append(message.topic)
    last_quiet = max(place for place, topic in enumerate(seen) if topic != "orders.busy")
    assert len(seen) == 1008
    assert last_quiet < 900


def test_a_seek_moves_all_topics(client: oncemq.Client, url: str) -> None:
    for topic in ("orders.eu", "orders.us"):
        client.create_topic(topic, retain_ms=10**9)
    audit = client.subscribe_pattern("orders.*", "audit")
    put(client, "orders.eu", "1")
    put(client, "orders.us", "2")
    assert len(list(audit.messages(timeout_s=0.05))) == 2
    with oncemq.connect(url) as operator:
        operator.seek("orders.*", "audit", "earliest")
    assert sorted(message.text for message in audit.messages(timeout_s=0.05)) == ["1", "2"]
    audit.seek("new")
    assert audit.get(timeout_s=0.02) is None


def test_it_takes_part_in_a_transaction(client: oncemq.Client) -> None:
    client.create_topic("all", retain_ms=10**9)
    audit = client.subscribe_pattern("orders.*", "audit", auto_ack=False)
    put(client, "orders.eu", "1", "2")
    put(client, "orders.us", "3")
    with pytest.raises(KeyError), client.transaction() as transaction:
        audit.get_many(10, timeout_s=1)
        transaction.ack(audit)
        raise KeyError
    done = 0
    while done < 3:
        with client.transaction() as transaction:
            for message in audit.get_many(10, timeout_s=1):
                transaction.put("all", message.value)
                transaction.ack(audit, message)
                done += 1
    assert sorted(message.text for message in client.read("all")) == ["1", "2", "3"]
    assert lags(client) == {"orders.eu": 0, "orders.us": 0}


def test_headers_filter_and_the_rest_counts_as_done(client: oncemq.Client) -> None:
    audit = client.subscribe_pattern("orders.*", "audit", filter={"kind": "big"})
    for number in range(6):
        client.put(f"orders.{number % 2}", str(number), headers={"kind": "big" if number % 3 else "small"}, create=True)
    assert sorted(message.text for message in audit.messages(timeout_s=0.05)) == ["1", "2", "4", "5"]
    audit.close()
    assert lags(client) == {"orders.0": 0, "orders.1": 0}


def test_a_topic_that_is_deleted_meanwhile_hurts_nobody(client: oncemq.Client) -> None:
    audit = client.subscribe_pattern("orders.*", "audit")
    put(client, "orders.eu", "1")
    assert audit.get(timeout_s=1) is not None
    client.delete_topic("orders.eu")
    put(client, "orders.us", "2")
    message = audit.get(timeout_s=1)
    assert message is not None
    assert message.text == "2"


def test_unsubscribing_ends_it_everywhere(client: oncemq.Client) -> None:
    audit = client.subscribe_pattern("orders.*", "audit")
    put(client, "orders.eu", "1")
    client.unsubscribe("orders.*", "audit")
    assert client.subscriptions() == []
    with pytest.raises(errors.NotSubscribed):
        audit.get(timeout_s=1)


def test_topic_names_and_patterns_are_distinguished(client: oncemq.Client) -> None:
    with pytest.raises(errors.NameInvalid, match="subscribe_pattern"):
        client.subscribe("orders.*", "audit")
    with pytest.raises(errors.NameInvalid, match="use subscribe"):
        client.subscribe_pattern("orders", "audit")
    with pytest.raises(errors.NameInvalid, match="whole levels"):
        client.subscribe_pattern("ord*", "audit")


def test_a_clean_close_leaves_no_ack_behind(client: oncemq.Client) -> None:
    """An ack may travel with a get that is dropped with the subscription."""
    audit = client.subscribe_pattern("orders.*", "audit")
    put(client, "orders.eu", "1")
    assert audit.get(timeout_s=1) is not None
    audit.consumer._finish_delivered()
    audit.consumer.session.send_get(60_000)
    audit.close()
    assert lags(client) == {"orders.eu": 0}


def test_acks_that_were_promised_survive_a_close_after_an_unknown_outcome(client: oncemq.Client) -> None:
    audit = client.subscribe_pattern("orders.*", "audit", auto_ack=False)
    put(client, "orders.eu", "1", "2")
    message = audit.get(timeout_s=1)
    audit.ack(message)
    # A second transaction may fail before the subscription is opened again.
    audit.consumer.session.reopen()
    audit.consumer.session.reopen()
    audit.close()
    assert lags(client) == {"orders.eu": 1}
