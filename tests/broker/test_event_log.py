"""The lines of the broker's log about what clients do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import oncemq
from oncemq.broker.event_log import log_lines
from oncemq.protocol import commands, errors
from tests.engine.world import World


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "oncemq.broker")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in log.records if record.name == "oncemq.broker"]
    log.clear()
    return [line for line in found if not line.startswith("recovered ")]


def test_new_and_deleted_topics_and_subscriptions_are_logged_once(log: pytest.LogCaptureFixture) -> None:
    with oncemq.connect("memory:") as client:
        client.create_topic("orders")
        client.create_topic("orders")
        client.subscribe("orders", "kitchen")
        client.subscribe("orders", "kitchen")
        client.put("orders", "one pizza")
        client.put("Cooking Recipes", "pancakes", create=True)
        client.subscribe("news", "alice")
        client.unsubscribe("news", "alice")
        client.unsubscribe("orders", "kitchen")
        client.delete_topic("orders")
    assert lines(log) == [
        "created new topic 'orders'",
        "new subscriber 'kitchen' to topic 'orders', from offset 0 on",
        "created new topic 'Cooking Recipes'",
        "created new topic 'news'",
        "new subscriber 'alice' to topic 'news', from offset 0 on",
        "'alice' unsubscribed from topic 'news'",
        "deleted topic 'news': it was the last subscriber's",
        "'kitchen' unsubscribed from topic 'orders'",
        "deleted topic 'orders'",
    ]


def test_patterns_and_transactions_are_logged(log: pytest.LogCaptureFixture) -> None:
    with oncemq.connect("memory:") as client:
        client.subscribe_pattern("orders.*", "audit")
        with client.transaction() as transaction:
            transaction.put("orders.eu", "one pizza", create=True)
        client.unsubscribe("orders.*", "audit")
    assert lines(log) == [
        "new subscriber 'audit' to topics like 'orders.*'",
        "created new topic 'orders.eu'",
        "'audit' unsubscribed from topics like 'orders.*'",
    ]


def test_a_take_over_and_the_client_that_it_fences_are_logged(log: pytest.LogCaptureFixture) -> None:
    first = oncemq.connect("memory:news", name="billing")
    second = oncemq.connect("memory:news", name="billing")
    with pytest.raises(errors.Fenced):
        first.create_topic("orders")
    second.close()
    [taken_over, fenced] = lines(log)
    assert taken_over.startswith("session 'billing' was taken over by its next client")
    assert fenced == "a client was fenced off: another client took over 'billing'"


def test_an_outbox_that_is_opened_again_is_not_logged(log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    log.set_level(logging.DEBUG, "oncemq.broker")
    with oncemq.connect("memory:outboxes"):
        for _ in range(2):
            with oncemq.connect("memory:outboxes", outbox=tmp_path / "orders.outbox") as client:
                client.put("orders", "one pizza", create=True)
                client.flush(timeout_s=30)
    told = [(record.levelname, record.getMessage()) for record in log.records if record.name == "oncemq.broker"]
    assert ("INFO", "created new topic 'orders'") in told
    assert [level for level, line in told if "taken over" in line or "took over" in line] == ["DEBUG", "DEBUG"]


def test_a_subscription_that_is_deleted_because_its_owner_is_idle_is_logged() -> None:
    world = World()
    world.do(commands.CreateTopic("orders"))
    for topic in ("orders", "visits", "*"):
        world.do(commands.Subscribe(topic, "guest", commands.START_NEW, None, 1_000))
    world.tick()
    said = [line for event in world.tick(1_000) for line in log_lines(world.engine.state, event)]
    assert {line.removesuffix(": its owner was idle for too long") for line in said} == {
        "deleted the subscription of 'guest' to topic 'orders'",
        "deleted the subscription of 'guest', and its topic",
        "deleted the subscription of 'guest' to topics like '*'",
    }
