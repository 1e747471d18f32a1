"""The size of a range of messages, which a reader learns without reading them."""

from __future__ import annotations

import pytest

from oncemq.engine.state.batch_index import BatchIndex
from oncemq.protocol import commands, replies
from tests.engine.world import World, code, put


class Measurable(World):
    """Four batches of two messages, one batch per second."""

    def __init__(self) -> None:
        super().__init__()
        self.do(commands.CreateTopic("orders", retain_bytes=1_000_000))
        self.do(commands.Subscribe("orders", "a"))
        for _ in range(4):
            self.do(put(count=2))
            self.now_ms += 1_000
        self.batch_bytes = self.topic_of().index.sizes[0]

    def measure(self, start: int, stop: int, part_bytes: int = 0, topic_id: int = 0) -> replies.MeasureReply:
        reply = self.send(commands.Measure("orders", start, stop, part_bytes, topic_id)).reply
        assert isinstance(reply, replies.MeasureReply)
        return reply


@pytest.mark.parametrize(
    ("start", "stop", "halves"), [(0, 8, 8), (0, 1, 1), (1, 2, 1), (1, 7, 6), (3, 5, 2), (0, 99, 8)]
)
def test_a_part_of_a_batch_counts_in_proportion(start: int, stop: int, halves: int) -> None:
    world = Measurable()
    found = world.measure(start, stop)
    assert abs(found.bytes - world.batch_bytes * halves / 2) < 2
    assert found.next_position == stop
    assert found.time_ms == world.topic_of().index.times[start // 2]


def test_parts_end_with_batches_and_are_large_enough() -> None:
    world = Measurable()
    size = world.batch_bytes
    assert world.measure(0, 8, size).parts == ((2, size), (4, size), (6, size), (8, size))
    assert world.measure(0, 8, size + 1).parts == ((4, 2 * size), (8, 2 * size))
    assert world.measure(0, 8, 3 * size).parts == ((6, 3 * size),), "the rest is too small"
    assert world.measure(1, 5, 1).parts == ((2, size // 2), (4, size), (5, size // 2))
    assert world.measure(0, 8, 9 * size).parts == ()


def test_what_is_not_stored_counts_as_nothing() -> None:
    world = Measurable()
    world.get(world.open("orders", "a"), "a", ack=4)
    world.do(commands.CreateTopic("orders", alter=True))
    assert world.topic_of().index.first == 4
    assert world.measure(0, 4) == replies.MeasureReply(1, 4, 0, 0)
    assert world.measure(8, 20) == replies.MeasureReply(1, 20, 0, 0)
    assert world.measure(0, 8).bytes == 2 * world.batch_bytes


def test_a_range_of_another_topic_is_refused() -> None:
    world = Measurable()
    assert code(world.send(commands.Measure("nowhere", 0, 1)).reply) == "TOPIC_UNKNOWN"
    assert code(world.send(commands.Measure("orders", 0, 1, 0, 99)).reply) == "TOPIC_GONE"
    assert code(world.send(commands.Measure("orders", 0, 1, -1)).reply) == "MALFORMED"


def test_a_long_range_is_measured_in_several_steps() -> None:
    index = BatchIndex()
    for _ in range(10):
        index.add(3, 0, 100, 0, 1_000)
    found = index.measure(1, 30, 4)
    assert (found.stop, found.bytes) == (12, 366)
    assert index.measure(12, 30, 6).stop == 30
    assert found.divide(100, 2) == ((6, 166), (9, 100))
