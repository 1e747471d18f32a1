"""A broker gets garbage: it answers, nothing changes, and other clients are served.

There are two kinds of garbage: frames that cannot be decoded, and valid commands with arbitrary values.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncemq.broker.housekeeping import Policy
from oncemq.journal.contract import Journal
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.memory import MemoryJournal
from oncemq.journal.worker import InlineWorker
from oncemq.protocol.batch import encode_batch
from oncemq.protocol.commands import (
    BY_PATTERN,
    DROP,
    EXPIRE,
    START_EARLIEST,
    Ack,
    AckUpto,
    Bye,
    Close,
    Command,
    Commit,
    CreateTopic,
    Envelope,
    Extend,
    Find,
    Get,
    GetAny,
    Hello,
    Keyed,
    Leave,
    Measure,
    Numbered,
    Open,
    Operation,
    Patterns,
    Put,
    Read,
    RegistryList,
    RegistrySet,
    Seek,
    Sessions,
    Settle,
    Sharing,
    Stage,
    Subscribe,
    Subscriptions,
    Take,
    Topics,
    Transact,
    Void,
)
from oncemq.protocol.frames import decode_response, encode_request
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import NotNow, Refusal, Reply, TakeReply
from tests.broker.rig import Owner, Rig, offsets
from tests.engine.world import image_of
from tests.protocol.strategies import EDGES, commands, damaged, operations, with_payloads
from tests.simulation.environment.disk import SimDisk

SETTINGS = settings(max_examples=150, deadline=None)
LIMITS = Limits(
    batch_bytes_max=4_000,
    topics_max=20,
    sessions_max=20,
    subscriptions_max=60,
    keys_max=20,
    patterns_max=5,
    delayed_max=5,
    members_max=5,
    leased_max=5,
)
PAYLOADS = [encode_batch([b"one"]), encode_batch([b"two", b"three"]), b"", b"no batch at all"]


def _file_journal() -> Journal:
    disk = SimDisk(Random(1))
    return FileJournal(disk, InlineWorker(), segment_bytes=EXTENT_BYTES, block_bytes=512, journal_id=bytes(16))


#: Large enough for the largest events.
EXTENT_BYTES = 1 << 20
SHARING = Sharing(lease_ms=1_000, tries_max=2, dead_topic="dead", key_order=True)


class Victim:
    """A broker with a topic, a subscription of each kind, a lease and some messages."""

    def __init__(self, journal: Journal) -> None:
        self.rig = Rig(journal, LIMITS, Policy(look_every_ms=0))
        self.owner: Owner = self.rig.subscribe()
        self.rig.do(Subscribe("orders", "waiters", START_EARLIEST, SHARING))
        self.rig.do(Subscribe("#", "watcher", START_EARLIEST))
        self.shared = self.rig.open("orders", "waiters").opened
        self.watcher = self.rig.open("#", "watcher").opened
        self.topic_id = self.owner.opened.topic_id
        self.rig.put(b"first")
        self.rig.put(b"second", b"third")
        taken = self.rig.ask(Take(self.topic_id, "waiters", self.shared.epoch, "member", 1, 2, 100))
        assert isinstance(taken, TakeReply)
        self.token = taken.token

    def feed(self, frames: list[bytes]) -> list[Reply]:
        """Send a request. Return its replies, if any, and then the replies to earlier requests that had waited."""
        rig = self.rig
        waiting = len(rig.broker.waiting)
        rig.network.arriving.append((b"fuzzer", frames))
        rig.rounds()
        while rig.broker.busy:
            rig.rounds()
        sent, rig.network.sent = rig.network.sent, []
        assert {peer for peer, _ in sent} <= {b"fuzzer"}
        assert len(sent) <= 1 + waiting
        return [reply for _, answer in sent for reply in decode_response(answer)[0].replies]

    def feed_and_look(self, frames: list[bytes]) -> list[Reply]:
        """Check that an invalid request changes nothing."""
        before = image_of(self.rig.broker.engine)
        malformed = self.rig.broker.counters["malformed"]
        replies = self.feed(frames)
        assert not any(isinstance(reply, Refusal) and reply.code == "BROKER_BUG" for reply in replies), replies
        if self.rig.broker.counters["malformed"] > malformed:
            assert [type(reply) for reply in replies] == [Refusal]
            assert image_of(self.rig.broker.engine) == before
        return replies

    def check(self) -> None:
        """Check that another client is served, and that a restart recovers the same state."""
        rig = self.rig
        rig.do(Subscribe("checked", "checker"), session="checker")
        rig.put(b"value", topic="checked", session="checker")
        owner = rig.open("checked", "checker")
        assert offsets(rig.ask(owner.get(owner.opened.acked))) == [owner.opened.acked]
        if isinstance(rig.journal, MemoryJournal):
            before = sorted(map(repr, image_of(rig.broker.engine)))
            rig.restart()
            assert sorted(map(repr, image_of(rig.broker.engine))) == before


@pytest.mark.parametrize("make_journal", [MemoryJournal, _file_journal])
def test_random_frames_do_no_harm(make_journal: Callable[[], Journal]) -> None:
    victim = Victim(make_journal())

    @SETTINGS
    @given(st.lists(st.binary(max_size=60), max_size=4))
    def feed(frames: list[bytes]) -> None:
        victim.feed_and_look(frames)

    feed()
    victim.check()


@pytest.mark.parametrize("make_journal", [MemoryJournal, _file_journal])
def test_damaged_requests_do_no_harm(make_journal: Callable[[], Journal]) -> None:
    victim = Victim(make_journal())

    @SETTINGS
    @given(st.data(), st.lists(commands, min_size=1, max_size=3))
    def feed(data: st.DataObject, found: list[Command]) -> None:
        fitted, payloads = with_payloads(found, PAYLOADS)
        victim.feed_and_look(data.draw(damaged(encode_request(1, fitted, payloads))))

    feed()
    victim.check()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(commands, min_size=1, max_size=3), min_size=1, max_size=6), st.sampled_from([0, 1, 10**9]))
def test_commands_with_any_values_are_decided_or_refused(requests: list[list[Command]], forward_ms: int) -> None:
    victim = Victim(MemoryJournal(extent_bytes=EXTENT_BYTES))
    for found in requests:
        fitted, payloads = with_payloads(found, PAYLOADS)
        victim.feed_and_look([bytes(frame) for frame in encode_request(1, fitted, payloads)])
        victim.rig.rounds(forward_ms=forward_ms)
        victim.rig.network.sent.clear()
    # The anonymous session may have expired: use a new client.
    victim.check()


class Aim:
    """Sends random commands with valid ids, epochs and tokens, and arbitrary other numbers."""

    def __init__(self, victim: Victim, data: st.DataObject) -> None:
        self._victim = victim
        self._data = data
        kitchen, waiters, watcher = victim.owner.opened.epoch, victim.shared.epoch, victim.watcher.epoch
        #: (topic, subscriber, epoch)
        self._owned = [("orders", "kitchen", kitchen), ("orders", "watcher" + BY_PATTERN + "#", watcher)]
        self._shared = [("orders", "waiters", waiters)]
        self._by_name = [("orders", "kitchen", kitchen), *self._shared, ("#", "watcher", watcher)]

    def at(self, found: Command | Operation) -> Command:
        if isinstance(found, Numbered | Keyed):
            found = found.operation
        aimed: Any = self._aim(found)
        return self._victim.rig.numbered(aimed) if isinstance(found, Operation) else aimed

    def _aim(self, found: Any) -> Any:
        known = self._known(found)
        fields = {name: known[name] for name in found.__struct_fields__ if name in known}
        if isinstance(found, Settle):
            fields |= self._ranges(found)
        if isinstance(found, Transact):
            fields = {name: tuple(map(self._aim, getattr(found, name))) for name in ("acks", "settles", "puts")}
        if isinstance(found, Put | Stage) and self._data.draw(st.booleans()):
            due_ms = self._data.draw(st.sampled_from([0, 0, self._victim.rig.clock.time_ms + 5]))
            fields["envelope"] = Envelope(1, 0, 0, self._data.draw(st.integers(0, 9)), due_ms, bytes(8))
        return msgspec.structs.replace(found, **fields)

    def _ranges(self, found: Settle) -> dict[str, object]:
        token = self._victim.token
        if self._data.draw(st.booleans()):
            first = self._data.draw(st.integers(0, 2))
            return {"done": ((token, first, 1),), "returned": ((token, (first + 1) % 3, 1, 5),)}
        return {name: tuple((token, *entry[1:]) for entry in getattr(found, name)) for name in ("done", "returned")}

    def _known(self, found: object) -> dict[str, object]:
        targets = self._by_name
        if isinstance(found, Take | Extend | Leave | Settle):
            targets = self._shared
        elif isinstance(found, Get | Ack | AckUpto | Close):
            targets = self._owned
        elif isinstance(found, GetAny):
            targets = self._by_name[-1:]
        topic, subscriber, epoch = self._data.draw(st.sampled_from(targets))
        return {
            "topic": "orders" if isinstance(found, Put | Stage | Commit | Read | Find | Measure) else topic,
            "pattern": "#",
            "topic_id": self._victim.topic_id,
            "subscriber": subscriber,
            "epoch": epoch,
            "member": self._data.draw(st.sampled_from(["member", "other"])),
            "tokens": (self._victim.token, self._data.draw(st.integers(0, 50))),
        }


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(commands | operations, min_size=1, max_size=8), st.sampled_from([0, 1, 2_000, 10**9]))
def test_commands_that_reach_their_target_are_decided_or_refused(
    data: st.DataObject, found: list[Command | Operation], forward_ms: int
) -> None:
    victim = Victim(MemoryJournal(extent_bytes=EXTENT_BYTES))
    aim = Aim(victim, data)
    for one in found:
        fitted, payloads = with_payloads([aim.at(one)], PAYLOADS)
        victim.feed_and_look([bytes(frame) for frame in encode_request(1, fitted, payloads)])
        victim.rig.rounds(2, forward_ms=forward_ms)
        victim.rig.network.sent.clear()
    victim.check()


@pytest.mark.parametrize("edge", EDGES)
def test_a_number_at_the_edge_of_its_range_does_no_harm(edge: int) -> None:
    """Change every number of every operation in turn, in a valid session."""
    for make in _operations_with(edge):
        victim = Victim(MemoryJournal(extent_bytes=EXTENT_BYTES))
        operation = make(victim) if callable(make) else make
        [fitted], payloads = with_payloads([victim.rig.numbered(operation)], PAYLOADS)
        [reply] = victim.feed_and_look([bytes(frame) for frame in encode_request(1, [fitted], payloads)])
        assert not isinstance(reply, NotNow), (operation, reply)
        victim.rig.rounds(2, forward_ms=10)
        victim.check()


def _operations_with(edge: int) -> list[Operation | Callable[[Victim], Operation]]:
    envelope = Envelope(1, 1, 1)
    put = Put("orders", envelope)
    return [
        CreateTopic("new", edge, 0),
        CreateTopic("new", 0, edge),
        CreateTopic("new", 0, 0, edge),
        CreateTopic("new", 0, 0, edge, DROP),
        CreateTopic("orders", edge, edge, edge, DROP, True),
        CreateTopic("orders", 0, 0, edge, EXPIRE, True),
        Subscribe("orders", "bar", edge),
        Subscribe("new", "bar", edge),
        Subscribe("new.*", "bar", edge),
        Subscribe("orders", "bar", -1, Sharing(edge)),
        Subscribe("orders", "bar", -1, Sharing(1_000, edge, "dead")),
        Subscribe("orders", "bar", edge, Sharing(1_000, key_order=True)),
        Open("orders", "kitchen", edge),
        Open("orders", "waiters", edge),
        Open("#", "watcher", edge),
        Close(edge, "kitchen", 1),
        Close(1, "kitchen", edge),
        Seek("orders", "kitchen", edge),
        Seek("orders", "kitchen", 0, edge),
        Seek("orders", "waiters", edge),
        Seek("orders", "waiters", 0, edge),
        Seek("#", "watcher", edge),
        Seek("#", "watcher", 0, edge),
        Put("orders", Envelope(edge, 1, 1)),
        Put("orders", Envelope(1, 1, 1, edge)),
        Put("orders", Envelope(1, 1, 1, 0, edge)),
        Put("orders", Envelope(1, 1, 1, edge, edge)),
        lambda victim: Put("orders", Envelope(1, 1, 1, edge, victim.rig.clock.time_ms + 5)),
        lambda victim: Settle(edge, "waiters", victim.shared.epoch),
        lambda victim: Settle(victim.topic_id, "waiters", edge),
        lambda victim: _settle(victim, ((edge, 0, 1),)),
        lambda victim: _settle(victim, ((victim.token, edge, 1),)),
        lambda victim: _settle(victim, ((victim.token, 0, edge),)),
        lambda victim: _settle(victim, (), ((edge, 0, 1, 0),)),
        lambda victim: _settle(victim, (), ((victim.token, edge, 1, 0),)),
        lambda victim: _settle(victim, (), ((victim.token, 0, edge, 0),)),
        lambda victim: _settle(victim, (), ((victim.token, 0, 1, edge),)),
        lambda victim: Transact((AckUpto(edge, "kitchen", victim.owner.opened.epoch, 1),), (), (put,)),
        lambda victim: Transact((AckUpto(victim.topic_id, "kitchen", edge, 1),), (), (put,)),
        lambda victim: Transact((_ack_upto(victim, edge),), (), (put,)),
        lambda victim: Transact((), (_settle(victim, ((victim.token, 0, edge),)),), (put,)),
        Transact((), (), (put, Put("orders", Envelope(edge, 1, 1)))),
        Transact((), (), (put, Put("orders", Envelope(1, 1, 1, edge, 2_000_000)))),
        Transact((), (), (Put("orders", Envelope(1, 1, 1, 0, edge)), put)),
        Stage("stage", "orders", "writer", edge, envelope),
        Stage("stage", "orders", "writer", 1, Envelope(1, 1, 1, edge)),
        Commit("writer", edge, "orders", ()),
        Commit("writer", 1, "orders", (("stage", edge),)),
        Commit("", edge, "orders", ()),
        Commit("writer", 1, "orders", (), content=b"x" * min(abs(edge), 1_000)),
        Commit("writer", edge, "", (), (("orders", ()),)),
        Commit("writer", 1, "", (), (("orders", (("stage", edge),)), ("bills", ()))),
        RegistrySet("space", "key", b"value", edge),
    ]


def _settle(
    victim: Victim, done: tuple[tuple[int, int, int], ...], returned: tuple[tuple[int, int, int, int], ...] = ()
) -> Settle:
    return Settle(victim.topic_id, "waiters", victim.shared.epoch, done, returned)


def _ack_upto(victim: Victim, upto: int) -> AckUpto:
    return AckUpto(victim.topic_id, "kitchen", victim.owner.opened.epoch, upto)


@pytest.mark.parametrize("edge", EDGES)
def test_a_number_at_the_edge_of_its_range_does_no_harm_in_other_commands(edge: int) -> None:
    victim = Victim(MemoryJournal(extent_bytes=EXTENT_BYTES))
    opened, shared, watcher, topic_id = victim.owner.opened, victim.shared, victim.watcher, victim.topic_id
    every_command: list[Command] = [
        Hello("bob", edge, 1, 8),
        Hello("bob", 0, edge, 8),
        Hello("carol", 0, 1, edge),
        Bye("bob", edge),
        Numbered("alice", edge, 4, 1, Void()),
        Numbered("alice", 1, edge, 1, Void()),
        Numbered("alice", 1, 4, edge, Void()),
        Get(edge, "kitchen", 1, 0, 100),
        Get(opened.topic_id, "kitchen", edge, 0, 100),
        Get(opened.topic_id, "kitchen", opened.epoch, edge, 100),
        Get(opened.topic_id, "kitchen", opened.epoch, 0, edge),
        Get(opened.topic_id, "kitchen", opened.epoch, 1, 100, edge),
        Get(opened.topic_id, "kitchen", opened.epoch, 0, 100, 0, edge),
        Ack(opened.topic_id, "kitchen", opened.epoch, edge),
        GetAny("#", "watcher", edge, (), 100),
        GetAny("#", "watcher", watcher.epoch, ((edge, 0),), 100),
        GetAny("#", "watcher", watcher.epoch, ((topic_id, edge),), 100),
        GetAny("#", "watcher", watcher.epoch, (), edge),
        GetAny("#", "watcher", watcher.epoch, ((topic_id, 3),), 100, edge),
        GetAny("#", "watcher", watcher.epoch, (), 100, 0, ((edge, 1),)),
        GetAny("#", "watcher", watcher.epoch, (), 100, 0, ((topic_id, edge),)),
        Take(edge, "waiters", shared.epoch, "member", 2, 1, 100),
        Take(topic_id, "waiters", edge, "member", 2, 1, 100),
        Take(topic_id, "waiters", shared.epoch, "other", edge, 1, 100),
        Take(topic_id, "waiters", shared.epoch, "other", edge, edge, edge),
        Take(topic_id, "waiters", shared.epoch, "third", 1, edge, 100),
        Take(topic_id, "waiters", shared.epoch, "third", 2, 1, edge),
        Take(topic_id, "waiters", shared.epoch, "third", 3, 1, 100, edge),
        Extend(edge, "waiters", shared.epoch, (victim.token,)),
        Extend(topic_id, "waiters", edge, (victim.token,)),
        Extend(topic_id, "waiters", shared.epoch, (edge, victim.token, edge)),
        Leave(edge, "waiters", shared.epoch, "member"),
        Leave(topic_id, "waiters", edge, "member"),
        Find("orders", edge),
        Measure("orders", edge, edge, edge, edge),
        Measure("orders", edge, 5),
        Measure("orders", 0, edge),
        Measure("orders", 0, 5, edge),
        Patterns("", edge),
        Read("orders", edge, 100),
        Read("orders", 0, edge),
        Read("orders", 1, 100, edge),
        Read("orders", 0, 100, 0, edge),
        Topics("", edge),
        Subscriptions("orders", "", edge),
        Sessions("", edge),
        RegistryList("space", "", "", edge),
    ]
    for command in every_command:
        victim.feed_and_look([bytes(frame) for frame in encode_request(1, [command])])
        victim.rig.rounds(2, forward_ms=10)
        victim.rig.network.sent.clear()
    victim.check()
