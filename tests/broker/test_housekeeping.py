"""Snapshots, copy-forward and release free space, and delete nothing that is needed."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from oncemq.broker.housekeeping import BUSY_COPY_RECORDS, BUSY_ENTITIES, Policy
from oncemq.engine.snapshot.capture import CHUNK_ENTITIES, Capture
from oncemq.journal.contract import RECORD_HEADER_BYTES, Record
from oncemq.journal.files.group import boundaries
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.layout import segment_path
from oncemq.journal.memory import MemoryJournal
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import commands, replies
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import Limits
from tests.broker.rig import Owner, Rig, code, expect, offsets
from tests.engine.world import image_of
from tests.simulation.environment.disk import SimDisk

EXTENT_BYTES = 64 * 1024
EAGER = Policy(
    snapshot_bytes=EXTENT_BYTES, snapshot_events=10_000, copy_extents_min=1, copy_round_bytes=4_000, look_every_ms=0
)


def _rig() -> Rig:
    return Rig(MemoryJournal(extent_bytes=EXTENT_BYTES), policy=EAGER)


def _extents(rig: Rig) -> set[int]:
    return {extent.number for extent in rig.journal.extents()}


def _settle(rig: Rig) -> None:
    """Run rounds until there is nothing to do."""
    for _ in range(300):
        rig.rounds(forward_ms=1)


def _put_on_two_topics(rig: Rig, count: int) -> tuple[Owner, Owner]:
    """Every tenth batch is on a topic whose subscriber is slow."""
    quick, slow = rig.subscribe("quick", "q"), rig.subscribe("slow", "s")
    for number in range(count):
        rig.put(bytes(1_000) + b"%d" % number, topic="slow" if number % 10 == 0 else "quick")
    return quick, slow


def test_extents_that_are_not_needed_are_released() -> None:
    rig = _rig()
    owner = rig.subscribe()
    for _ in range(300):
        reply = rig.put(bytes(1_000))
        rig.ask(owner.ack(reply.first_offset + 1))
    _settle(rig)
    assert 1 not in _extents(rig)
    assert len(_extents(rig)) <= 4


def test_copy_forward_moves_live_batches_and_releases_their_extents() -> None:
    rig = _rig()
    quick, slow = _put_on_two_topics(rig, 400)
    old = _extents(rig)
    rig.ask(quick.ack(360))
    for _ in range(200):
        rig.put(bytes(1_000), topic="quick")
        _settle_a_little(rig)
    assert rig.broker.counters["records_moved"] > 0
    assert len(_extents(rig) & old) < len(old) // 2
    assert offsets(rig.ask(slow.get())) == list(range(40))


def test_a_get_of_a_request_that_takes_many_rounds_returns_messages_that_are_moved_meanwhile() -> None:
    rig = _rig()
    quick, slow = _put_on_two_topics(rig, 400)
    rig.ask(quick.ack(360))
    request = rig.post([slow.get(), *[commands.Health()] * 1_000], peer=b"long")
    answered: dict[int, tuple[list[replies.Reply], list[list[Frame]]]] = {}
    for _ in range(200):
        command, payload = rig.put_command(bytes(1_000), topic="quick")
        rig.post([command], [payload])
        rig.post([commands.Health()] * 1_000, peer=b"busy")
        rig.rounds(1, forward_ms=1)
        answered |= rig.answers()
    assert rig.broker.counters["records_moved"] > 0
    assert min(_extents(rig)) > 1
    [got, *rest], [payloads, *_] = answered[request]
    assert offsets(got) == list(range(40))
    assert len(payloads) == 40
    # What comes after the turn is not decided: the client sends it again.
    assert code(rest[-1]) == "OVERLOADED"


def _settle_a_little(rig: Rig) -> None:
    for _ in range(5):
        rig.rounds(forward_ms=1)


def test_what_was_moved_is_found_after_a_crash_at_any_round() -> None:
    rig = _rig()
    quick, slow = _put_on_two_topics(rig, 300)
    rig.ask(quick.ack(270))
    for number in range(150):
        rig.put(bytes(1_000), topic="quick")
        rig.rounds(2, forward_ms=1)
        if number % 10 == 0:
            before = _image(rig)
            rig.restart()
            assert _image(rig) == before
    assert offsets(rig.ask(slow.get())) == list(range(30))


def test_a_snapshot_shortens_the_replay() -> None:
    rig = _rig()
    owner = rig.subscribe()
    for _ in range(500):
        rig.put(bytes(1_000))
    _settle(rig)
    assert rig.broker.counters["snapshots"] > 0
    rig.restart()
    assert rig.broker.counters["groups_replayed"] < 400
    request = rig.post([owner.get()])
    rig.rounds()
    assert offsets(rig.answers()[request][0][0]) == list(range(500))


def test_a_snapshot_is_consistent_although_commands_are_processed_meanwhile() -> None:
    rig = Rig(MemoryJournal(extent_bytes=EXTENT_BYTES), policy=Policy(snapshot_events=20, look_every_ms=0))
    for number in range(30):
        rig.do(commands.Subscribe(f"topic {number}", "s"))
    for number in range(200):
        rig.put(b"%d" % number, topic=f"topic {number % 30}")
        if number % 20 == 19:
            before = _image(rig)
            rig.restart()
            assert _image(rig) == before


def _image(rig: Rig) -> list[str]:
    """Return topics and sessions in any order: those that change during a snapshot are written early."""
    return sorted(map(repr, image_of(rig.broker.engine)))


def test_a_full_journal_refuses_puts_accepts_acks_and_resumes_automatically() -> None:
    rig = Rig(MemoryJournal(extent_bytes=EXTENT_BYTES, extents_max=8), policy=EAGER)
    owner = rig.subscribe()
    stored = 0
    while isinstance(reply := _try_put(rig), replies.PutReply):
        stored = reply.first_offset + 1
    assert isinstance(reply, replies.NotNow)
    assert reply.code == "DISK_FULL"
    assert stored > 100
    acked = expect(replies.AckReply, rig.ask(owner.ack(stored)))
    assert acked.acked == stored
    _settle(rig)
    # The same command with the same number, since nothing was decided before.
    command, payload = rig.put_command(bytes(1_000))
    assert expect(replies.PutReply, rig.ask(command, payload)).first_offset == stored


def test_transactions_alone_can_empty_a_full_journal() -> None:
    rig = Rig(MemoryJournal(extent_bytes=EXTENT_BYTES, extents_max=8), policy=EAGER)
    mill = rig.subscribe()
    shop = rig.subscribe("out", "shop")
    stored = 0
    while isinstance(reply := _try_put(rig), replies.PutReply):
        stored = reply.first_offset + 1
    for upto in range(1, stored + 1):
        ack = commands.AckUpto(mill.opened.topic_id, mill.subscriber, mill.opened.epoch, upto)
        payload = encode_batch([bytes(500)])
        put = commands.Put("out", commands.Envelope(1, len(payload), checksum(payload)))
        command = rig.numbered(commands.Transact((ack,), (), (put,)))
        while isinstance(reply := rig.ask(command, payload), replies.NotNow):
            # Housekeeping frees space between rounds.
            assert rig.clock.time_ms < 2_000_000
            rig.rounds(forward_ms=1_000)
        assert isinstance(reply, replies.TransactReply)
    _settle(rig)
    assert isinstance(_try_put(rig), replies.PutReply)
    assert expect(replies.AckReply, rig.ask(shop.ack(stored))).acked == stored


def _try_put(rig: Rig) -> replies.Reply:
    command, payload = rig.put_command(bytes(1_000))
    reply = rig.ask(command, payload)
    if isinstance(reply, replies.NotNow):
        rig.numbers["alice"] -= 1
    return reply


def test_a_record_that_cannot_be_read_keeps_its_extent_and_is_logged() -> None:
    rig = _rig()
    owner = rig.subscribe()
    rig.put(b"one")
    journal = rig.journal
    assert isinstance(journal, MemoryJournal)
    [position] = journal._records
    journal._records[position] = _damaged(journal._records[position])
    reply = expect(replies.Refusal, rig.ask(owner.get()))
    assert reply.code == "RECORD_CORRUPT"
    assert rig.put(b"two").first_offset == 1


def _damaged(record: Record) -> Record:
    return msgspec.structs.replace(record, payload=bytes(len(record.payload)))


def test_a_damaged_record_does_not_hide_the_good_ones_before_it() -> None:
    rig = _rig()
    owner = rig.subscribe()
    for value in (b"one", b"two", b"three"):
        rig.put(value)
    journal = rig.journal
    assert isinstance(journal, MemoryJournal)
    third = sorted(journal._records)[2]
    journal._records[third] = _damaged(journal._records[third])
    reply = expect(replies.GetReply, rig.ask(owner.get()))
    assert (offsets(reply), reply.next_position) == ([0, 1], 2)
    assert expect(replies.Refusal, rig.ask(owner.get(position=2))).code == "RECORD_CORRUPT"


def test_an_extent_whose_last_record_is_deleted_is_not_copied_any_further() -> None:
    rig = _rig()
    quick, slow = _put_on_two_topics(rig, 400)
    rig.ask(quick.ack(360))
    for _ in range(300):
        rig.rounds(forward_ms=1)
        if rig.broker.housekeeping._extent_copy is not None:
            break
    assert rig.broker.housekeeping._extent_copy is not None
    rig.ask(slow.ack(40))
    _settle(rig)
    assert rig.broker.housekeeping._extent_copy is None
    assert rig.put(b"alive", topic="quick").count == 1


def test_expiry_counts_in_the_group_that_records_it() -> None:
    limits = Limits(stage_ms=100, batch_bytes_max=4_000)
    rig = Rig(MemoryJournal(extent_bytes=40 * 1024), limits, EAGER)
    rig.subscribe()
    for number in range(24):
        payload = encode_batch([b"x"])
        envelope = commands.Envelope(1, len(payload), checksum(payload))
        rig.do(commands.Stage(f"{number:-<500}", "orders", "w", 0, envelope), payload=payload)
    rig.clock.time_ms += 200
    for number in range(40):
        rig.put(bytes(3_000) + b"%d" % number)
    rig.rounds(3, forward_ms=1)
    assert not rig.broker.engine.state.stages


# Damage.


def file_rig() -> tuple[Rig, SimDisk]:
    disk = SimDisk(Random(1))
    journal = FileJournal(disk, InlineWorker(), segment_bytes=EXTENT_BYTES, block_bytes=512, journal_id=bytes(16))
    return Rig(journal, policy=EAGER), disk


def _flip_bit(disk: SimDisk, extent: int, at: int) -> None:
    file = disk.open(segment_path(extent))
    [byte] = file.read(at, 1)
    file.write(at, [bytes([byte ^ 1])])


def damage_batch(rig: Rig, disk: SimDisk, topic: str) -> None:
    """Damage the first stored batch of a topic."""
    position = rig.broker.engine.state.topics[topic].index.positions[0]
    _flip_bit(disk, position // EXTENT_BYTES, position % EXTENT_BYTES + RECORD_HEADER_BYTES)


def _group_of(rig: Rig, position: int) -> int:
    """Return the position of the group that holds the record at a position."""
    journal = rig.journal
    assert isinstance(journal, FileJournal)
    extent = position // EXTENT_BYTES
    data = journal._segments.file(extent).read(0, EXTENT_BYTES)
    starts = [extent * EXTENT_BYTES + at for at in boundaries(data, 0, 512)]
    return max(start for start in starts if start <= position)


def _positions(rig: Rig, owner: Owner) -> list[int]:
    index = rig.broker.engine.state.topics_by_id[owner.opened.topic_id].index
    return list(index.positions[index.head :])


def _put_more(rig: Rig, quick: Owner, count: int) -> None:
    for _ in range(count):
        reply = rig.put(bytes(1_000), topic="quick")
        rig.ask(quick.ack(reply.first_offset + 1))
        _settle_a_little(rig)


def test_a_damaged_group_header_does_not_keep_its_batches_from_being_moved(caplog: pytest.LogCaptureFixture) -> None:
    rig, disk = file_rig()
    quick, slow = _put_on_two_topics(rig, 400)
    old = _extents(rig)
    for position in _positions(rig, slow)[:3]:
        _flip_bit(disk, position // EXTENT_BYTES, _group_of(rig, position) % EXTENT_BYTES + 25)
    rig.ask(quick.ack(360))
    _put_more(rig, quick, 300)
    assert min(old) not in _extents(rig)
    assert len(_extents(rig)) < 10
    assert offsets(rig.ask(slow.get())) == list(range(40))
    assert rig.broker.counters["extents_damaged"] == 1
    assert rig.broker.counters["records_unreadable"] == 0
    assert len([line for line in caplog.messages if "damaged" in line]) == 1


def test_what_cannot_be_read_stays_in_its_extent_and_the_rest_of_the_journal_is_still_freed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, disk = file_rig()
    quick, slow = _put_on_two_topics(rig, 400)
    old = _extents(rig)
    first, second, *_ = _positions(rig, slow)
    _flip_bit(disk, first // EXTENT_BYTES, first % EXTENT_BYTES)
    _flip_bit(disk, second // EXTENT_BYTES, second % EXTENT_BYTES + RECORD_HEADER_BYTES)
    rig.ask(quick.ack(360))
    _put_more(rig, quick, 300)
    assert _extents(rig) & old == {min(old)}
    assert len(_extents(rig)) < 10
    assert code(rig.ask(slow.get())) == code(rig.ask(slow.get(1))) == "RECORD_CORRUPT"
    assert offsets(rig.ask(slow.get(2))) == list(range(2, 40))
    assert (rig.broker.counters["extents_damaged"], rig.broker.counters["records_unreadable"]) == (1, 2)
    assert len([line for line in caplog.messages if "its space is not used again" in line]) == 1
    # Once a consumer has skipped the damaged messages, the extent is freed.
    rig.ask(slow.ack(2))
    _settle(rig)
    assert min(old) not in _extents(rig)


def test_delayed_and_staged_batches_of_a_damaged_group_are_moved() -> None:
    rig, disk = file_rig()
    quick = rig.subscribe("quick", "q")
    late = rig.subscribe("late", "l")
    command, payload = rig.put_command(b"delayed", topic="late", due_ms=rig.clock.time_ms + 600_000)
    rig.ask(command, payload)
    payload = encode_batch([b"staged"])
    envelope = commands.Envelope(1, len(payload), checksum(payload))
    rig.do(commands.Stage("stage", "late", "w", 0, envelope), payload=payload)
    for position in list(rig.broker.engine.state.unpublished):
        _flip_bit(disk, position // EXTENT_BYTES, _group_of(rig, position) % EXTENT_BYTES + 25)
    _put_more(rig, quick, 600)
    assert 1 not in _extents(rig)
    rig.do(commands.Commit("w", 0, "late", (("stage", 1),)))
    rig.rounds(forward_ms=600_000)
    assert offsets(rig.ask(late.get())) == [0, 1]


@pytest.mark.parametrize("failures", [1, 2, 3, 4])
def test_a_read_error_that_passes_is_not_seen_by_the_client(failures: int) -> None:
    rig, disk = file_rig()
    owner = rig.subscribe()
    for value in (b"one", b"two"):
        rig.put(value)
    disk.fail_reads(failures)
    assert offsets(rig.ask(owner.get())) == [0, 1]


def test_a_read_error_that_stays_is_reported_to_the_client_and_the_broker_goes_on() -> None:
    rig, disk = file_rig()
    owner = rig.subscribe()
    rig.put(b"one")
    disk.fail_reads(100)
    assert code(rig.ask(owner.get())) == "RECORD_CORRUPT"
    disk.fail_reads(0)
    rig.put(b"two")
    assert offsets(rig.ask(owner.get())) == [0, 1]


def test_a_read_error_that_passes_does_not_stop_copy_forward() -> None:
    rig, disk = file_rig()
    quick, slow = _put_on_two_topics(rig, 400)
    old = _extents(rig)
    rig.ask(quick.ack(360))
    for _ in range(30):
        disk.fail_reads(2)
        _put_more(rig, quick, 10)
    assert min(old) not in _extents(rig)
    assert rig.broker.counters["extents_damaged"] == 0
    disk.fail_reads(0)
    assert offsets(rig.ask(slow.get())) == list(range(40))


# How much a round does for housekeeping while requests arrive.


def _moved(rig: Rig) -> int:
    return rig.broker.counters["records_moved"]


def _begin_copy(rig: Rig) -> Owner:
    """Let copy-forward start on an extent with many small live batches. Return the owner of the last topic."""
    quick, slow = rig.subscribe("quick", "q"), rig.subscribe("slow", "s")
    for number in range(1_200):
        rig.put(bytes(600), topic="quick" if number % 3 == 0 else "slow")
    for _ in range(1_000):
        rig.put(bytes(600), topic="quick")
    rig.ask(quick.ack(1_400))
    return slow


def test_a_round_with_one_put_copies_few_records_and_an_idle_one_many() -> None:
    rig = Rig(
        MemoryJournal(extent_bytes=1 << 20),
        policy=Policy(
            snapshot_bytes=1 << 19, copy_extents_min=1, copy_below_share=0.9, copy_round_records=500, look_every_ms=0
        ),
    )
    _begin_copy(rig)
    busy, idle = [0], [0]
    for _ in range(300):
        before = _moved(rig)
        rig.put(bytes(600), topic="quick")
        busy.append(_moved(rig) - before)
        if rig.broker.housekeeping._extent_copy is not None and sum(busy) > 100:
            break
    assert 0 < max(busy) <= BUSY_COPY_RECORDS
    for _ in range(300):
        before = _moved(rig)
        rig.rounds()
        idle.append(_moved(rig) - before)
    assert max(idle) > 2 * BUSY_COPY_RECORDS


def test_a_round_with_one_put_adds_few_entities_to_a_snapshot_and_an_idle_one_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    real = Capture.chunk

    def chunk(self: Capture, entities_max: int = CHUNK_ENTITIES) -> bytes | None:
        sizes.append(entities_max)
        return real(self, entities_max)

    monkeypatch.setattr(Capture, "chunk", chunk)
    rig = Rig(policy=Policy(snapshot_events=1_000, look_every_ms=0))
    rig.post([rig.numbered(commands.CreateTopic(f"topic.{number}")) for number in range(1_000)])
    while not rig.broker.housekeeping.busy:
        rig.rounds()
    sizes.clear()
    rig.subscribe("topic.1", "a")
    rig.put(b"one", topic="topic.1")
    assert set(sizes) == {BUSY_ENTITIES}
    sizes.clear()
    rig.rounds(20)
    assert set(sizes) == {CHUNK_ENTITIES}
    assert not rig.broker.housekeeping.busy
