"""The central guarantee: nothing is sent before the sync that covers it."""

from __future__ import annotations

import pytest

from oncemq.journal.memory import MemoryJournal
from oncemq.protocol import commands, errors
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import HealthReply, NotNow, PutReply
from tests.broker.rig import Rig, TellingJournal, code, expect, offsets
from tests.engine.world import image_of


def _telling(rig: Rig) -> TellingJournal:
    assert isinstance(rig.journal, TellingJournal)
    return rig.journal


def test_a_reply_is_sent_after_append_and_sync() -> None:
    rig = Rig()
    rig.subscribe()
    rig.story.clear()
    rig.put(b"one")
    assert rig.story == ["append", "sync", "send"]


def test_reads_and_refusals_of_a_round_also_wait_for_its_sync() -> None:
    rig = Rig()
    owner = rig.subscribe()
    rig.put(b"one")
    command, payload = rig.put_command(b"two")
    rig.story.clear()
    rig.post([owner.get()], peer=b"reader")
    rig.post([command], [payload], peer=b"writer")
    rig.post([commands.Read("unknown", 0, 1)], peer=b"lost")
    rig.network.arriving.append((b"garbage", [b"\xc1"]))
    rig.rounds()
    assert rig.story.count("send") == 4
    assert rig.story[:2] == ["append", "sync"]


def test_a_get_of_the_same_round_sees_the_put_only_because_both_share_the_sync() -> None:
    rig = Rig()
    owner = rig.subscribe()
    command, payload = rig.put_command(b"one")
    rig.post([command], [payload])
    got = rig.post([owner.get()])
    rig.story.clear()
    rig.rounds()
    assert offsets(rig.answers()[got][0][0]) == [0]
    assert rig.story == ["append", "sync", "send", "read", "send"]


@pytest.mark.parametrize("fault", ["append", "sync"])
def test_a_failed_write_or_sync_sends_nothing_and_raises(fault: str) -> None:
    rig = Rig()
    owner = rig.subscribe()
    rig.put(b"one")
    command, payload = rig.put_command(b"two")
    rig.post([owner.get()], peer=b"reader")
    rig.post([command], [payload], peer=b"writer")
    rig.post([commands.Read("unknown", 0, 1)], peer=b"lost")
    _telling(rig).fails = fault
    with pytest.raises(errors.JournalFailed):
        rig.rounds()
    assert rig.network.sent == []


def test_a_command_whose_sync_failed_is_decided_once_after_a_restart() -> None:
    rig = Rig()
    rig.subscribe()
    command, payload = rig.put_command(b"one")
    _telling(rig).fails = "sync"
    rig.post([command], [payload])
    with pytest.raises(errors.JournalFailed):
        rig.rounds()
    rig.restart()
    first = expect(PutReply, rig.ask(command, payload))
    assert first == rig.ask(command, payload)
    assert offsets(rig.ask(rig.open().get())) == [0]


def test_a_round_without_events_does_not_sync() -> None:
    rig = Rig()
    rig.subscribe()
    rig.clock.time_ms += 1000
    rig.rounds()
    rig.story.clear()
    rig.ask(commands.Topics())
    assert rig.story == ["send"]


def test_the_last_group_is_confirmed_after_a_short_idle_time() -> None:
    rig = Rig()
    rig.subscribe()
    rig.put(b"one")
    rig.story.clear()
    rig.rounds(forward_ms=1000)
    assert rig.story == ["append", "sync"]
    rig.rounds(3, forward_ms=1000)
    assert rig.story == ["append", "sync"]


def test_a_request_larger_than_a_group_takes_several_rounds_and_is_answered_once() -> None:
    rig = Rig(limits=Limits(group_bytes_max=10_000))
    owner = rig.subscribe()
    puts = [rig.put_command(bytes(3_000)) for _ in range(20)]
    rig.post([command for command, _ in puts], [payload for _, payload in puts])
    behind = rig.post([commands.Topics()])
    syncs_before = rig.story.count("sync")
    rig.rounds()
    assert rig.answers() == {}
    while rig.broker.busy:
        rig.rounds()
    answered = rig.answers()
    assert len(answered) == 2
    assert behind in answered
    [(replies, _)] = [found for request_id, found in answered.items() if request_id != behind]
    assert [expect(PutReply, reply).first_offset for reply in replies] == list(range(20))
    assert rig.story.count("sync") - syncs_before > 3
    assert offsets(rig.ask(owner.get())) == list(range(20))


def test_one_request_carries_commands_of_several_sessions() -> None:
    rig = Rig()
    rig.subscribe()
    puts = [rig.put_command(name.encode(), session=name) for name in ("alice", "bob", "carol", "bob")]
    rig.network.sent.clear()
    request = rig.post([command for command, _ in puts], [payload for _, payload in puts])
    rig.rounds()
    replies, _ = rig.answers()[request]
    assert [expect(PutReply, reply).first_offset for reply in replies] == [0, 1, 2, 3]


def test_a_payload_that_does_not_match_its_checksum_is_not_stored_and_consumes_no_number() -> None:
    rig = Rig()
    rig.subscribe()
    command, payload = rig.put_command(b"one")
    damaged = bytes([payload[0] ^ 1]) + payload[1:]
    reply = rig.ask(command, damaged)
    assert isinstance(reply, NotNow)
    assert code(reply) == "DAMAGED_IN_TRANSIT"
    assert expect(PutReply, rig.ask(command, payload)).first_offset == 0


def test_health_reports_the_state() -> None:
    rig = Rig()
    rig.subscribe()
    rig.put(b"one")
    health = expect(HealthReply, rig.ask(commands.Health()))
    assert (health.topics, health.sessions) == (1, 2)
    assert health.counters["groups"] > 0
    assert health.writable_bytes > 0
    assert health.broker_id == rig.hello("carol").broker_id


def test_recovery_after_any_round_gives_the_same_state() -> None:
    rig = Rig()
    owner = rig.subscribe()
    for number in range(40):
        rig.put(*[b"%d" % number] * (1 + number % 3))
        if number % 7 == 0:
            rig.ask(owner.ack(number))
        if number % 11 == 0:
            rig.do(commands.Subscribe("orders", f"subscriber {number}"))
        before = image_of(rig.broker.engine)
        rig.restart()
        assert image_of(rig.broker.engine) == before


def test_an_engine_that_fails_to_decide_refuses_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.subscribe()

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(rig.broker.engine, "step", fail)
        assert code(rig.ask(commands.Topics())) == "BROKER_BUG"
    assert rig.put(b"one").first_offset == 0


def test_an_empty_batch_payload_is_kept_byte_for_byte() -> None:
    rig = Rig()
    owner = rig.subscribe()
    rig.put(b"", b"", b"x")
    request = rig.post([owner.get()])
    rig.rounds()
    _, [payloads] = rig.answers()[request]
    assert [bytes(payload) for payload in payloads] == [encode_batch([b"", b"", b"x"])]


def test_a_command_that_no_group_can_hold_is_refused_and_not_postponed() -> None:
    rig = Rig(MemoryJournal(extent_bytes=64 * 1024))
    rig.subscribe()
    payload = encode_batch([b"x"])
    put = commands.Put("orders", commands.Envelope(1, len(payload), checksum(payload)))
    command = rig.numbered(commands.Transact((), (), (put,) * 100))
    request = rig.post([command], [payload] * 100)
    rig.rounds()
    [reply], _ = rig.answers()[request]
    assert code(reply) == "TOO_LARGE"


def test_a_batch_is_limited_by_the_segments_of_the_journal() -> None:
    rig = Rig(MemoryJournal(extent_bytes=64 * 1024))
    rig.subscribe()
    limit = rig.hello().batch_bytes_max
    assert 50_000 < limit < 64 * 1024
    command, payload = rig.put_command(bytes(limit + 1))
    assert code(rig.ask(command, payload)) == "TOO_LARGE"
    rig.put(bytes(limit - 100))
