"""Pattern subscriptions: one owner for all matching topics, each from the event that creates it."""

from __future__ import annotations

import re as regex
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemq.engine import events
from oncemq.engine.decide.reads import TOPICS_PER_GET
from oncemq.engine.event_bytes import need_bytes
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import SEEK_TOPICS_MAX, Limits
from oncemq.protocol.patterns import matcher, matches, refuse_pattern
from tests.engine.invariants import check, event_bytes, without_verdicts
from tests.engine.world import ROOMY, World, code, put

# Matching.

LEVELS = st.sampled_from(["a", "b", "ab", "", "é", "a b", "$", "+"])
NAMES = st.lists(LEVELS, min_size=1, max_size=6).map(".".join)
PATTERNS = st.lists(st.one_of(LEVELS, st.sampled_from(["*", "#"])), min_size=1, max_size=6)


def as_regular_expression(levels: list[str]) -> str:
    """Return a regular expression for a name with a dot in front of each level."""
    forms = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return "".join(forms.get(level, r"\." + regex.escape(level)) for level in levels)


@given(PATTERNS, NAMES)
def test_patterns_match_as_a_regular_expression_would(levels: list[str], name: str) -> None:
    expected = regex.fullmatch(as_regular_expression(levels), "." + name) is not None
    assert matches(levels, name) == expected
    assert bool(matcher(".".join(levels))(name)) == expected


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("orders.*", ["orders.eu", "orders."], ["orders", "orders.eu.fr", "ordersxeu", "xorders.eu"]),
        ("orders.#", ["orders", "orders.eu", "orders.eu.fr"], ["ordersx", "order", "x.orders"]),
        ("#.eu", ["eu", "orders.eu", "a.b.eu"], ["eu.x", "neu", "a.neu"]),
        ("*.*", ["a.b"], ["a", "a.b.c"]),
        ("#", ["a", "a.b", "a b"], []),
        ("#.#", ["a", "a.b.c"], []),
        ("a.#.b", ["a.b", "a.x.b", "a.b.b"], ["a", "b", "a.b.c"]),
        ("a.#.", ["a.", "a.b.", "a.."], ["a", "a.b"]),
    ],
)
def test_a_star_is_one_level_and_a_hash_any_number(pattern: str, fits: list[str], fits_not: list[str]) -> None:
    levels = pattern.split(".")
    for match in (partial(matches, levels), matcher(pattern)):
        assert all(match(name) for name in fits)
        assert not any(match(name) for name in fits_not)


def test_every_pattern_matches_quickly() -> None:
    assert not matches(["#", "a"] * 60, ".".join(["a"] * 127 + ["b"]))


@pytest.mark.parametrize("pattern", ["a*", "a.b#", "**", "a.*b", "#.##", "*\n", "*." + "a" * 255])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    assert code(World().do(commands.Subscribe(pattern, "all"))) == "NAME_INVALID"


def test_the_refusal_of_a_long_pattern_fits_its_space() -> None:
    world = World()
    world.hello("alice")
    operation = commands.Subscribe("*." + "a*" * 100_000, "all")
    command = commands.Numbered("alice", world.epochs["alice"], 1, 1, operation)
    decision = world.send(command)
    assert code(decision.reply) == "NAME_INVALID"
    assert decision.event is not None
    assert event_bytes(decision.event) <= need_bytes(command)
    assert refuse_pattern("orders.*") is None


# Attachment.


class Watched(World):
    """`watcher` owns a subscription to `orders.*`."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        assert self.do(commands.Subscribe("orders.*", "watcher")) == replies.SubscribeReply(0, 0, True)
        self.owner = self.open("orders.*", "watcher")

    def seen(self, positions: dict[str, int] | None = None) -> dict[str, list[int]]:
        by_id = {self.topic_of(name).id: position for name, position in (positions or {}).items()}
        return self.get_any(self.owner, "orders.*", "watcher", by_id)

    def ack(self, **acks: int) -> replies.Reply:
        by_id = {self.topic_of(f"orders.{name}").id: upto for name, upto in acks.items()}
        return self.ack_any(self.owner, "orders.*", "watcher", by_id)

    @property
    def pattern(self) -> PatternSubscription:
        return self.engine.state.patterns[("orders.*", "watcher")]


def test_the_message_that_creates_a_topic_is_stored() -> None:
    world = Watched()
    assert world.do(put("orders.eu", 2, create=True)) == replies.PutReply(1, 0, 2, world.now_ms, 1)
    assert world.seen() == {"orders.eu": [0, 1]}
    check(world)


@pytest.mark.parametrize(
    "operation",
    [
        commands.CreateTopic("orders.eu"),
        commands.Subscribe("orders.eu", "a"),
        commands.Subscribe("orders.eu", "workers", sharing=commands.Sharing()),
        commands.Transact(puts=(put("orders.eu", create=True, due_ms=9_000),)),
    ],
)
def test_a_topic_is_attached_by_the_event_that_creates_it(operation: commands.Operation) -> None:
    world = Watched()
    before = len(world.log)
    world.do(operation)
    assert len(world.log) == before + 1
    world.do(put("orders.eu"))
    assert world.seen() == {"orders.eu": [0]}
    check(world)


def test_topics_that_do_not_match_are_not_attached() -> None:
    world = Watched()
    for name in ("orders", "orders.eu.fr", "other.eu"):
        assert world.do(put(name, create=True)) == replies.PutReply(world.topic_of(name).id, 0, 1, world.now_ms, 0)
    assert (world.seen(), world.engine.state.subscriptions) == ({}, 0)
    check(world)


@pytest.mark.parametrize(("start", "expected"), [(commands.START_NEW, [2]), (commands.START_EARLIEST, [1, 2])])
def test_existing_topics_are_attached_at_their_end_or_first_message(start: int, expected: list[int]) -> None:
    world = World()
    for operation in (commands.CreateTopic("orders.eu", retain_bytes=150), put("orders.eu"), put("orders.eu")):
        world.do(operation)
    world.tick()
    world.do(commands.Subscribe("orders.*", "watcher", start))
    world.do(put("orders.eu"))
    assert world.get_any(world.open("orders.*", "watcher"), "orders.*", "watcher") == {"orders.eu": expected}
    check(world)


def test_subscribing_again_is_harmless() -> None:
    world = Watched()
    world.do(put("orders.eu", create=True))
    epoch = world.pattern.epoch
    assert world.do(commands.Subscribe("orders.*", "watcher", commands.START_EARLIEST)) == replies.SubscribeReply(
        0, 0, False
    )
    assert (world.pattern.epoch, world.seen()) == (epoch, {"orders.eu": [0]})


@pytest.mark.parametrize("start", [0, 5, -3])
def test_it_cannot_start_at_an_offset(start: int) -> None:
    assert code(World().do(commands.Subscribe("*", "all", start))) == "UNSUPPORTED"


def test_it_cannot_be_shared_or_held() -> None:
    world = Watched()
    assert code(world.do(commands.Subscribe("a.*", "all", sharing=commands.Sharing()))) == "UNSUPPORTED"
    assert code(world.do(commands.Open("orders.*", "watcher", 1_000))) == "UNSUPPORTED"


# Unsubscribing.


def test_unsubscribing_frees_all_messages() -> None:
    world = Watched()
    world.do(commands.Subscribe("orders.eu", "a"))
    world.do(put("orders.eu"))
    world.do(put("orders.us", create=True))
    assert world.do(commands.Unsubscribe("orders.*", "watcher")) == replies.Done()
    assert not world.topic_of("orders.us").index
    assert len(world.topic_of("orders.eu").index) == 1, "the other subscriber needs it"
    assert world.engine.state.subscriptions == 1
    world.do(put("orders.new", create=True))
    assert world.topic_of("orders.new").subscriptions == {}
    assert (
        code(world.send(commands.GetAny("orders.*", "watcher", world.owner.epoch, (), 100)).reply) == "NOT_SUBSCRIBED"
    )
    check(world)


def test_a_temporary_topic_is_kept_for_the_pattern_and_deleted_with_it() -> None:
    world = Watched()
    world.do(commands.Subscribe("orders.eu", "a"))
    world.do(put("orders.eu"))
    world.do(commands.Unsubscribe("orders.eu", "a"))
    assert world.seen() == {"orders.eu": [0]}
    world.do(commands.Unsubscribe("orders.*", "watcher"))
    assert (world.engine.state.topics, world.engine.state.live) == ({}, {})
    check(world)


def test_a_deleted_topic_disappears_from_replies() -> None:
    world = Watched()
    world.do(put("orders.eu", create=True))
    gone = world.topic_of("orders.eu").id
    world.do(commands.DeleteTopic("orders.eu"))
    assert (world.seen(), world.pattern.topics) == ({}, {})
    assert isinstance(world.ack_any(world.owner, "orders.*", "watcher", {gone: 1}), replies.GetAnyReply)
    world.do(put("orders.eu", create=True))
    assert world.seen() == {"orders.eu": [0]}
    check(world)


# Owners.


def test_a_newer_owner_fences_the_older_one() -> None:
    world = Watched()
    world.do(put("orders.eu", create=True))
    older, world.owner = world.owner, world.open("orders.*", "watcher")
    refused = world.send(commands.GetAny("orders.*", "watcher", older.epoch, (), 100, 0, ((1, 1),)))
    assert code(refused.reply) == "FENCED"
    assert code(world.send(commands.Ack(1, world.pattern.key, older.epoch, 1)).reply) == "FENCED"
    assert world.seen() == {"orders.eu": [0]}


def test_its_subscription_on_a_topic_cannot_be_used_by_name() -> None:
    world = Watched()
    world.do(put("orders.eu", create=True))
    key = world.pattern.key
    before = without_verdicts(world)
    for operation in (
        commands.Open("orders.eu", key),
        commands.Unsubscribe("orders.eu", key),
        commands.Seek("orders.eu", key),
    ):
        assert code(world.do(operation)) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Subscribe("orders.eu", key))) == "NAME_INVALID"
    assert without_verdicts(world) == before


def test_no_refusal_shows_the_internal_key() -> None:
    world = Watched()
    world.do(put("orders.eu", create=True))
    refused = world.send(commands.Ack(1, world.pattern.key, world.owner.epoch - 1, 1)).reply
    assert isinstance(refused, replies.Refusal)
    assert commands.BY_PATTERN not in refused.text


def test_a_topic_subscription_of_the_same_subscriber_is_independent() -> None:
    world = Watched()
    world.do(commands.Subscribe("orders.eu", "watcher"))
    world.do(put("orders.eu"))
    plain = world.open("orders.eu", "watcher")
    world.get(plain, "watcher", ack=1)
    assert world.seen() == {"orders.eu": [0]}
    listed = world.send(commands.Subscriptions("orders.eu")).reply
    assert isinstance(listed, replies.SubscriptionsReply)
    assert [(entry.subscriber, entry.pattern, entry.acked) for entry in listed.subscriptions] == [
        ("watcher", "", 1),
        ("watcher", "orders.*", 0),
    ]
    check(world)


def test_each_pattern_has_its_own_position() -> None:
    world = Watched()
    for pattern, subscriber in [("orders.*", "other"), ("#", "watcher")]:
        world.do(commands.Subscribe(pattern, subscriber))
    assert world.do(put("orders.eu", create=True)) == replies.PutReply(1, 0, 1, world.now_ms, 3)
    world.ack(eu=1)
    assert world.seen() == {}
    assert world.get_any(world.open("#", "watcher"), "#", "watcher") == {"orders.eu": [0]}
    assert world.get_any(world.open("orders.*", "other"), "orders.*", "other") == {"orders.eu": [0]}
    check(world)


def test_similar_names_are_distinguished() -> None:
    world = World()
    pairs = [("a.*", "b"), ("*", "a.b"), ("a.#", "b"), ("#", "b")]
    for pattern, subscriber in pairs:
        world.do(commands.Subscribe(pattern, subscriber))
    world.do(put("a.b", create=True))
    listed = world.send(commands.Patterns()).reply
    assert isinstance(listed, replies.PatternsReply)
    assert {(entry.pattern, entry.subscriber): entry.topics for entry in listed.patterns} == {
        ("a.*", "b"): 1,
        ("*", "a.b"): 0,
        ("a.#", "b"): 1,
        ("#", "b"): 1,
    }
    check(world)


def test_patterns_are_listed_in_pages() -> None:
    world = World()
    pairs = [("#", "a"), ("#", "b"), ("a.*", "a")]
    for pattern, subscriber in pairs:
        world.do(commands.Subscribe(pattern, subscriber))
    found, after = [], ""
    while True:
        page = world.send(commands.Patterns(after, 1)).reply
        assert isinstance(page, replies.PatternsReply)
        found += [(entry.pattern, entry.subscriber) for entry in page.patterns]
        after = page.after
        if not after:
            break
    assert found == pairs


# Positions and acks.


def test_a_get_moves_nothing_and_continues_at_the_given_positions() -> None:
    world = Watched()
    world.do(put("orders.eu", 3, create=True))
    world.do(put("orders.us", create=True))
    both = {"orders.eu": [0, 1, 2], "orders.us": [0]}
    assert world.seen() == world.seen() == both
    assert world.seen({"orders.eu": 1}) == {"orders.eu": [1, 2], "orders.us": [0]}
    assert world.seen({"orders.eu": 3}) == {"orders.us": [0]}
    assert world.seen({"orders.eu": 3, "orders.us": 1}) == {}


def test_acks_are_maxima() -> None:
    world = Watched()
    world.do(put("orders.eu", 3, create=True))
    world.ack(eu=2)
    world.ack(eu=1)
    assert world.seen() == {"orders.eu": [2]}
    topic = world.topic_of("orders.eu").id
    acks = ((topic, 1), (topic, 3), (topic, 2))
    world.send(commands.GetAny("orders.*", "watcher", world.owner.epoch, (), 0, 0, acks))
    assert world.seen() == {}
    assert not world.topic_of("orders.eu").index
    check(world)


def test_a_position_below_the_acked_one_is_raised_to_it() -> None:
    world = Watched()
    world.do(commands.CreateTopic("orders.eu", retain_bytes=1_000))
    world.do(put("orders.eu", 3))
    world.ack(eu=2)
    assert world.seen({"orders.eu": 0}) == {"orders.eu": [2]}


def test_an_ack_beyond_the_end_refuses_all_of_them() -> None:
    world = Watched()
    for name in ("orders.eu", "orders.us"):
        world.do(put(name, create=True))
    before = world.image()
    assert code(world.ack(eu=1, us=2)) == "OFFSET_OUT_OF_RANGE"
    assert world.image() == before


def test_acks_of_a_get_are_applied_before_it_reads() -> None:
    world = Watched()
    for _ in range(3):
        world.do(put("orders.eu", create=True))
    decision = world.send(commands.GetAny("orders.*", "watcher", world.owner.epoch, (), ROOMY, 0, ((1, 2),)))
    assert [entry.first_offset for entry in decision.slices] == [2]
    assert decision.event == events.AckedMany(((1, world.pattern.key, 2),))
    assert isinstance(decision.reply, replies.GetAnyReply)
    assert (decision.reply.parts[0].acked, decision.reply.parts[0].next_position) == (2, 3)


def test_a_get_of_no_bytes_only_acks_and_never_waits() -> None:
    world = Watched()
    world.do(put("orders.eu", 2, create=True))
    for acks in (((1, 1),), ()):
        decision = world.send(commands.GetAny("orders.*", "watcher", world.owner.epoch, (), 0, 5_000, acks))
        assert (decision.reply, decision.slices, decision.waits_for) == (replies.GetAnyReply((), False), (), 0)
    assert world.seen() == {"orders.eu": [1]}


def test_an_empty_get_waits() -> None:
    world = Watched()
    decision = world.send(commands.GetAny("orders.*", "watcher", world.owner.epoch, (), 100))
    assert decision.waits_for == ("orders.*", "watcher")
    assert decision.reply == replies.GetAnyReply((), True)


def test_acks_are_accepted_on_a_full_disk_but_not_without_reserve() -> None:
    world = Watched()
    world.do(put("orders.eu", create=True))
    world.writable_bytes = 0
    assert isinstance(world.ack(eu=1), replies.GetAnyReply)
    world.free_bytes = 0
    assert code(world.ack(eu=1)) == "DISK_FULL"
    assert world.seen() == {}


def test_a_single_topic_can_be_read_and_acked_by_its_id() -> None:
    world = Watched()
    world.do(put("orders.eu", 2, create=True))
    key = world.pattern.key
    got = world.send(commands.Get(1, key, world.owner.epoch, 0, 1000, 0, 1))
    assert [(entry.first_offset, entry.count) for entry in got.slices] == [(1, 1)]
    world.send(commands.Ack(1, key, world.owner.epoch, 2))
    assert (world.seen(), dict(world.pattern.pending)) == ({}, {})
    check(world)


# Fairness.


def busy(world: Watched, *names: str, puts: int = 5, size: int = 100) -> None:
    for name in names:
        for _ in range(puts):
            world.do(put(f"orders.{name}", size=size, create=True))


def parts(world: Watched, bytes_max: int) -> dict[str, int]:
    """Return topic → next position."""
    reply = world.send(commands.GetAny("orders.*", "watcher", world.owner.epoch, (), bytes_max)).reply
    assert isinstance(reply, replies.GetAnyReply)
    return {part.topic: part.next_position for part in reply.parts}


def test_busy_topics_share_a_reply() -> None:
    world = Watched()
    busy(world, "a", "b", "c", "d", "e")
    assert parts(world, 400) == {"orders.a": 1, "orders.b": 1, "orders.c": 1, "orders.d": 1}
    assert parts(world, 800) == {"orders.a": 2, "orders.b": 2, "orders.c": 2, "orders.d": 2}


def test_a_served_topic_waits_for_the_others() -> None:
    world = Watched()
    busy(world, "a", "b", "c")
    served = ""
    while found := parts(world, 1):
        [(topic, upto)] = found.items()
        served += topic[-1]
        world.ack(**{topic[-1]: upto})
    assert served == "abc" * 5
    check(world)


def test_a_reply_says_whether_there_is_more() -> None:
    world = Watched()
    busy(world, "a", "b", puts=2)

    def is_all(bytes_max: int) -> bool:
        reply = world.send(commands.GetAny("orders.*", "watcher", world.owner.epoch, (), bytes_max)).reply
        assert isinstance(reply, replies.GetAnyReply)
        return reply.is_all

    assert not is_all(100)
    assert not is_all(200), "of each topic only one"
    assert is_all(200 * TOPICS_PER_GET)


def test_a_topic_that_keeps_getting_messages_keeps_its_turn() -> None:
    world = Watched()
    busy(world, "a", "b", puts=1)
    busy(world, "a", puts=1)
    assert list(parts(world, 1)) == ["orders.a"]
    world.ack(a=1)
    busy(world, "a", puts=3)
    assert list(parts(world, 1)) == ["orders.b"]


# Limits. Seeks are in test_seek.py.


def test_the_number_of_patterns_is_limited() -> None:
    world = World(Limits(patterns_max=1))
    world.do(commands.Subscribe("a.*", "x"))
    assert code(world.do(commands.Subscribe("b.*", "x"))) == "LIMIT_REACHED"
    world.do(commands.Unsubscribe("a.*", "x"))
    assert isinstance(world.do(commands.Subscribe("b.*", "x")), replies.SubscribeReply)


def test_the_limit_of_subscriptions_counts_every_topic_that_matches() -> None:
    world = World(Limits(subscriptions_max=3))
    for name in ("a.1", "a.2", "b.1"):
        world.do(commands.CreateTopic(name))
    world.do(commands.Subscribe("a.*", "x"))
    assert code(world.do(commands.Subscribe("#", "y"))) == "LIMIT_REACHED"
    assert isinstance(world.do(commands.Subscribe("b.*", "y")), replies.SubscribeReply)
    for operation in (commands.CreateTopic("a.3"), put("a.3", create=True), commands.Subscribe("c", "x")):
        assert code(world.do(operation)) == "LIMIT_REACHED"
    assert isinstance(world.do(commands.CreateTopic("c")), replies.TopicReply)
    assert world.engine.state.subscriptions == 3
    check(world)


def test_a_topic_without_space_for_its_first_message_is_not_created() -> None:
    world = Watched()
    world.writable_bytes = 0
    before = world.image()
    assert code(world.do(put("orders.eu", create=True))) == "DISK_FULL"
    assert world.image() == before


def test_a_pattern_with_too_many_topics_is_not_moved() -> None:
    world = Watched(Limits(topics_max=SEEK_TOPICS_MAX + 1))
    for number in range(SEEK_TOPICS_MAX + 1):
        claim = events.KeyClaim("web", f"{number}", 0)
        world.engine.apply(1, events.TopicCreated(claim, number + 1, f"orders.{number}", 0, 0, True))
    assert code(world.do(commands.Seek("orders.*", "watcher"))) == "LIMIT_REACHED"
    world.do(commands.DeleteTopic("orders.0"))
    assert isinstance(world.do(commands.Seek("orders.*", "watcher")), replies.SeekReply)


def test_the_longest_names_fit_the_reserved_space() -> None:
    world = World()
    pattern, subscriber = "*." + "é" * 126, "ö" * 127
    world.do(commands.Subscribe(pattern, subscriber))
    world.do(put("ü." + "é" * 126, create=True))
    owner = world.open(pattern, subscriber)
    command = commands.GetAny(pattern, subscriber, owner.epoch, (), 0, 0, ((1, 1),))
    decision = world.send(command)
    assert isinstance(decision.event, events.AckedMany)
    assert event_bytes(decision.event) <= need_bytes(command)
