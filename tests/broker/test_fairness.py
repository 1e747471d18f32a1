"""One peer with heavy requests does not hold up the others: rounds have a budget, and peers take turns."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from oncemq.broker.housekeeping import Policy
from oncemq.broker.requests import waiting, work
from oncemq.broker.requests.request_queue import ACTIVE_MS, PAYBACK_MS_MAX, QUEUE_BYTES_MAX
from oncemq.client.core.commands.inflight import INFLIGHT_BYTES_MAX
from oncemq.config.gateways import HttpOptions
from oncemq.config.settings import ServeSettings
from oncemq.engine.decide.decision import Decision
from oncemq.engine.events import AckedMany
from oncemq.engine.state.batch_index import Slice
from oncemq.protocol.commands import (
    START_EARLIEST,
    Command,
    CreateTopic,
    Envelope,
    GetAny,
    Hello,
    Open,
    Patterns,
    Put,
    Read,
    RegistryList,
    RegistrySet,
    Subscribe,
    Topics,
    Unsubscribe,
)
from oncemq.protocol.frames import decode_response
from oncemq.protocol.limits import GET_BATCHES_MAX, REQUEST_HEADER_BYTES_MAX, Limits
from oncemq.protocol.replies import (
    GetReply,
    NotNow,
    OpenReply,
    PatternsReply,
    PutReply,
    RegistryListReply,
    SubscribeReply,
    TopicsReply,
)
from tests.broker.rig import FakeClock, Rig, code, expect

TOPICS = 1_000


def _with_topics(limits: Limits | None = None, count: int = TOPICS, policy: Policy | None = None) -> Rig:
    rig = Rig(limits=limits, policy=policy)
    created = [rig.numbered(CreateTopic(f"topic.{number:05}")) for number in range(count)]
    rig.post(created)
    _finish(rig)
    rig.answers()
    return rig


def _finish(rig: Rig) -> int:
    """Run rounds until nothing is left to do. Return their number."""
    rounds = 0
    while rig.network.arriving or rig.broker.busy:
        rig.rounds()
        rounds += 1
        assert rounds < 20_000, "the broker does not finish"
    return rounds


def _answered(rig: Rig) -> list[tuple[bytes, int]]:
    """Return peer and request id of each response, in the order in which they were sent."""
    return [(peer, decode_response(frames)[0].request_id) for peer, frames in rig.network.sent]


def test_a_put_is_answered_while_the_long_request_of_another_peer_goes_on() -> None:
    rig = _with_topics()
    lists = rig.post([Topics()] * 100, peer=b"heavy")
    command, payload = rig.put_command(b"one", topic="topic.00000")
    put = rig.post([command], [payload], peer=b"light")
    rig.rounds()
    assert _answered(rig) == [(b"light", put)]
    _finish(rig)
    replies, _ = rig.answers()[lists]
    assert len(replies) == 100


def test_a_request_that_arrives_later_does_not_wait_for_a_long_request_either() -> None:
    rig = _with_topics()
    lists = [rig.post([Topics()] * 100, peer=b"heavy") for _ in range(20)]
    rig.rounds(3)
    assert _answered(rig) == []
    for _ in range(5):
        command, payload = rig.put_command(b"one", topic="topic.00000")
        put = rig.post([command], [payload], peer=b"light")
        rig.rounds()
        assert (b"light", put) in _answered(rig)
    _finish(rig)
    assert set(lists) < set(rig.answers())


def test_the_requests_of_one_peer_are_decided_in_the_order_of_their_arrival() -> None:
    rig = _with_topics()
    rig.do(Subscribe("topic.00000", "kitchen"))
    rig.hello("first")
    rig.hello("second")
    rig.network.sent.clear()
    expected = []
    for number in range(30):
        peer = b"first" if number % 2 else b"second"
        session = peer.decode()
        puts = [
            rig.put_command(b"%d" % number, topic="topic.00000", session=session) for _ in range(1 + 70 * (number % 5))
        ]
        lists: list[Command] = [Topics()] * (number % 3)
        commands = [command for command, _ in puts] + lists
        expected.append((peer, rig.post(commands, [payload for _, payload in puts], peer=peer)))
    rounds = _finish(rig)
    assert rounds > 10
    sent = _answered(rig)
    for peer in (b"first", b"second"):
        assert [entry for entry in sent if entry[0] == peer] == [entry for entry in expected if entry[0] == peer]
    # A number that was decided out of order would be answered with GAP.
    refused = [reply for replies, _ in rig.answers().values() for reply in replies if isinstance(reply, NotNow)]
    assert refused == []


def test_a_long_request_is_answered_once_with_all_of_its_results() -> None:
    rig = _with_topics()
    request = rig.post([Topics(limit=10)] * 3_000, peer=b"heavy")
    assert _finish(rig) > 5
    replies, _ = rig.answers()[request]
    assert len(replies) == 3_000
    assert {type(reply) for reply in replies} == {TopicsReply}


def test_many_small_puts_of_one_peer_still_share_one_sync() -> None:
    rig = _with_topics(count=1)
    puts = [rig.put_command(b"x", topic="topic.00000") for _ in range(500)]
    for command, payload in puts:
        rig.post([command], [payload])
    syncs = rig.story.count("sync")
    rig.rounds()
    assert len(rig.answers()) == 500
    assert rig.story.count("sync") == syncs + 1


def test_peers_whose_puts_fill_each_group_still_take_turns() -> None:
    rig = Rig(limits=Limits(group_bytes_max=10_000))
    rig.subscribe()
    for _ in range(60):
        command, payload = rig.put_command(bytes(3_000), session="heavy")
        rig.post([command], [payload], peer=b"heavy")
    rig.rounds(2)
    rig.network.sent.clear()
    command, payload = rig.put_command(b"one", session="light")
    put = rig.post([command], [payload], peer=b"light")
    rig.rounds(2)
    assert (b"light", put) in _answered(rig)


def test_requests_with_large_headers_count_even_if_they_cannot_be_decoded() -> None:
    rig = _with_topics(count=1)
    rig.network.arriving += [(b"heavy", [b"\x93" + bytes(REQUEST_HEADER_BYTES_MAX - 1)])] * 10
    command, payload = rig.put_command(b"one", topic="topic.00000")
    put = rig.post([command], [payload], peer=b"light")
    rig.rounds(2)
    answered = _answered(rig)
    assert (b"light", put) in answered
    assert len(answered) < 10


def test_a_turn_also_ends_when_its_time_is_over() -> None:
    class SlowClock(FakeClock):
        def now_ms(self) -> int:
            self.time_ms += 1
            return self.time_ms

    rig = _with_topics(count=1)
    clock = SlowClock()
    clock.time_ms = rig.clock.time_ms
    rig.broker.clock = clock
    slow = rig.post([Read("topic.00000", START_EARLIEST, 1)] * 400, peer=b"slow")
    light = rig.post([Read("topic.00000", START_EARLIEST, 1)], peer=b"light")
    rig.rounds()
    assert _answered(rig) == [(b"light", light)]
    _finish(rig)
    assert len(rig.answers()[slow][0]) == 400


# The size of replies.


def test_the_reply_to_many_lists_is_bounded_and_the_rest_is_answered_with_overloaded() -> None:
    rig = _with_topics(Limits(get_bytes_max=200_000))
    request = rig.post([Topics()] * 1_000)
    _finish(rig)
    [(_, frames)] = rig.network.sent
    replies, _ = rig.answers()[request]
    kinds = [type(reply) for reply in replies]
    assert kinds[0] is TopicsReply
    assert code(replies[-1]) == "OVERLOADED"
    # Once the reply is full, it stays full: otherwise a numbered command behind a refused one would be a gap.
    assert kinds == sorted(kinds, key=lambda kind: kind is NotNow)
    assert sum(map(len, frames)) < 600_000


def test_repeated_hellos_count_towards_the_size_of_the_reply() -> None:
    rig = Rig(limits=Limits(get_bytes_max=50_000))
    rig.hello("alice")
    for number in range(500):
        command, payload = rig.put_command(b"x", topic=f"t{number}", create=True)
        rig.post([msgspec.structs.replace(command, seen_below=1)], [payload])
    _finish(rig)
    rig.answers()
    request = rig.post([Hello("alice", rig.epochs["alice"], 1, 1000)] * 1_000)
    _finish(rig)
    [(_, frames)] = rig.network.sent
    assert sum(map(len, frames)) < 300_000
    assert code(rig.answers()[request][0][-1]) == "OVERLOADED"


def test_a_page_of_large_entries_is_cut_by_size_and_continues() -> None:
    rig = Rig()
    for number in range(40):
        rig.do(RegistrySet("mine", f"key {number:02}", bytes(30_000)))
    found: list[str] = []
    after = ""
    pages = 0
    while True:
        page = expect(RegistryListReply, rig.ask(RegistryList("mine", after=after)))
        found += [entry.key for entry in page.entries]
        pages += 1
        after = page.after
        if not after:
            break
    assert found == [f"key {number:02}" for number in range(40)]
    assert 5 < pages < 40


def test_gets_of_many_small_batches_are_bounded_by_their_number() -> None:
    rig = Rig()
    owner = rig.subscribe()
    puts = [rig.put_command(b"x") for _ in range(1_500)]
    for first in range(0, 1_500, 500):
        chunk = puts[first : first + 500]
        rig.post([command for command, _ in chunk], [payload for _, payload in chunk])
    _finish(rig)
    rig.answers()
    request = rig.post([owner.get()] * 50)
    _finish(rig)
    replies, _ = rig.answers()[request]
    assert len(expect(GetReply, replies[0]).batches) == 1_500
    assert code(replies[-1]) == "OVERLOADED"
    assert sum(isinstance(reply, GetReply) for reply in replies) == 1


# The queue of requests.


def test_a_peer_that_fills_the_queue_does_not_keep_others_out() -> None:
    rig = _with_topics()
    flood = [rig.post([Topics()] * 100, peer=b"heavy") for _ in range(1_500)]
    rig.rounds(2)
    late = [rig.post([Topics()] * 100, peer=b"heavy") for _ in range(10)]
    command, payload = rig.put_command(b"one", topic="topic.00000")
    put = rig.post([command], [payload], peer=b"light")
    rig.rounds()
    sent = rig.answers()
    assert isinstance(sent[put][0][0], PutReply)
    # What exceeds the peer's share is refused before it is decided.
    assert [code(reply) for request in late for reply in sent[request][0]] == ["OVERLOADED"] * 1_000
    assert not set(flood) & set(sent)


@pytest.mark.parametrize("peers", [1, 20])
def test_what_a_round_refuses_is_bounded_for_each_peer_and_for_all(peers: int) -> None:
    rig = _with_topics(count=1)
    names = [b"heavy %d" % number for number in range(peers)]
    for number in range(1_500):
        rig.post([Topics()] * 1_000, peer=names[number % peers])
    rig.rounds()
    rig.network.sent.clear()
    for name in names:
        for _ in range(20):
            rig.post([Topics()] * 1_000, peer=name)
    rig.rounds()
    sent = Counter({name: sum(len(frames[0]) for peer, frames in rig.network.sent if peer == name) for name in names})
    largest = len(rig.network.sent[0][1][0])
    assert 0 < max(sent.values()) < work.PEER_REFUSALS_BYTES_MAX + largest
    assert sent.total() < work.REFUSALS_BYTES_MAX + largest
    # A request that got no answer can be sent again.
    again = rig.post([Topics()], peer=names[0])
    rig.rounds()
    assert code(rig.answers()[again][0][0]) == "OVERLOADED"


def test_a_stop_refuses_requests_that_are_not_finished() -> None:
    rig = _with_topics()
    lists = [rig.post([Topics()] * 1_000, peer=b"heavy") for _ in range(3)]
    rig.rounds()
    rig.broker.stop()
    answered = rig.answers()
    assert set(answered) == set(lists)
    for request in lists:
        replies, _ = answered[request]
        assert len(replies) == 1_000
        assert code(replies[-1]) == "STOPPING"


# Waiting requests.


def test_a_thousand_waiting_reads_are_woken_over_several_rounds_and_each_is_answered_once() -> None:
    rig = _with_topics(count=1)
    rig.do(Subscribe("topic.00000", "kitchen"))
    reads = [rig.post([Read("topic.00000", 0, 1 << 20, 60_000)], peer=b"reader") for _ in range(1_500)]
    _finish(rig)
    assert len(rig.broker.waiting) == 1_500
    rig.answers()
    command, payload = rig.put_command(b"one", topic="topic.00000")
    put = rig.post([command], [payload])
    rig.rounds()
    assert 0 < len(rig.broker.waiting) < 1_500
    _finish(rig)
    assert set(rig.answers()) == {put, *reads}
    assert len(rig.broker.waiting) == 0


def test_many_waiting_requests_that_get_nothing_are_tried_once() -> None:
    rig = _with_topics(count=1)
    for _ in range(2_500):
        rig.post([Read("topic.00000", 0, 1 << 20, 60_000)], peer=b"reader")
    _finish(rig)
    rig.do(Subscribe("topic.00000", "kitchen"))
    assert rig.broker.busy
    rig.rounds(3)
    assert not rig.broker.busy
    assert len(rig.broker.waiting) == 2_500


def test_one_peer_cannot_wait_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_PER_PEER_MAX", 5)
    rig = _with_topics(count=1)
    reads = [rig.post([Read("topic.00000", 0, 1 << 20, 60_000)], peer=b"reader") for _ in range(7)]
    other = rig.post([Read("topic.00000", 0, 1 << 20, 60_000)], peer=b"other")
    rig.rounds()
    answered = rig.answers()
    assert [code(answered[request][0][0]) for request in reads[5:]] == ["OVERLOADED"] * 2
    assert other not in answered
    assert len(rig.broker.waiting) == 6
    rig.rounds(forward_ms=61_000)
    again = rig.post([Read("topic.00000", 0, 1 << 20, 60_000)], peer=b"reader")
    rig.rounds()
    assert again not in rig.answers()


def test_a_subscription_to_all_topics_uses_up_a_turn() -> None:
    rig = _with_topics()
    subscribes = rig.post([rig.numbered(Subscribe("#", f"s{number}"), "heavy") for number in range(20)], peer=b"heavy")
    command, payload = rig.put_command(b"one", topic="topic.00000")
    rig.network.sent.clear()
    put = rig.post([command], [payload], peer=b"light")
    rig.rounds()
    assert _answered(rig) == [(b"light", put)]
    _finish(rig)
    replies, _ = rig.answers()[subscribes]
    assert {type(reply) for reply in replies} == {SubscribeReply}


# Overdrafts.


class _Heavy:
    """A broker with two peers: each subscription of the heavy one is more work than a whole round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(work, "_TOPICS_PER_UNIT", 1)
        monkeypatch.setattr(work, "OVERDRAFT_UNITS_MIN", TOPICS // 2)
        # With the policy of the rig, housekeeping keeps the loop awake.
        self.rig = _with_topics(policy=Policy())
        self.rig.hello("heavy")
        self.rig.network.sent.clear()
        self._names = 0

    def subscribe(self, count: int = 1) -> int:
        """Post a request of the heavy peer that subscribes so many times to all topics. Return its id."""
        first = self._names
        self._names += count
        names = [f"s{number}" for number in range(first, self._names)]
        return self.rig.post([self.rig.numbered(Subscribe("#", name), "heavy") for name in names], peer=b"heavy")

    def put(self) -> int:
        """Post a put of the other peer. Return the id of the request."""
        command, payload = self.rig.put_command(b"one", topic="topic.00000")
        return self.rig.post([command], [payload], peer=b"light")

    def answered(self) -> list[int]:
        """Return the requests that were answered since the last call."""
        found = [request_id for _, request_id in _answered(self.rig)]
        self.rig.network.sent.clear()
        return found

    def hold(self) -> int:
        """Let the heavy peer overdraw two turns while the other is active. Return the id of its next request, which is
        held."""
        self.put()
        before = self.subscribe(2)
        self.rig.rounds(3)
        assert before in self.answered()
        held = self.subscribe()
        self.rig.rounds()
        assert self.answered() == []
        return held


def test_a_peer_that_repeats_heavy_commands_waits_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = _Heavy(monkeypatch)
    held = peers.hold()
    waited_ms = 0
    while True:
        put = peers.put()
        peers.rig.rounds(forward_ms=10)
        answered = peers.answered()
        assert put in answered
        if held in answered:
            break
        waited_ms += 10
        assert waited_ms < 2 * PAYBACK_MS_MAX, "the peer is never served"
    assert waited_ms > 10


def test_a_long_request_of_heavy_commands_is_finished_though_others_are_always_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = _Heavy(monkeypatch)
    request = peers.subscribe(12)
    later = peers.subscribe()
    for _ in range(12 * PAYBACK_MS_MAX // 50):
        peers.put()
        peers.rig.rounds(forward_ms=50)
    sent = [entry for entry in _answered(peers.rig) if entry[0] == b"heavy"]
    assert sent == [(b"heavy", request), (b"heavy", later)]
    replies = [reply for request_id in (request, later) for reply in peers.rig.answers().get(request_id, ([], []))[0]]
    assert {type(reply) for reply in replies} == {SubscribeReply}


def test_one_heavy_command_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = _Heavy(monkeypatch)
    peers.put()
    requests = [peers.subscribe(), peers.rig.post([Topics(limit=1)], peer=b"heavy")]
    peers.rig.rounds(3)
    assert set(requests) < set(peers.answered())


def test_a_peer_that_is_alone_does_not_wait_after_heavy_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = _Heavy(monkeypatch)
    peers.put()
    peers.rig.rounds()
    peers.rig.clock.time_ms += ACTIVE_MS
    request = peers.subscribe(20)
    _finish(peers.rig)
    assert request in peers.answered()


def test_a_peer_that_pays_back_is_served_once_the_others_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = _Heavy(monkeypatch)
    held = [peers.hold(), *(peers.subscribe() for _ in range(9))]
    peers.rig.rounds(forward_ms=ACTIVE_MS)
    _finish(peers.rig)
    assert peers.answered() == held


def test_the_loop_sleeps_until_the_payback_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = _Heavy(monkeypatch)
    held = peers.hold()
    broker = peers.rig.broker
    # The pending confirmation of the last group would wake the loop earlier.
    peers.rig.rounds(forward_ms=60)
    assert not broker.busy
    wait_ms = broker.wait_ms()
    assert 1 < wait_ms <= ACTIVE_MS
    peers.rig.rounds(forward_ms=wait_ms - 1)
    assert peers.answered() == []
    assert broker.wait_ms() == 1
    peers.rig.rounds(forward_ms=1)
    assert peers.answered() == [held]


def test_a_stop_refuses_the_requests_of_a_peer_that_pays_back(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = _Heavy(monkeypatch)
    held = [peers.hold(), peers.subscribe()]
    peers.rig.broker.stop()
    answered = peers.rig.answers()
    assert [code(reply) for request in held for reply in answered[request][0]] == ["STOPPING"] * 2


def test_subscriptions_that_exist_and_refusals_are_no_overdraft(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = _Heavy(monkeypatch)
    rig = peers.rig
    rig.do(Subscribe("#", "known"))
    repeated = [rig.numbered(Subscribe("#", "known"), "heavy"), rig.numbered(Unsubscribe("#", "nobody"), "heavy")]
    peers.put()
    requests = [rig.post([command], peer=b"heavy") for command in repeated]
    requests += [peers.subscribe(), rig.post([Topics(limit=1)], peer=b"heavy")]
    rig.rounds(4)
    assert set(requests) < set(peers.answered())


def test_commands_of_the_largest_size_are_no_overdraft() -> None:
    limits = Limits()
    rig = _with_topics(limits, count=2 * TOPICS)
    page = expect(TopicsReply, rig.ask(Topics(limit=1_000_000)))
    state = rig.broker.engine.state
    put = rig.numbered(Put("topic.00000", Envelope(1, limits.batch_bytes_max, 0)))
    fetched = (Slice(0, limits.get_bytes_max // GET_BATCHES_MAX, 0, 1, 0, 0),) * GET_BATCHES_MAX
    for command, decision in (
        (Topics(), Decision(page)),
        (put, Decision(PutReply(1, 0, 1, 0, 0))),
        (Read("topic.00000", 0, 1), Decision(page, slices=fetched)),
    ):
        assert work.units_of(state, command, decision) <= work.OVERDRAFT_UNITS_MIN


def test_commands_on_patterns_count_by_their_topics() -> None:
    rig = _with_topics()
    rig.do(Subscribe("#", "everything"))
    opened = expect(OpenReply, rig.do(Open("#", "everything")))
    state = rig.broker.engine.state
    pairs = tuple((topic_id, 0) for topic_id in state.topics_by_id)
    patterns = expect(PatternsReply, rig.ask(Patterns()))
    assert work.units_of(state, Patterns(), Decision(patterns)) > TOPICS // 100
    rising = AckedMany(tuple((topic_id, "everything", 1) for topic_id in state.topics_by_id))
    for acks, positions, event in ((pairs, (), None), ((), pairs, None), (pairs, (), rising)):
        get = GetAny("#", "everything", opened.epoch, positions, 1_000, acks=acks)
        assert work.units_of(state, get, Decision(rig.ask(get), event)) > TOPICS // (100 if event is None else 4)


@pytest.mark.parametrize("in_flight_bytes", [INFLIGHT_BYTES_MAX, HttpOptions().buffer_bytes_max])
def test_what_clients_and_gateways_have_in_flight_is_within_the_limits_of_a_peer(in_flight_bytes: int) -> None:
    in_flight_bytes += Limits().batch_bytes_max
    assert in_flight_bytes <= ServeSettings().peer_bytes_max
    assert in_flight_bytes <= QUEUE_BYTES_MAX
