"""Stage, commit, abort: all or nothing, once per (writer, batch). And the registry."""

from __future__ import annotations

from oncemq.engine import commands as co
from oncemq.engine import replies as re
from oncemq.limits import Limits
from tests.engine.world import World, code, put


def stage(name: str, batch: int = 0, count: int = 2) -> co.Stage:
    return co.Stage(name, "out", "query/out", batch, co.Envelope(count, 100, 7))


def commit(batch: int, *stages: tuple[str, int]) -> co.Commit:
    return co.Commit("query/out", batch, "out", stages)


def world_with_topic() -> World:
    world = World(Limits(stage_ms=1_000))
    world.do(co.Subscribe("out", "a"))
    return world


def visible(world: World) -> list[int]:
    return world.offsets(world.open("out", "a"), "a")


def test_staged_messages_are_seen_after_their_commit_in_the_order_given() -> None:
    world = world_with_topic()
    assert world.do(stage("p1", count=1)) == re.StageReply(1)
    assert world.do(stage("p0", count=2)) == re.StageReply(2)
    assert world.do(stage("p0", count=1)) == re.StageReply(3)
    assert visible(world) == []
    reply = world.do(commit(0, ("p0", 3), ("p1", 1)))
    assert reply == re.CommitReply(1, 0, 4, world.now_ms, 1, False)
    counts = [s.count for s in world.get(world.open("out", "a"), "a").slices]
    assert counts == [2, 1, 1]


def test_a_batch_that_was_committed_before_is_dropped_and_answered_yes() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.do(commit(0, ("p0", 2)))
    world.epochs["spark2"] = 0
    world.hello("spark2", nonce=9)
    reply = world.do(commit(0, ("other", 2)), session="spark2")
    assert isinstance(reply, re.CommitReply)
    assert reply.before
    assert visible(world) == [0, 1]


def test_staging_for_a_committed_batch_is_refused() -> None:
    world = world_with_topic()
    world.do(commit(4))
    assert code(world.do(stage("late", batch=4))) == "STAGE_COMMITTED"
    assert isinstance(world.do(stage("next", batch=5)), re.StageReply)


def test_a_replayed_commit_drops_what_was_staged_meanwhile() -> None:
    world = world_with_topic()
    world.do(stage("first"))
    world.do(stage("speculative"))
    world.do(commit(0, ("first", 2)))
    world.do(commit(0, ("speculative", 2)))
    assert not world.engine.state.stages
    assert visible(world) == [0, 1]


def test_a_commit_checks_its_stages_and_changes_nothing_if_one_does_not_fit() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    assert code(world.do(commit(0, ("p0", 2), ("p1", 1)))) == "STAGE_UNKNOWN"
    assert code(world.do(commit(0, ("p0", 3)))) == "STAGE_MISMATCH"
    assert code(world.do(commit(0, ("p0", 2), ("p0", 2)))) == "STAGE_MISMATCH"
    assert visible(world) == []
    assert isinstance(world.do(commit(0, ("p0", 2))), re.CommitReply)


def test_an_abort_drops_stages_never_what_is_published() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.do(stage("p1"))
    world.do(commit(0, ("p0", 2)))
    assert world.do(co.Abort(("p0", "p1", "unknown"))) == re.Done()
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


def test_staging_again_extends_a_stages_life() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.now_ms += 600
    world.do(stage("p0"))
    world.tick(600)
    assert isinstance(world.do(commit(0, ("p0", 4))), re.CommitReply)


def test_a_stage_of_a_topic_that_was_made_again_is_not_committed() -> None:
    world = world_with_topic()
    world.do(stage("p0"))
    world.do(co.DeleteTopic("out"))
    world.do(co.Subscribe("out", "a"))
    assert code(world.do(commit(0, ("p0", 2)))) == "TOPIC_GONE"


def test_a_commit_to_a_topic_that_nobody_keeps_frees_the_stages() -> None:
    world = World()
    world.do(put("out", create=True))
    world.do(stage("p0"))
    reply = world.do(commit(0, ("p0", 2)))
    assert isinstance(reply, re.CommitReply)
    assert (reply.first_offset, reply.subscriptions) == (1, 0)
    assert not world.engine.state.live


def test_the_registry_compares_versions() -> None:
    world = World()
    assert world.do(co.RegistrySet("udp", "10.0.0.1", b"x", 0)) == re.RegistryReply(1)
    assert code(world.do(co.RegistrySet("udp", "10.0.0.1", b"y", 0))) == "REGISTRY_CONFLICT"
    assert world.do(co.RegistrySet("udp", "10.0.0.1", b"y", 1)) == re.RegistryReply(2)
    listed = world.send(co.RegistryList("udp", "10.")).reply
    assert isinstance(listed, re.RegistryListReply)
    assert [(entry.key, entry.value) for entry in listed.entries] == [("10.0.0.1", b"y")]
    assert world.do(co.RegistrySet("udp", "10.0.0.1", None)) == re.RegistryReply(0)
    assert not world.engine.state.registry


def test_the_registry_is_bounded() -> None:
    world = World(Limits(registry_entries_max=1))
    world.do(co.RegistrySet("udp", "a", b""))
    assert code(world.do(co.RegistrySet("text", "b", b""))) == "LIMIT_REACHED"
    assert code(world.do(co.RegistrySet("udp", "a", bytes(70_000)))) == "TOO_LARGE"
