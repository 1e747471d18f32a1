"""Stage, commit and abort: all or nothing, once per (writer, batch). Also the registry."""

from __future__ import annotations

import msgspec
import pytest

from oncemq.engine.event_bytes import need_bytes
from oncemq.engine.state.state import WriterEntry
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import CONTENT_BYTES_MAX, KEPT_COMMITS_MAX, STAGES_PER_COMMIT_MAX, Limits
from tests.engine.world import World, code, put


def stage(name: str, batch: int = 0, count: int = 2) -> commands.Stage:
    return commands.Stage(name, "out", "query/out", batch, commands.Envelope(count, 100, 7))


def commit(batch: int, *stages: tuple[str, int]) -> commands.Commit:
    return commands.Commit("query/out", batch, "out", stages)


def world_with_topic() -> World:
    world = World(Limits(stage_ms=1_000))
    world.do(commands.Subscribe("out", "a"))
    return world


def visible(world: World) -> list[int]:
    return world.offsets(world.open("out", "a"), "a")


def test_staged_messages_are_visible_after_their_commit_in_the_given_order() -> None:
    world = world_with_topic()
    assert world.do(stage("p1", count=1)) == replies.StageReply(1)
    assert world.do(stage("p0", count=2)) == replies.StageReply(2)
    assert world.do(stage("p0", count=1)) == replies.StageReply(3)
    assert visible(world) == []
    reply = world.do(commit(0, ("p0", 3), ("p1", 1)))
    assert reply == replies.CommitReply(1, 0, 4, world.now_ms, 1, False)
    counts = [s.count for s in world.get(world.open("out", "a"), "a").slices]
    assert counts == [2, 1, 1]


def test_a_batch_that_was_committed_before_is_deleted_and_succeeds() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.do(commit(0, ("p0", 2)))
    world.epochs["spark2"] = 0
    world.hello("spark2", nonce=9)
    reply = world.do(commit(0, ("other", 2)), session="spark2")
    assert isinstance(reply, replies.CommitReply)
    assert reply.before
    assert visible(world) == [0, 1]


def test_staging_for_a_committed_batch_is_refused() -> None:
    world = world_with_topic()
    world.do(commit(4))
    assert code(world.do(stage("late", batch=4))) == "STAGE_COMMITTED"
    assert isinstance(world.do(stage("next", batch=5)), replies.StageReply)


def test_a_writer_can_be_asked_for_its_commits() -> None:
    world = world_with_topic()
    ask = commands.Writer("query/out")
    assert world.send(ask).reply == replies.WriterReply(-1)
    world.do(commit(0))
    world.do(commit_content(1, b"one"))
    world.do(commit_content(3, b"three"))
    assert world.send(ask).reply == replies.WriterReply(3, ((1, b"one"), (3, b"three")))


def test_a_repeated_commit_deletes_stages_of_the_second_try() -> None:
    world = world_with_topic()
    world.do(stage("first"))
    world.do(stage("speculative"))
    world.do(commit(0, ("first", 2)))
    world.do(commit(0, ("speculative", 2)))
    assert not world.engine.state.stages
    assert visible(world) == [0, 1]


def test_a_commit_with_a_wrong_stage_changes_nothing() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    assert code(world.do(commit(0, ("p0", 2), ("p1", 1)))) == "STAGE_UNKNOWN"
    assert code(world.do(commit(0, ("p0", 3)))) == "STAGE_MISMATCH"
    assert code(world.do(commit(0, ("p0", 2), ("p0", 2)))) == "STAGE_MISMATCH"
    assert visible(world) == []
    assert isinstance(world.do(commit(0, ("p0", 2))), replies.CommitReply)


def test_an_abort_deletes_stages_but_never_published_messages() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.do(stage("p1"))
    world.do(commit(0, ("p0", 2)))
    assert world.do(commands.Abort(("p0", "p1", "unknown"))) == replies.Done()
    assert not world.engine.state.stages
    assert visible(world) == [0, 1]


def test_stages_expire() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.tick(999)
    assert "p0" in world.engine.state.stages
    world.tick(1)
    assert not world.engine.state.stages
    assert not world.engine.state.live
    assert code(world.do(commit(0, ("p0", 2)))) == "STAGE_UNKNOWN"


def test_staging_again_extends_the_lifetime_of_a_stage() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.now_ms += 600
    world.do(stage("p0"))
    world.tick(600)
    assert isinstance(world.do(commit(0, ("p0", 4))), replies.CommitReply)


def test_a_stage_of_a_recreated_topic_is_not_committed() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.do(commands.DeleteTopic("out"))
    world.do(commands.Subscribe("out", "a"))
    assert code(world.do(commit(0, ("p0", 2)))) == "TOPIC_GONE"


def test_a_commit_to_a_topic_without_subscriptions_frees_the_stages() -> None:
    world = World()
    world.do(put("out", create=True))
    world.do(stage("p0"))
    reply = world.do(commit(0, ("p0", 2)))
    assert isinstance(reply, replies.CommitReply)
    assert (reply.first_offset, reply.subscriptions) == (1, 0)
    assert not world.engine.state.live


def test_a_committed_batch_is_recognised_after_its_topic_was_deleted() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.do(commit(0, ("p0", 2)))
    world.do(commands.DeleteTopic("out"))
    assert code(world.do(stage("again"))) == "STAGE_COMMITTED"
    reply = world.do(commit(0, ("again", 2)))
    assert isinstance(reply, replies.CommitReply)
    assert reply.before
    assert code(world.do(commit(1))) == "TOPIC_UNKNOWN"


# Several topics.


def world_with_topics() -> World:
    """Stage messages on two topics."""
    world = world_with_topic()
    world.do(commands.Subscribe("bills", "a"))
    for name, topic, count in (("o1", "out", 2), ("b1", "bills", 1), ("o2", "out", 3), ("b2", "bills", 4)):
        world.do(commands.Stage(name, topic, "query/all", 0, commands.Envelope(count, 100, 7)))
    return world


ALL = (("bills", (("b2", 4), ("b1", 1))), ("out", (("o1", 2), ("o2", 3))))


def commit_all(parts: tuple[tuple[str, commands.Stages], ...] = ALL, batch: int = 0) -> commands.Commit:
    return commands.Commit("query/all", batch, "", (), parts)


def counts(world: World, topic: str) -> list[int]:
    return [found.count for found in world.get(world.open(topic, "a"), "a").slices]


def is_untouched(world: World) -> bool:
    state = world.engine.state
    empty = all(topic.next_offset == 0 for topic in state.topics.values())
    return empty and len(state.stages) == 4 and "query/all" not in state.writers


def test_a_commit_publishes_on_several_topics_in_the_given_order() -> None:
    world = world_with_topics()
    bills, out = world.topic_of("bills"), world.topic_of("out")
    reply = world.do(commit_all())
    parts = (replies.CommitPart(bills.id, 0, 5, 1), replies.CommitPart(out.id, 0, 5, 1))
    assert reply == replies.CommitReply(0, -1, 10, world.now_ms, 0, False, parts)
    assert (counts(world, "bills"), counts(world, "out")) == ([4, 1], [2, 3])
    assert not world.engine.state.stages


def test_offsets_continue_at_the_end_of_each_topic() -> None:
    world = world_with_topics()
    world.do(put("bills", count=7))
    reply = world.do(commit_all())
    assert isinstance(reply, replies.CommitReply)
    assert [part.first_offset for part in reply.parts] == [7, 0]


def test_a_commit_to_several_topics_can_be_repeated() -> None:
    world = world_with_topics()
    first = world.do(commit_all())
    assert world.again(commit_all()) == first
    world.do(commands.Stage("late", "bills", "query/all", 1, commands.Envelope(1, 100, 7)))
    replayed = world.do(commit_all((("bills", (("late", 1),)), ("nowhere", (("gone", 5),)))))
    assert replayed == replies.CommitReply(0, -1, 0, world.now_ms, 0, True)
    assert not world.engine.state.stages
    assert world.topic_of("bills").next_offset == 5


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((ALL[0], ("out", (("o1", 2), ("o2", 2)))), "STAGE_MISMATCH"),
        ((ALL[0], ("out", (("o1", 2), ("gone", 3)))), "STAGE_UNKNOWN"),
        ((ALL[0], ("nowhere", (("o1", 2),))), "TOPIC_UNKNOWN"),
        ((ALL[0], ("*", ())), "NAME_INVALID"),
        ((ALL[0], ("", ())), "NAME_INVALID"),
        ((ALL[0], ("out", (("o1", 2), ("b1", 1)))), "STAGE_MISMATCH"),
        ((("bills", (("b2", 4),)), ("out", (("b1", 1),))), "TOPIC_GONE"),
        ((ALL[0], ALL[1], ("bills", ())), "MALFORMED"),
    ],
)
def test_a_commit_to_several_topics_is_all_or_nothing(
    parts: tuple[tuple[str, commands.Stages], ...], expected: str
) -> None:
    world = world_with_topics()
    assert code(world.do(commit_all(parts))) == expected
    assert is_untouched(world)
    assert isinstance(world.do(commit_all()), replies.CommitReply)


def test_the_quota_of_one_topic_delays_the_whole_commit() -> None:
    world = world_with_topics()
    world.do(commands.CreateTopic("out", quota_bytes=250))
    world.do(put("out", size=100))
    assert code(world.do(commit_all())) == "TOPIC_FULL"
    assert world.topic_of("bills").next_offset == 0
    owner = world.open("out", "a")
    world.send(commands.Ack(owner.topic_id, "a", owner.epoch, 1))
    assert isinstance(world.again(commit_all()), replies.CommitReply)
    assert (counts(world, "bills"), counts(world, "out")) == ([4, 1], [2, 3])


def test_a_commit_too_large_for_one_topic_is_refused() -> None:
    world = world_with_topics()
    world.do(commands.CreateTopic("out", quota_bytes=150))
    assert code(world.do(commit_all())) == "TOO_LARGE"
    assert is_untouched(world)


def test_one_topic_and_several_are_not_mixed() -> None:
    world = world_with_topics()
    mixed = commands.Commit("query/all", 0, "out", (("o1", 2),), ALL[:1])
    assert code(world.do(mixed)) == "MALFORMED"
    assert is_untouched(world)


def test_an_empty_batch_is_recorded() -> None:
    world = world_with_topics()
    assert world.do(commit_all((), 3)) == replies.CommitReply(0, -1, 0, world.now_ms, 0, False)
    assert world.engine.state.writers == {"query/all": WriterEntry(3)}
    assert code(world.do(commands.Commit("query/all", 4, "", (("o1", 2),)))) == "NAME_INVALID"


def test_the_stages_of_all_topics_count_together() -> None:
    world = World()
    stages = tuple((f"s{number}", 1) for number in range(STAGES_PER_COMMIT_MAX // 2 + 1))
    more = tuple((f"t{number}", 1) for number in range(STAGES_PER_COMMIT_MAX // 2))
    assert code(world.do(commit_all((("a", stages), ("b", more))))) == "MALFORMED"
    assert code(world.do(commit_all(tuple((f"t{n}", ()) for n in range(STAGES_PER_COMMIT_MAX + 1))))) == "MALFORMED"


def test_the_reserved_space_of_a_commit_is_sufficient() -> None:
    world = World()
    world.engine.state.next_topic_id = 1 << 62
    parts = tuple((f"{number}", ((f"s{number}", 1),)) for number in range(1_000))
    for name, [(stage_name, _)] in parts:
        world.do(commands.CreateTopic(name, retain_ms=10**9))
        world.do(commands.Stage(stage_name, name, "", 0, commands.Envelope(1, 1, 0)))
    command = commands.Numbered("alice", 1, 1, 1, commands.Commit("", 0, "", (), parts))
    world.do(command.operation)
    assert len(msgspec.msgpack.encode(world.log[-1][1])) <= need_bytes(command)


# One-off commits.


def one_off(*stages: tuple[str, int], batch: int = 0) -> commands.Commit:
    return commands.Commit("", batch, "out", stages)


def test_a_one_off_commit_is_recorded_only_by_its_session() -> None:
    world = World(Limits(writers_max=1))
    world.do(commands.Subscribe("out", "a"))
    world.do(commit(0))
    for name in ("p0", "p1"):
        assert world.do(commands.Stage(name, "out", "", 0, commands.Envelope(2, 100, 7))) == replies.StageReply(2)
        first = world.do(one_off((name, 2)))
        assert isinstance(first, replies.CommitReply)
        assert not first.before
        assert world.again(one_off((name, 2))) == first
    assert visible(world) == [0, 1, 2, 3]
    assert set(world.engine.state.writers) == {"query/out"}
    assert code(world.do(one_off(("p0", 2)))) == "STAGE_UNKNOWN"


def test_without_a_writer_the_batch_number_must_be_0() -> None:
    world = world_with_topic()
    assert code(world.do(one_off(batch=1))) == "MALFORMED"
    assert code(world.do(one_off(batch=-1))) == "MALFORMED"
    assert code(world.do(commands.Stage("p0", "out", "", 1, commands.Envelope(2, 100, 7)))) == "MALFORMED"


def test_the_registry_compares_versions() -> None:
    world = World()
    assert world.do(commands.RegistrySet("udp", "10.0.0.1", b"x", 0)) == replies.RegistryReply(1)
    assert code(world.do(commands.RegistrySet("udp", "10.0.0.1", b"y", 0))) == "REGISTRY_CONFLICT"
    assert world.do(commands.RegistrySet("udp", "10.0.0.1", b"y", 1)) == replies.RegistryReply(2)
    listed = world.send(commands.RegistryList("udp", "10.")).reply
    assert isinstance(listed, replies.RegistryListReply)
    assert [(entry.key, entry.value) for entry in listed.entries] == [("10.0.0.1", b"y")]
    assert world.do(commands.RegistrySet("udp", "10.0.0.1", None)) == replies.RegistryReply(0)
    assert not world.engine.state.registry


def test_the_registry_is_limited() -> None:
    world = World(Limits(registry_entries_max=1))
    world.do(commands.RegistrySet("udp", "a", b""))
    assert code(world.do(commands.RegistrySet("text", "b", b""))) == "LIMIT_REACHED"
    assert code(world.do(commands.RegistrySet("udp", "a", bytes(70_000)))) == "TOO_LARGE"


# What a batch consists of.


def commit_content(batch: int, content: bytes, *stages: tuple[str, int]) -> commands.Commit:
    return commands.Commit("query/out", batch, "out", stages, content=content)


def is_before(reply: replies.Reply) -> bool:
    assert isinstance(reply, replies.CommitReply)
    return reply.before


def test_a_batch_number_that_comes_back_with_other_content_is_refused() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    assert not is_before(world.do(commit_content(0, b"a", ("p0", 2))))
    assert is_before(world.do(commit_content(0, b"a")))
    assert code(world.do(commit_content(0, b"b"))) == "BATCH_CHANGED"
    assert code(world.do(stage("p1"))) == "STAGE_COMMITTED"
    assert visible(world) == [0, 1]


def test_a_refused_batch_keeps_its_stages_until_they_are_aborted() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.do(stage("p1"))
    world.do(commit_content(0, b"a", ("p0", 2)))
    assert code(world.do(commit_content(0, b"b", ("p1", 2)))) == "BATCH_CHANGED"
    assert set(world.engine.state.stages) == {"p1"}


def test_the_contents_of_the_last_commits_are_kept() -> None:
    world = world_with_topic()
    for batch in range(KEPT_COMMITS_MAX + 2):
        world.do(commit_content(2 * batch, b"%d" % batch))
    assert len(world.engine.state.writers["query/out"].commits) == KEPT_COMMITS_MAX
    assert is_before(world.do(commit_content(4, b"2")))
    assert code(world.do(commit_content(4, b"3"))) == "BATCH_CHANGED"
    # Batch 2 is not kept any more, and there was no batch 5.
    assert code(world.do(commit_content(2, b"1"))) == "BATCH_CHANGED"
    assert code(world.do(commit_content(5, b"2"))) == "BATCH_CHANGED"


def test_a_commit_without_content_is_not_compared() -> None:
    world = world_with_topic()
    world.do(commit(4))
    assert is_before(world.do(commit_content(4, b"a")))
    assert is_before(world.do(commit_content(3, b"a")))
    world.do(commit_content(5, b"a"))
    assert is_before(world.do(commit(5)))
    world.do(commit(6))
    assert is_before(world.do(commit_content(6, b"a")))
    assert code(world.do(commit_content(4, b"a"))) == "BATCH_CHANGED"


def test_the_content_has_a_limit_and_needs_a_writer() -> None:
    world = world_with_topic()
    assert code(world.do(commit_content(0, bytes(CONTENT_BYTES_MAX + 1)))) == "MALFORMED"
    assert code(world.do(commands.Commit("", 0, "out", (), content=b"a"))) == "MALFORMED"
