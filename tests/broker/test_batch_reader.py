"""Batches that can't be read: what consumers are told, what they get, and what it costs."""

from __future__ import annotations

import logging

import pytest

from oncemq.broker.batch_reader import REPORT_EVERY_GETS
from oncemq.journal.files.layout import segment_path
from oncemq.protocol import commands, replies
from tests.broker.rig import GET_BYTES, Rig, code, expect, tasks
from tests.broker.test_housekeeping import EXTENT_BYTES, damage_batch, file_rig
from tests.simulation.environment.disk import SimDisk

#: Reads of a failing disk for one reply: few batches, each of them read several times.
FAILED_READS_MAX = 20


class PatternConsumer:
    """The owner of a subscription to all topics."""

    def __init__(self, rig: Rig, *topics: str) -> None:
        self._rig = rig
        rig.do(commands.Subscribe("#", "all", commands.START_EARLIEST))
        for topic in topics:
            rig.do(commands.CreateTopic(topic))
        self._epoch = expect(replies.OpenReply, rig.do(commands.Open("#", "all"))).epoch
        self._acks: tuple[tuple[int, int], ...] = ()

    def get(self, bytes_max: int = GET_BYTES) -> set[str] | str:
        """Return the topics of the messages, or why there are none. The messages are acked with the next get."""
        reply = self._rig.ask(commands.GetAny("#", "all", self._epoch, (), bytes_max, 0, self._acks))
        self._acks = ()
        if isinstance(reply, replies.Refusal):
            assert reply.code == "RECORD_CORRUPT"
            return reply.text.partition(":")[0]
        got = expect(replies.GetAnyReply, reply)
        self._acks = tuple((part.topic_id, part.next_position) for part in got.parts)
        return {part.topic for part in got.parts}


def _failed_reads(disk: SimDisk) -> int:
    return disk.faults["read failed"]


def _make_unreadable(disk: SimDisk) -> None:
    disk.unreadable.update(segment_path(int(name)) for name in disk.list("segments") if name.isdigit())


def test_a_get_from_a_failing_disk_makes_few_reads_and_names_the_first_batch() -> None:
    rig, disk = file_rig()
    owner = rig.subscribe()
    for number in range(50):
        rig.put(b"%d" % number)
    _make_unreadable(disk)
    refusal = expect(replies.Refusal, rig.ask(owner.get()))
    assert refusal.code == "RECORD_CORRUPT"
    assert refusal.text.startswith("offsets 0 to 0 are damaged")
    assert refusal.text.endswith(". The next offset is 1.")
    assert 0 < _failed_reads(disk) < FAILED_READS_MAX


def test_a_take_from_a_failing_disk_makes_few_reads() -> None:
    rig, disk = file_rig()
    workers = rig.share()
    for number in range(50):
        rig.put(b"%d" % number)
    _make_unreadable(disk)
    assert code(rig.ask(workers.take("a", count=50))) == "RECORD_CORRUPT"
    assert 0 < _failed_reads(disk) < FAILED_READS_MAX


def test_workers_get_everything_behind_any_number_of_batches_that_the_disk_fails_to_read() -> None:
    rig, disk = file_rig()
    workers = rig.share(lease_ms=1_000)
    numbers = range(2 * EXTENT_BYTES // 5_000)
    for _ in numbers:
        rig.put(bytes(5_000))
    index = rig.broker.engine.state.topics["orders"].index
    failing = index.positions[0] // EXTENT_BYTES
    lost = [number for number in numbers if index.positions[number] // EXTENT_BYTES == failing]
    assert 5 < len(lost) < len(numbers)
    disk.unreadable.add(segment_path(failing))
    got: set[int] = set()
    for number in range(1, 10):
        before = _failed_reads(disk)
        reply = rig.ask(workers.take("a", number, count=len(numbers)))
        got |= set(tasks(reply)) if isinstance(reply, replies.TakeReply) else set()
        assert _failed_reads(disk) - before < FAILED_READS_MAX
        rig.rounds(2, forward_ms=2_000)
    assert got == set(numbers) - set(lost)


def test_a_pattern_get_from_a_failing_disk_makes_few_reads() -> None:
    rig, disk = file_rig()
    topics = [f"t.{number}" for number in range(20)]
    consumer = PatternConsumer(rig, *topics)
    for topic in topics:
        rig.put(b"x", topic=topic)
    _make_unreadable(disk)
    assert consumer.get() == "topic 't.0'"
    assert 0 < _failed_reads(disk) < FAILED_READS_MAX


def test_a_pattern_consumer_with_other_traffic_is_told_of_damage_regularly(caplog: pytest.LogCaptureFixture) -> None:
    rig, disk = file_rig()
    consumer = PatternConsumer(rig, "damaged", "damaged too", "busy")
    for topic in ("damaged", "damaged too"):
        rig.put(b"lost", topic=topic)
        damage_batch(rig, disk, topic)
    got = []
    with caplog.at_level(logging.ERROR):
        for _ in range(3 * REPORT_EVERY_GETS):
            rig.put(b"x", topic="busy")
            got.append(consumer.get())
    assert got[:3] == ["topic 'damaged'", "topic 'damaged too'", {"busy"}]
    assert got.count("topic 'damaged'") == got.count("topic 'damaged too'") == 2
    assert got.count({"busy"}) == len(got) - 4
    assert caplog.text.count("offset 0 of topic") == 2


def test_damaged_topics_do_not_keep_a_pattern_consumer_from_the_topics_behind_them() -> None:
    rig, disk = file_rig()
    damaged = [f"damaged.{number}" for number in range(8)]
    consumer = PatternConsumer(rig, *damaged, "good")
    for topic in damaged:
        rig.put(bytes(1_000), topic=topic)
        damage_batch(rig, disk, topic)
    rig.put(b"here", topic="good")
    # Each reply is full with four topics.
    assert {"good"} in [consumer.get(bytes_max=4_000) for _ in range(20)]
