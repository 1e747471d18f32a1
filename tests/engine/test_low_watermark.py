"""The low watermark of a topic with many subscriptions is correct however they move."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemq.engine.state.low_watermark import SCAN_MAX
from oncemq.engine.state.topic import Subscription, Topic

END = 1_000


def a_topic() -> Topic:
    topic = Topic(1, "orders", True)
    topic.next_offset = END
    topic.update_low_watermark()
    return topic


def move_one(topic: Topic, rng: random.Random, most: int) -> None:
    name = f"{rng.randrange(most)}"
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        topic.add_subscription(name, rng.randint(0, END))
        return
    what = rng.random()
    if what < 0.1:
        topic.remove_subscription(name)
    elif what < 0.2:
        topic.seek(name, rng.randint(0, END))
    elif what < 0.25:
        floor = rng.randint(subscription.acked, END)
        topic.drop_needed(subscription, floor)
        topic.update_low_watermark()
    else:
        before = topic.low_watermark
        upto = rng.randint(subscription.acked, min(END, subscription.acked + 30))
        assert topic.ack(name, upto) == (topic.low_watermark != before)


@given(st.integers(0, 1_000_000), st.integers(1, 5 * SCAN_MAX))
def test_the_low_watermark_is_correct_after_every_move(seed: int, most: int) -> None:
    topic, rng = a_topic(), random.Random(seed)
    for _ in range(300):
        move_one(topic, rng, most)
        assert topic.low_watermark == min((entry.acked for entry in topic.subscriptions.values()), default=END)


def test_it_is_found_without_scanning_all_subscriptions() -> None:
    topic = a_topic()
    for number in range(1_000):
        topic.add_subscription(f"{number}", 100 + number % 800)
    topic.add_subscription("slow", 0)
    topic.ack("slow", 1)
    topic.subscriptions = counting = Counting(topic.subscriptions)
    for upto in range(2, 90):
        assert topic.ack("slow", upto)
    assert counting.looks < 1_000


class Counting(dict[str, Subscription]):
    """Counts accesses to subscriptions."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def values(self) -> Any:
        self.looks += len(self)
        return super().values()


@pytest.mark.parametrize("laggards", [0, 1])
def test_stale_heap_entries_do_not_accumulate(laggards: int) -> None:
    topic = a_topic()
    for number in range(20):
        topic.add_subscription(f"{number}", 100 * (number >= laggards))
    topic.update_low_watermark()
    for turn in range(500):
        topic.add_subscription("guest", 100 + turn % 7)
        topic.remove_subscription("guest")
        topic.seek("3", 100 + turn % 11)
        topic.update_low_watermark()
        assert topic._watermark is not None
        assert len(topic._watermark) <= 3 * 20
