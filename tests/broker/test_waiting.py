"""Requests that wait for messages: what ends the waiting, and what they are answered."""

from __future__ import annotations

import msgspec
import pytest

from oncemq.engine.caller import Caller
from oncemq.engine.decide.decision import Decision
from oncemq.journal.contract import WriteSlot
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import (
    EXPIRE,
    START_NEW,
    Command,
    Commit,
    CreateTopic,
    DeleteTopic,
    Envelope,
    Get,
    GetAny,
    Open,
    Operation,
    Put,
    Read,
    Seek,
    Stage,
    Subscribe,
    Subscriptions,
    Take,
    Topics,
    Transact,
    Unsubscribe,
)
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import (
    GetAnyReply,
    GetReply,
    NotNow,
    OpenReply,
    PutReply,
    Refusal,
    Reply,
    StageReply,
    SubscriptionsReply,
    TakeReply,
)
from tests.broker.rig import GET_BYTES, Owner, Rig, Workers, code, expect, offsets, tasks


def _parked(rig: Rig, owner: Owner, wait_ms: int = 5_000) -> int:
    request = rig.post([owner.get(wait_ms=wait_ms)])
    rig.rounds()
    assert rig.answers() == {}, "there is nothing to get yet"
    return request


def test_a_waiting_get_is_answered_when_something_is_committed() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    command, payload = rig.put_command(b"one")
    rig.post([command], [payload], peer=b"writer")
    rig.story.clear()
    rig.rounds()
    assert offsets(rig.answers()[waiting][0][0]) == [0]
    assert rig.story[:2] == ["append", "sync"]


def test_a_put_to_another_topic_does_not_end_the_waiting() -> None:
    rig = Rig()
    _parked(rig, rig.subscribe())
    rig.subscribe("other", "somebody")
    rig.put(b"one", topic="other")
    assert len(rig.broker.waiting) == 1


def test_a_commit_to_several_topics_ends_the_waiting_on_each() -> None:
    rig = Rig()
    topics = ("orders", "bills")
    payload = encode_batch([b"one"])
    waiting = []
    for topic in topics:
        waiting.append(_parked(rig, rig.subscribe(topic)))
        envelope = Envelope(1, len(payload), checksum(payload))
        expect(StageReply, rig.do(Stage(topic, topic, "", 0, envelope), payload=payload))
    rig.post([rig.numbered(Commit("", 0, "", (), tuple((topic, ((topic, 1),)) for topic in topics)))])
    rig.rounds()
    answers = rig.answers()
    assert [offsets(answers[request][0][0]) for request in waiting] == [[0], [0]]


def test_a_waiting_get_is_answered_at_its_deadline() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe(), wait_ms=300)
    rig.rounds(forward_ms=299)
    assert rig.answers() == {}
    rig.rounds(forward_ms=1)
    assert offsets(rig.answers()[waiting][0][0]) == []
    assert len(rig.broker.waiting) == 0


def test_the_loop_wakes_up_when_a_wait_is_over() -> None:
    rig = Rig()
    _parked(rig, rig.subscribe(), wait_ms=40)
    rig.broker.housekeeping.next_look_ms = rig.clock.time_ms + 10_000
    assert 1 <= rig.broker.wait_ms() <= 40


def test_deleting_the_topic_ends_the_waiting() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    rig.post([rig.numbered(DeleteTopic("orders"))])
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "TOPIC_GONE"


def test_a_take_over_fences_a_waiting_get() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    rig.post([rig.numbered(Open("orders", "kitchen"))])
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "FENCED"


def test_unsubscribing_ends_the_waiting() -> None:
    rig = Rig()
    owner = rig.subscribe()
    rig.do(Subscribe("orders", "another"))
    waiting = _parked(rig, owner)
    rig.post([rig.numbered(Unsubscribe("orders", "kitchen"))])
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "NOT_SUBSCRIBED"


def test_a_newer_get_replaces_a_waiting_one() -> None:
    rig = Rig()
    owner = rig.subscribe()
    older = _parked(rig, owner)
    newer = rig.post([owner.get(wait_ms=5_000)])
    rig.rounds()
    assert offsets(rig.answers()[older][0][0]) == []
    assert len(rig.broker.waiting) == 1
    command, payload = rig.put_command(b"one")
    rig.post([command], [payload])
    rig.rounds()
    answered = rig.answers()
    assert offsets(answered[newer][0][0]) == [0]
    assert older not in answered


def test_the_ack_of_a_waiting_get_counts_immediately() -> None:
    rig = Rig()
    owner = rig.subscribe()
    rig.put(b"one", b"two")
    rig.post([owner.get(2, wait_ms=5_000, ack=2)])
    rig.rounds()
    listed = expect(SubscriptionsReply, rig.ask(Subscriptions("orders")))
    assert [found.acked for found in listed.subscriptions] == [2]


def test_a_get_among_other_commands_does_not_wait() -> None:
    rig = Rig()
    owner = rig.subscribe()
    request = rig.post([owner.get(wait_ms=5_000), Topics()])
    rig.rounds()
    replies, _ = rig.answers()[request]
    assert offsets(replies[0]) == []


def test_several_readers_of_a_topic_can_wait() -> None:
    rig = Rig()
    rig.subscribe()
    requests = [rig.post([Read("orders", START_NEW, 1000, 5_000)], peer=b"%d" % peer) for peer in range(3)]
    rig.rounds()
    assert rig.answers() == {}
    command, payload = rig.put_command(b"one")
    rig.post([command], [payload])
    rig.rounds()
    answered = rig.answers()
    assert all(offsets(answered[request][0][0]) == [0] for request in requests)


def test_a_waiting_reader_does_not_read_a_topic_that_was_created_again() -> None:
    rig = Rig()
    rig.subscribe()
    waiting = rig.post([Read("orders", START_NEW, 1000, 5_000)], peer=b"reader")
    rig.rounds()
    request = [rig.numbered(DeleteTopic("orders")), rig.numbered(CreateTopic("orders"))]
    rig.post(request)
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "TOPIC_GONE"


def test_waiting_requests_of_a_peer_that_is_gone_are_dropped() -> None:
    rig = Rig()
    _parked(rig, rig.subscribe())
    other = rig.post([Read("orders", 0, GET_BYTES, 5_000)], peer=b"other")
    rig.rounds()
    rig.network.gone(b"peer")
    rig.rounds()
    assert len(rig.broker.waiting) == 1
    _post_put(rig, b"one")
    rig.rounds()
    assert other in rig.answers()


def test_a_take_of_a_peer_that_is_gone_gets_no_lease() -> None:
    rig = Rig()
    workers = rig.share()
    rig.post([workers.take("gone", wait_ms=5_000)], peer=b"worker")
    rig.rounds()
    rig.network.gone(b"worker")
    rig.rounds()
    _post_put(rig, b"one")
    rig.rounds()
    assert tasks(rig.ask(workers.take("m"))) == [0]


def test_what_a_peer_has_sent_before_it_was_gone_is_executed_and_does_not_wait() -> None:
    rig = Rig()
    owner = rig.subscribe()
    command, payload = rig.put_command(b"one")
    rig.post([command], [payload], peer=b"gone")
    rig.post([owner.get(1, wait_ms=5_000)], peer=b"gone")
    rig.network.gone(b"gone")
    rig.rounds(2)
    assert len(rig.broker.waiting) == 0
    assert offsets(rig.ask(owner.get())) == [0]


def test_a_stop_answers_waiting_requests() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    rig.broker.stop()
    reply = rig.answers()[waiting][0][0]
    assert isinstance(reply, NotNow)
    assert code(reply) == "STOPPING"


def test_a_stop_answers_what_has_arrived() -> None:
    rig = Rig()
    rig.subscribe()
    command, payload = rig.put_command(b"one")
    request = rig.post([command], [payload])
    rig.broker.stop()
    assert expect(PutReply, rig.answers()[request][0][0]).first_offset == 0


@pytest.mark.parametrize("wait_ms", [-1, -(2**62)])
def test_a_negative_wait_is_no_wait(wait_ms: int) -> None:
    rig = Rig()
    owner = rig.subscribe()
    request = rig.post([owner.get(wait_ms=wait_ms)])
    rig.rounds(2, forward_ms=1)
    assert offsets(rig.answers()[request][0][0]) == []


def test_a_waiting_get_is_answered_although_the_group_is_full() -> None:
    rig = Rig(limits=Limits(group_bytes_max=1_000))
    owner = rig.subscribe()
    waiting = rig.post([owner.get(wait_ms=5_000)], peer=b"waiting")
    rig.rounds()
    command, payload = rig.put_command(bytes(4_000))
    rig.post([command], [payload])
    rig.rounds()
    [reply], _ = rig.answers()[waiting]
    assert offsets(expect(GetReply, reply)) == [0]


def test_the_gets_of_one_request_are_limited_together() -> None:
    rig = Rig(limits=Limits(get_bytes_max=10_000))
    owner = rig.subscribe()
    rig.put(bytes(8_000))
    request = rig.post([owner.get()] * 5)
    rig.rounds()
    replies, _ = rig.answers()[request]
    assert [type(reply) for reply in replies] == [GetReply, GetReply, NotNow, NotNow, NotNow]


# Waiting takes.


def _waiting_take(rig: Rig, group: Workers, member: str, number: int = 1, *, wait_ms: int = 5_000) -> int:
    request = rig.post([group.take(member, number, wait_ms=wait_ms)], peer=member.encode())
    rig.rounds()
    assert rig.answers() == {}, "there is nothing to take yet"
    return request


def _leased(rig: Rig, group: Workers, member: str, count: int = 1) -> TakeReply:
    return expect(TakeReply, rig.ask(group.take(member, 1, count=count)))


def _post_put(rig: Rig, *values: bytes, topic: str = "orders", create: bool = False, due_ms: int = 0) -> int:
    command, payload = rig.put_command(*values, topic=topic, create=create, due_ms=due_ms)
    return rig.post([command], [payload], peer=b"writer")


def test_a_waiting_take_is_answered_when_something_is_committed() -> None:
    rig = Rig()
    waiting = _waiting_take(rig, rig.share(), "m")
    _post_put(rig, b"one")
    rig.story.clear()
    rig.rounds()
    assert tasks(rig.answers()[waiting][0][0]) == [0]
    assert rig.story[:2] == ["append", "sync"]
    assert rig.story.count("append") == 1, "the lease is in the same group"


def test_a_waiting_take_gets_what_another_member_nacks() -> None:
    rig = Rig()
    group = rig.share()
    rig.put(b"one", b"two")
    lease = _leased(rig, group, "m", 2)
    waiting = _waiting_take(rig, group, "n")
    rig.post([rig.numbered(group.settle(lease.token, 1, return_ms=0))])
    rig.rounds()
    assert tasks(rig.answers()[waiting][0][0]) == [1]


def test_a_waiting_take_gets_what_was_nacked_with_a_delay_when_it_is_due() -> None:
    rig = Rig()
    group = rig.share(lease_ms=60_000)
    rig.put(b"one")
    lease = _leased(rig, group, "m")
    waiting = _waiting_take(rig, group, "n")
    rig.post([rig.numbered(group.settle(lease.token, 0, return_ms=700))])
    rig.rounds()
    rig.rounds(forward_ms=699)
    assert waiting not in rig.answers()
    assert rig.broker.wait_ms() <= 1
    rig.rounds(forward_ms=1)
    assert tasks(rig.answers()[waiting][0][0]) == [0]


def test_a_waiting_take_gets_the_messages_of_an_expired_lease() -> None:
    rig = Rig()
    group = rig.share(lease_ms=1_000)
    rig.put(b"one")
    _leased(rig, group, "m")
    waiting = _waiting_take(rig, group, "n")
    rig.rounds(forward_ms=999)
    assert rig.answers() == {}
    rig.rounds(forward_ms=1)
    assert tasks(rig.answers()[waiting][0][0]) == [0]


def test_a_waiting_take_gets_the_messages_of_a_member_that_leaves() -> None:
    rig = Rig()
    group = rig.share()
    rig.put(b"one")
    _leased(rig, group, "m")
    waiting = _waiting_take(rig, group, "n")
    rig.post([group.leave("m")])
    rig.rounds()
    assert tasks(rig.answers()[waiting][0][0]) == [0]


@pytest.mark.parametrize("kind", ["get", "take", "any", "read"])
def test_a_delayed_message_ends_the_waiting_when_it_is_due(kind: str) -> None:
    rig = Rig()
    owner, group = rig.subscribe(), rig.share()
    rig.do(Subscribe("#", "all"))
    everything = expect(OpenReply, rig.do(Open("#", "all")))
    _post_put(rig, b"one", due_ms=rig.clock.time_ms + 500)
    rig.rounds()
    rig.answers()
    commands: dict[str, Command] = {
        "get": owner.get(wait_ms=5_000),
        "take": group.take("m", wait_ms=5_000),
        "any": GetAny("#", "all", everything.epoch, (), GET_BYTES, 5_000),
        "read": Read("orders", 0, GET_BYTES, 5_000),
    }
    waiting = rig.post([commands[kind]])
    rig.rounds()
    rig.rounds(forward_ms=499)
    assert rig.answers() == {}
    rig.rounds(forward_ms=1)
    [reply], payloads = rig.answers()[waiting]
    assert not isinstance(reply, Refusal | NotNow)
    assert [list(frames) for frames in payloads] == [[encode_batch([b"one"])]]


def test_waiting_members_are_served_in_turn() -> None:
    rig = Rig()
    group = rig.share()
    members = ["m", "n", "o"]
    requests = {_waiting_take(rig, group, member): member for member in members}
    served = []
    for number in range(2, 8):
        _post_put(rig, b"one")
        rig.rounds()
        [(request, reply)] = [(key, found[0][0]) for key, found in rig.answers().items() if key in requests]
        assert tasks(reply) == [number - 2]
        served.append(requests.pop(request))
        requests[_waiting_take(rig, group, served[-1], number)] = served[-1]
    assert served == members * 2


def test_waiting_members_share_messages_that_arrive_together() -> None:
    rig = Rig()
    group = rig.share()
    requests = [_waiting_take(rig, group, member) for member in ("m", "n", "o")]
    _post_put(rig, b"one", b"two")
    rig.rounds()
    answered = rig.answers()
    assert [tasks(answered[request][0][0]) for request in requests[:2]] == [[0], [1]]
    assert requests[2] not in answered
    assert len(rig.broker.waiting) == 1


@pytest.mark.parametrize("had_some", [False, True])
def test_a_member_that_has_left_gets_no_more_messages(had_some: bool) -> None:
    rig = Rig()
    group = rig.share()
    if had_some:
        rig.put(b"zero")
        _leased(rig, group, "m")
    gone = _waiting_take(rig, group, "m", 2)
    rig.post([group.leave("m")])
    rig.rounds()
    assert tasks(rig.answers()[gone][0][0]) == []
    waiting = _waiting_take(rig, group, "n") if not had_some else rig.post([group.take("n")])
    _post_put(rig, b"one")
    rig.rounds()
    assert tasks(rig.answers()[waiting][0][0]) == [0]


def test_a_newer_take_of_a_member_replaces_its_waiting_one() -> None:
    rig = Rig()
    group = rig.share()
    older = _waiting_take(rig, group, "m", 1)
    newer = rig.post([group.take("m", 2, wait_ms=5_000)])
    rig.rounds()
    assert tasks(rig.answers()[older][0][0]) == []
    _post_put(rig, b"one")
    rig.rounds()
    assert tasks(rig.answers()[newer][0][0]) == [0]


def test_a_take_that_is_repeated_while_it_waits_takes_nothing_twice() -> None:
    rig = Rig()
    group = rig.share()
    first = _waiting_take(rig, group, "m", 1)
    again = rig.post([group.take("m", 1, count=2, wait_ms=5_000)], peer=b"new socket")
    _post_put(rig, b"one", b"two")
    rig.rounds()
    answered = rig.answers()
    assert tasks(answered[again][0][0]) == tasks(answered[first][0][0]) == [0, 1]
    shared = rig.broker.engine.state.topics["orders"].subscriptions["workers"].shared
    assert shared is not None
    assert len(shared.leases) == 1


def test_a_seek_ends_the_waiting_of_all_members() -> None:
    rig = Rig()
    group = rig.share()
    requests = [_waiting_take(rig, group, member) for member in ("m", "n")]
    rig.post([rig.numbered(Seek("orders", "workers"))])
    rig.rounds()
    answered = rig.answers()
    assert [code(answered[request][0][0]) for request in requests] == ["SOUGHT", "SOUGHT"]


def test_a_settle_wakes_no_member_without_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    group = rig.share()
    rig.put(b"one", b"two")
    lease = _leased(rig, group, "m", 2)
    for member in ("n", "o", "p"):
        _waiting_take(rig, group, member)
    takes: list[str] = []
    real = rig.broker.engine.step

    def step(
        now_ms: int, place: WriteSlot, command: Command, refusal: Refusal | None, caller: Caller | None
    ) -> Decision:
        takes.extend([command.member] if isinstance(command, Take) else [])
        return real(now_ms, place, command, refusal, caller)

    monkeypatch.setattr(rig.broker.engine, "step", step)
    rig.post([rig.numbered(group.settle(lease.token, 0))])
    rig.rounds()
    assert takes == []
    _post_put(rig, b"three")
    rig.rounds()
    assert takes == ["n", "o"], "one takes it, the next finds nothing, the third need not look"
    assert len(rig.broker.waiting) == 2


def test_a_settled_message_allows_another_lease_at_the_limit() -> None:
    rig = Rig(limits=Limits(leased_max=1))
    group = rig.share()
    rig.put(b"one", b"two")
    lease = _leased(rig, group, "m")
    waiting = _waiting_take(rig, group, "n")
    rig.post([rig.numbered(group.settle(lease.token, 0))])
    rig.rounds()
    assert tasks(rig.answers()[waiting][0][0]) == [1]


# Full groups.


def _crowded() -> Rig:
    """Each of its groups is full after one large put."""
    return Rig(limits=Limits(group_bytes_max=1_000))


def test_a_waiting_take_without_space_in_the_group_is_served_in_the_next_round() -> None:
    rig = _crowded()
    group = rig.share()
    waiting = _waiting_take(rig, group, "m")
    _post_put(rig, bytes(4_000))
    rig.rounds()
    assert waiting not in rig.answers()
    assert rig.broker.busy
    rig.story.clear()
    rig.rounds()
    assert tasks(rig.answers()[waiting][0][0]) == [0]
    assert rig.story[:2] == ["append", "sync"]
    assert not rig.broker.busy


def test_groups_that_are_always_full_do_not_keep_a_take_waiting() -> None:
    rig = _crowded()
    rig.subscribe("other", "somebody")
    group = rig.share()
    waiting = _waiting_take(rig, group, "m")
    _post_put(rig, b"one" * 1_000)
    for _ in range(3):
        _post_put(rig, bytes(4_000), topic="other")
    rig.rounds()
    assert waiting not in rig.answers()
    rig.rounds()
    assert tasks(rig.answers()[waiting][0][0]) == [0]


def test_groups_that_are_always_full_do_not_stop_ticks() -> None:
    rig = _crowded()
    owner = rig.subscribe()
    rig.subscribe("other", "somebody")
    _post_put(rig, b"late", due_ms=rig.clock.time_ms + 100)
    rig.rounds()
    waiting = rig.post([owner.get(wait_ms=5_000)])
    for _ in range(5):
        _post_put(rig, bytes(4_000), topic="other")
    rig.rounds()
    rig.answers()
    rig.rounds(2, forward_ms=100)
    assert rig.broker.busy, "there is more to store"
    assert offsets(rig.answers()[waiting][0][0]) == [0]


def test_a_take_at_its_deadline_without_space_is_answered_with_not_now() -> None:
    rig = _crowded()
    group = rig.share()
    waiting = _waiting_take(rig, group, "m", wait_ms=100)
    rig.clock.time_ms += 100
    _post_put(rig, bytes(4_000))
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "OVERLOADED"
    assert tasks(rig.ask(group.take("m"))) == [0]


# Waiting gets by pattern.


def _watching(rig: Rig, pattern: str = "orders.*") -> GetAny:
    rig.do(Subscribe(pattern, "watcher"))
    opened = expect(OpenReply, rig.do(Open(pattern, "watcher")))
    return GetAny(pattern, "watcher", opened.epoch, (), GET_BYTES, 5_000)


def _parked_any(rig: Rig, command: GetAny) -> int:
    request = rig.post([command], peer=b"watcher")
    rig.rounds()
    assert rig.answers() == {}, "there is nothing to get yet"
    return request


def seen(reply: Reply) -> dict[str, list[int]]:
    parts = expect(GetAnyReply, reply).parts
    return {part.topic: [head.first_offset for head in part.batches] for part in parts}


def test_a_get_by_pattern_wakes_up_for_a_topic_that_is_created_later() -> None:
    rig = Rig()
    waiting = _parked_any(rig, _watching(rig))
    _post_put(rig, b"one", topic="other.eu", create=True)
    rig.rounds()
    assert waiting not in rig.answers()
    _post_put(rig, b"one", topic="orders.eu", create=True)
    rig.story.clear()
    rig.rounds()
    assert seen(rig.answers()[waiting][0][0]) == {"orders.eu": [0]}
    assert rig.story[:2] == ["append", "sync"]


def test_a_get_by_pattern_wakes_up_for_all_topics_of_a_transaction_at_once() -> None:
    rig = Rig()
    waiting = _parked_any(rig, _watching(rig))
    payload = encode_batch([b"one"])
    envelope = Envelope(1, len(payload), checksum(payload))
    puts = tuple(Put(f"orders.{name}", envelope, True) for name in ("eu", "us"))
    rig.post([rig.numbered(Transact(puts=puts))], [payload, payload])
    rig.rounds()
    [reply], payloads = rig.answers()[waiting]
    assert seen(reply) == {"orders.eu": [0], "orders.us": [0]}
    assert [list(frames) for frames in payloads] == [[payload, payload]]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (Seek("orders.*", "watcher"), "SOUGHT"),
        (Open("orders.*", "watcher"), "FENCED"),
        (Unsubscribe("orders.*", "watcher"), "NOT_SUBSCRIBED"),
    ],
)
def test_every_change_of_a_pattern_ends_the_waiting(operation: Operation, expected: str) -> None:
    rig = Rig()
    waiting = _parked_any(rig, _watching(rig))
    rig.post([rig.numbered(operation)])
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == expected


def test_a_newer_get_by_pattern_replaces_a_waiting_one() -> None:
    rig = Rig()
    command = _watching(rig)
    older = _parked_any(rig, command)
    newer = rig.post([command])
    rig.rounds()
    assert seen(rig.answers()[older][0][0]) == {}
    _post_put(rig, b"one", topic="orders.eu", create=True)
    rig.rounds()
    assert seen(rig.answers()[newer][0][0]) == {"orders.eu": [0]}


def test_the_acks_of_a_waiting_get_by_pattern_count_immediately_and_once() -> None:
    rig = Rig()
    command = _watching(rig)
    _post_put(rig, b"one", topic="orders.eu", create=True)
    rig.rounds()
    rig.answers()
    topic = rig.broker.engine.state.topics["orders.eu"]
    waiting = _parked_any(rig, msgspec.structs.replace(command, acks=((topic.id, 1),)))
    assert topic.low_watermark == 1
    _post_put(rig, b"two", topic="orders.eu")
    rig.rounds()
    assert seen(rig.answers()[waiting][0][0]) == {"orders.eu": [1]}


def test_deleting_one_of_its_topics_does_not_end_the_waiting_of_a_pattern() -> None:
    rig = Rig()
    command = _watching(rig)
    rig.do(CreateTopic("orders.eu"))
    waiting = _parked_any(rig, command)
    rig.do(DeleteTopic("orders.eu"))
    assert waiting not in rig.answers()
    assert len(rig.broker.waiting) == 1


def test_a_topic_that_is_deleted_with_a_pattern_ends_the_waiting_of_its_readers() -> None:
    rig = Rig()
    _watching(rig)
    rig.subscribe("orders.eu", "a")
    rig.do(Unsubscribe("orders.eu", "a"))
    waiting = rig.post([Read("orders.eu", START_NEW, 1000, 5_000)], peer=b"reader")
    rig.rounds()
    rig.post([rig.numbered(Unsubscribe("orders.*", "watcher"))])
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "TOPIC_GONE"


def test_a_seek_ends_the_waiting_of_the_owner() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    rig.post([rig.numbered(Seek("orders", "kitchen"))])
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "SOUGHT"


def test_a_waiting_get_is_answered_when_the_quota_expires_its_subscription() -> None:
    rig = Rig()
    rig.do(CreateTopic("orders", quota_bytes=150, overflow=EXPIRE))
    owner = rig.subscribe()
    waiting = rig.post([owner.get(0, wait_ms=5_000)])
    rig.rounds()
    _post_put(rig, bytes(70))
    rig.rounds()
    assert offsets(rig.answers()[waiting][0][0]) == [0]
    waiting = rig.post([owner.get(1, wait_ms=5_000)])
    rig.rounds()
    _post_put(rig, bytes(70))
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "SUBSCRIPTION_EXPIRED"


# The collection of waiting requests.


def test_answered_requests_are_not_kept_until_their_deadline() -> None:
    rig = Rig()
    _parked(rig, rig.subscribe("quiet", "patient"), wait_ms=60_000)
    owner = rig.subscribe()
    for number in range(1_500):
        rig.post([owner.get(number, wait_ms=60_000)])
        rig.rounds()
        _post_put(rig, b"one")
        rig.rounds()
        rig.answers()
    assert len(rig.broker.waiting) == 1
    assert len(rig.broker.waiting._heap) < 1_200


def test_a_bug_in_a_retry_is_answered_and_stops_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    real = rig.broker.engine.step

    def step(
        now_ms: int, place: WriteSlot, command: Command, refusal: Refusal | None, caller: Caller | None
    ) -> Decision:
        if isinstance(command, Get):
            raise ZeroDivisionError
        return real(now_ms, place, command, refusal, caller)

    monkeypatch.setattr(rig.broker.engine, "step", step)
    stored = _post_put(rig, b"one")
    rig.rounds()
    answered = rig.answers()
    assert code(answered[waiting][0][0]) == "BROKER_BUG"
    assert isinstance(answered[stored][0][0], PutReply)
