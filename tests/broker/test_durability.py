"""What was acknowledged survives a crash: transactions, delays, time to live, patterns, quotas and leases."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.journal.memory import MemoryJournal
from oncemq.protocol import commands, replies
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.frames import Frame
from tests.broker.rig import GET_BYTES, Rig, code, expect, offsets, tasks
from tests.broker.test_housekeeping import EAGER, EXTENT_BYTES


def _rig() -> Rig:
    return Rig(MemoryJournal(extent_bytes=1 << 20))


def _put(payload: bytes, topic: str = "orders", ttl_ms: int = 0, due_ms: int = 0, create: bool = False) -> commands.Put:
    return commands.Put(topic, commands.Envelope(1, len(payload), checksum(payload), ttl_ms, due_ms), create)


def _ask(rig: Rig, command: commands.Command, payloads: Sequence[Frame] = ()) -> tuple[replies.Reply, list[bytes]]:
    request = rig.post([command], payloads)
    rig.rounds()
    [reply], [frames] = rig.answers()[request]
    return reply, [bytes(frame) for frame in frames]


def _payloads(*values: bytes) -> list[bytes]:
    return [encode_batch([value]) for value in values]


def test_a_transaction_is_recovered_completely() -> None:
    rig = _rig()
    source, target = rig.subscribe("in", "mill"), rig.subscribe("out", "shop")
    rig.do(commands.Subscribe("new.*", "watcher"))
    rig.put(b"grain", topic="in")
    one, two, three, late = _payloads(b"flour", b"bran", b"first", b"late")
    ack = commands.AckUpto(source.opened.topic_id, "mill", source.opened.epoch, 1)
    puts = (
        _put(one, "out"),
        _put(two, "out"),
        _put(three, "new.one", create=True),
        _put(late, "out", due_ms=rig.clock.time_ms + 500),
    )
    command = rig.numbered(commands.Transact((ack,), (), puts))
    before, _ = _ask(rig, command, [one, two, three, late])
    assert [put.first_offset for put in expect(replies.TransactReply, before).puts] == [0, 1, 0, -1]
    rig.restart()
    again, _ = _ask(rig, command, [one, two, three, late])
    assert again == before
    assert rig.open("in", "mill").opened.acked == 1
    assert _ask(rig, target.get())[1] == [one, two]
    opened = expect(replies.OpenReply, rig.do(commands.Open("new.*", "watcher")))
    assert _ask(rig, commands.GetAny("new.*", "watcher", opened.epoch, (), GET_BYTES))[1] == [three]
    rig.rounds(forward_ms=500)
    assert _ask(rig, target.get(2))[1] == [late]


def test_a_transaction_with_a_damaged_payload_has_no_effect() -> None:
    rig = Rig()
    source, target = rig.subscribe("in", "mill"), rig.subscribe("out", "shop")
    rig.put(b"grain", topic="in")
    [payload] = _payloads(b"flour")
    ack = commands.AckUpto(source.opened.topic_id, "mill", source.opened.epoch, 1)
    damaged = encode_batch([b"brand"])
    reply, _ = _ask(rig, rig.numbered(commands.Transact((ack,), (), (_put(payload, "out"),))), [damaged])
    assert code(reply) == "DAMAGED_IN_TRANSIT"
    assert rig.open("in", "mill").opened.acked == 0
    assert offsets(rig.ask(target.get())) == []


def test_delayed_messages_are_delivered_once_after_a_crash() -> None:
    rig = _rig()
    owner = rig.subscribe()
    now_ms = rig.clock.time_ms
    payloads = _payloads(b"third", b"first", b"second")
    for payload, after_ms in zip(payloads, (300, 100, 200), strict=True):
        _ask(rig, rig.numbered(_put(payload, due_ms=now_ms + after_ms)), [payload])
    rig.rounds(forward_ms=100)
    rig.restart()
    rig.rounds()
    assert _ask(rig, owner.get())[1] == [payloads[1]]
    rig.rounds(forward_ms=200)
    assert _ask(rig, owner.get())[1] == [payloads[1], payloads[2], payloads[0]]
    rig.restart()
    rig.rounds(3, forward_ms=1_000)
    assert len(_ask(rig, owner.get())[1]) == 3


def test_delayed_messages_are_delivered_after_copy_forward_has_moved_them() -> None:
    rig = Rig(MemoryJournal(extent_bytes=EXTENT_BYTES), policy=EAGER)
    owner, quick = rig.subscribe("slow", "s"), rig.subscribe("quick", "q")
    due_ms = rig.clock.time_ms + 100_000
    expected = _payloads(*(bytes(500) + b"%d" % number for number in range(20)))
    for payload in expected:
        _ask(rig, rig.numbered(_put(payload, "slow", due_ms=due_ms)), [payload])
        for _ in range(15):
            rig.put(bytes(1_000), topic="quick")
    first = min(rig.broker.engine.state.live)
    for number in range(300, 600):
        stored = rig.put(bytes(1_000), topic="quick")
        rig.ask(quick.ack(stored.first_offset))
        rig.rounds(2, forward_ms=1)
        if number % 100 == 50:
            rig.restart()
    assert rig.broker.counters["records_moved"] > 0
    assert first not in rig.broker.engine.state.live
    rig.clock.time_ms = due_ms
    rig.rounds()
    assert _ask(rig, owner.get())[1] == expected


def test_expired_messages_stay_expired_and_others_expire_in_time() -> None:
    rig = _rig()
    owner = rig.subscribe()
    kept, brief, longer = _payloads(b"kept", b"brief", b"longer")
    for payload, ttl_ms in ((kept, 0), (brief, 100), (longer, 300)):
        _ask(rig, rig.numbered(_put(payload, ttl_ms=ttl_ms)), [payload])
    rig.rounds(forward_ms=100)
    rig.restart()
    assert _ask(rig, owner.get())[1] == [kept, longer]
    rig.rounds(forward_ms=200)
    assert _ask(rig, owner.get())[1] == [kept]
    rig.restart()
    assert _ask(rig, owner.get())[1] == [kept]


def test_leases_have_their_full_time_after_a_crash() -> None:
    rig = _rig()
    group = rig.share(lease_ms=1_000)
    rig.put(b"one", b"two")
    lease = expect(replies.TakeReply, rig.ask(group.take("m", 1, count=2)))
    rig.rounds(forward_ms=900)
    rig.restart()
    rig.rounds()
    rig.rounds(forward_ms=900)
    assert tasks(rig.ask(group.take("n"))) == []
    assert rig.do(group.settle(lease.token, 0)) == replies.SettleReply(())
    rig.rounds(forward_ms=100)
    assert tasks(rig.ask(group.take("n"))) == [1]


def test_a_quota_drops_messages_in_the_group_of_the_put_that_needs_space() -> None:
    rig = _rig()
    rig.do(commands.CreateTopic("orders", quota_bytes=200, overflow=commands.DROP))
    owner = rig.subscribe()
    for number in range(4):
        rig.put(bytes(60) + b"%d" % number)
        assert rig.broker.engine.state.topics["orders"].stored_bytes <= 200
    rig.restart()
    reply = expect(replies.GetReply, rig.ask(owner.get()))
    assert (offsets(reply), reply.dropped) == ([2, 3], 2)


def test_puts_to_a_full_topic_are_refused_until_there_is_space() -> None:
    rig = _rig()
    rig.do(commands.CreateTopic("orders", quota_bytes=150))
    owner = rig.subscribe()
    rig.put(bytes(80))
    command, payload = rig.put_command(bytes(80))
    assert code(_ask(rig, command, [payload])[0]) == "TOPIC_FULL"
    rig.restart()
    assert code(_ask(rig, command, [payload])[0]) == "TOPIC_FULL"
    rig.ask(owner.ack(1))
    assert expect(replies.PutReply, _ask(rig, command, [payload])[0]).first_offset == 1


def test_a_seek_and_the_epoch_that_it_raised_are_recovered() -> None:
    rig = _rig()
    owner = rig.subscribe()
    rig.do(commands.CreateTopic("orders", retain_bytes=1_000_000))
    rig.put(b"one", b"two")
    rig.ask(owner.ack(2))
    rig.do(commands.Seek("orders", "kitchen", 1))
    rig.restart()
    assert code(rig.ask(owner.ack(2))) == "SOUGHT"
    again = rig.open()
    assert offsets(rig.ask(again.get())) == [1]
