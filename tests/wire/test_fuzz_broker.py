"""A broker that is fed nonsense: it answers, nothing changes, everyone else is served.

Two kinds of nonsense: frames that can't be read, and commands that can, with any values in them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncemq.broker.housekeeping import Policy
from oncemq.engine import commands as co
from oncemq.engine import replies as re
from oncemq.journal.contract import Journal
from oncemq.journal.files import FileJournal
from oncemq.journal.memory import MemoryJournal
from oncemq.journal.worker import InlineWorker
from oncemq.limits import Limits
from oncemq.message import encode_batch
from oncemq.wire.frames import decode_response, encode_request
from tests.broker.rig import Owner, Rig, offsets
from tests.engine.world import image_of
from tests.simulation.disk import SimDisk
from tests.wire.strategies import EDGES, commands, damaged, with_payloads

SETTINGS = settings(max_examples=150, deadline=None)
LIMITS = Limits(batch_bytes_max=4_000, topics_max=20, sessions_max=20, subscriptions_max=20, keys_max=20)
PAYLOADS = [encode_batch([b"one"]), encode_batch([b"two", b"three"]), b"", b"no batch at all"]


def _file_journal() -> Journal:
    disk = SimDisk(Random(1))
    return FileJournal(disk, InlineWorker(), segment_bytes=32 * 1024, block_bytes=512, journal_id=bytes(16))


class Victim:
    """A broker with a topic, a subscription and a message in it."""

    def __init__(self, journal: Journal) -> None:
        self.rig = Rig(journal, LIMITS, Policy(look_every_ms=0))
        self.owner: Owner = self.rig.subscribe()
        self.rig.put(b"first")

    def feed(self, frames: list[bytes]) -> list[re.Reply]:
        """One request; returns what it was answered, which went to who asked, if it was answered at all."""
        rig = self.rig
        rig.network.arriving.append((b"fuzzer", frames))
        rig.rounds()
        while rig.broker.busy:
            rig.rounds()
        sent, rig.network.sent = rig.network.sent, []
        assert {peer for peer, _ in sent} <= {b"fuzzer"}
        assert len(sent) <= 1
        return [reply for _, answer in sent for reply in decode_response(answer)[0].replies]

    def feed_and_look(self, frames: list[bytes]) -> None:
        """A request that can't be read changes nothing."""
        before = image_of(self.rig.broker.engine)
        malformed = self.rig.broker.counters["malformed"]
        replies = self.feed(frames)
        assert not any(isinstance(reply, re.Refusal) and reply.code == "BROKER_BUG" for reply in replies), replies
        if self.rig.broker.counters["malformed"] > malformed:
            assert [type(reply) for reply in replies] == [re.Refusal]
            assert image_of(self.rig.broker.engine) == before

    def check(self) -> None:
        """A client of its own is served, and a restart finds the state as it was."""
        rig = self.rig
        rig.do(co.Subscribe("checked", "checker"), session="checker")
        rig.put(b"value", topic="checked", session="checker")
        owner = rig.open("checked", "checker")
        assert offsets(rig.ask(owner.get(owner.opened.acked))) == [owner.opened.acked]
        if isinstance(rig.journal, MemoryJournal):
            before = sorted(map(repr, image_of(rig.broker.engine)))
            rig.restart()
            assert sorted(map(repr, image_of(rig.broker.engine))) == before


@pytest.mark.parametrize("make_journal", [MemoryJournal, _file_journal])
def test_random_frames_harm_nobody(make_journal: Callable[[], Journal]) -> None:
    victim = Victim(make_journal())

    @SETTINGS
    @given(st.lists(st.binary(max_size=60), max_size=4))
    def feed(frames: list[bytes]) -> None:
        victim.feed_and_look(frames)

    feed()
    victim.check()


@pytest.mark.parametrize("make_journal", [MemoryJournal, _file_journal])
def test_damaged_requests_harm_nobody(make_journal: Callable[[], Journal]) -> None:
    victim = Victim(make_journal())

    @SETTINGS
    @given(st.data(), st.lists(commands, min_size=1, max_size=3))
    def feed(data: st.DataObject, found: list[co.Command]) -> None:
        fitted, payloads = with_payloads(found, PAYLOADS)
        victim.feed_and_look(data.draw(damaged(encode_request(1, fitted, payloads))))

    feed()
    victim.check()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(commands, min_size=1, max_size=3), min_size=1, max_size=6), st.sampled_from([0, 1, 10**9]))
def test_commands_with_any_values_are_decided_or_refused(requests: list[list[co.Command]], forward_ms: int) -> None:
    victim = Victim(MemoryJournal(extent_bytes=64 * 1024))
    for found in requests:
        fitted, payloads = with_payloads(found, PAYLOADS)
        victim.feed_and_look([bytes(frame) for frame in encode_request(1, fitted, payloads)])
        victim.rig.rounds(forward_ms=forward_ms)
        victim.rig.network.sent.clear()
    # An anonymous session may have expired on the way: a fresh client must do.
    victim.check()


@pytest.mark.parametrize("edge", EDGES)
def test_a_number_at_the_edge_of_its_range_harms_nobody(edge: int) -> None:
    """Every number of every operation in turn, in a session and under a number that count."""
    for operation in _operations_with(edge):
        victim = Victim(MemoryJournal(extent_bytes=64 * 1024))
        [fitted], payloads = with_payloads([victim.rig.numbered(operation)], PAYLOADS)
        victim.feed_and_look([bytes(frame) for frame in encode_request(1, [fitted], payloads)])
        victim.rig.rounds(2, forward_ms=10)
        victim.check()


def _operations_with(edge: int) -> list[co.Operation]:
    envelope = co.Envelope(1, 1, 1)
    return [
        co.CreateTopic("new", edge, 0),
        co.CreateTopic("new", 0, edge),
        co.Subscribe("orders", "bar", edge),
        co.Subscribe("new", "bar", edge),
        co.Open("orders", "kitchen", edge),
        co.Close(edge, "kitchen", 1),
        co.Close(1, "kitchen", edge),
        co.Put("orders", co.Envelope(edge, 1, 1)),
        co.Put("orders", co.Envelope(1, 1, 1, edge)),
        co.Put("orders", co.Envelope(1, 1, 1, 0, edge)),
        co.Stage("stage", "orders", "writer", edge, envelope),
        co.Commit("writer", edge, "orders", ()),
        co.Commit("writer", 1, "orders", (("stage", edge),)),
        co.RegistrySet("space", "key", b"value", edge),
    ]


@pytest.mark.parametrize("edge", EDGES)
def test_a_number_at_the_edge_of_its_range_harms_nobody_in_other_commands(edge: int) -> None:
    victim = Victim(MemoryJournal(extent_bytes=64 * 1024))
    opened = victim.owner.opened
    every_command: list[co.Command] = [
        co.Hello("bob", edge, 1, 8),
        co.Hello("bob", 0, edge, 8),
        co.Hello("carol", 0, 1, edge),
        co.Bye("bob", edge),
        co.Numbered("alice", edge, 4, 1, co.Void()),
        co.Numbered("alice", 1, edge, 1, co.Void()),
        co.Numbered("alice", 1, 4, edge, co.Void()),
        co.Get(edge, "kitchen", 1, 0, 100),
        co.Get(opened.topic_id, "kitchen", edge, 0, 100),
        co.Get(opened.topic_id, "kitchen", opened.epoch, edge, 100),
        co.Get(opened.topic_id, "kitchen", opened.epoch, 0, edge),
        co.Get(opened.topic_id, "kitchen", opened.epoch, 1, 100, edge),
        co.Get(opened.topic_id, "kitchen", opened.epoch, 0, 100, 0, edge),
        co.Ack(opened.topic_id, "kitchen", opened.epoch, edge),
        co.Read("orders", edge, 100),
        co.Read("orders", 0, edge),
        co.Read("orders", 1, 100, edge),
        co.Read("orders", 0, 100, 0, edge),
        co.Topics("", edge),
        co.Subscriptions("orders", "", edge),
        co.Sessions("", edge),
        co.RegistryList("space", "", "", edge),
    ]
    for command in every_command:
        victim.feed_and_look([bytes(frame) for frame in encode_request(1, [command])])
        victim.rig.rounds(2, forward_ms=10)
        victim.rig.network.sent.clear()
    victim.check()
