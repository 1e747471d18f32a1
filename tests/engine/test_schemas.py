"""Schemas of topics: versions, compatibility, and messages that were not checked."""

from __future__ import annotations

import pytest

from oncemq.journal.contract import WriteSlot
from oncemq.protocol import commands, limits, replies
from oncemq.protocol.schema import Schema, parse_fields
from tests.engine.schemas import SCHEMAS, checked, schema
from tests.engine.world import World, code, put


@pytest.fixture
def world() -> World:
    world = World()
    world.do(commands.CreateTopic("orders"))
    return world


def _put_schema(world: World, new: Schema | None, rule: str = "", check: str = "") -> replies.Reply:
    return world.do(commands.PutSchema("orders", new, rule, check))


def _schemas(world: World, version: int = 0, limit: int = 1) -> replies.SchemasReply:
    reply = world.send(commands.Schemas("orders", version, limit)).reply
    assert isinstance(reply, replies.SchemasReply)
    return reply


def test_versions_are_numbered_from_one(world: World) -> None:
    assert _schemas(world) == replies.SchemasReply(1, 0, "", "")
    for number, each in enumerate(SCHEMAS, 1):
        assert _put_schema(world, each) == replies.SchemaReply(1, number, True)
    newest = _schemas(world)
    assert (newest.newest, newest.rule, newest.check) == (3, "backward", "client")
    assert [each.version for each in newest.versions] == [3]
    everything = _schemas(world, 1, 100)
    assert [(each.version, each.schema) for each in everything.versions] == list(enumerate(SCHEMAS, 1))
    assert [info.schema_version for info in _topics(world)] == [3]


def _topics(world: World) -> tuple[replies.TopicInfo, ...]:
    reply = world.send(commands.Topics()).reply
    assert isinstance(reply, replies.TopicsReply)
    return reply.topics


def test_the_same_schema_again_has_its_version(world: World) -> None:
    for each in SCHEMAS[:2]:
        _put_schema(world, each)
    assert _put_schema(world, SCHEMAS[0]) == replies.SchemaReply(1, 1, False)
    assert _schemas(world).newest == 2


def test_a_retried_schema_is_stored_once(world: World) -> None:
    first = _put_schema(world, SCHEMAS[0])
    assert world.again(commands.PutSchema("orders", SCHEMAS[0])) == first
    assert _schemas(world).newest == 1


def test_an_incompatible_schema_is_refused_with_the_reason(world: World) -> None:
    _put_schema(world, SCHEMAS[0])
    _put_schema(world, SCHEMAS[1])
    refusal = _put_schema(world, schema("id: string"))
    assert refusal == replies.Refusal(
        "SCHEMA_INCOMPATIBLE",
        "under the rule 'backward': id: a reader expects string, and values are int64: new readers can't read old "
        "values (version 1, 2)",
    )
    assert _schemas(world).newest == 2
    assert _put_schema(world, schema("id: string"), "none") == replies.SchemaReply(1, 3, True)


def test_settings_change_without_a_version(world: World) -> None:
    assert code(_put_schema(world, None, "full")) == "SCHEMA_UNKNOWN"
    _put_schema(world, SCHEMAS[0])
    assert _put_schema(world, None, "full", "broker") == replies.SchemaReply(1, 1, False)
    assert (_schemas(world).rule, _schemas(world).check) == ("full", "broker")
    _put_schema(world, SCHEMAS[1])
    assert (_schemas(world).rule, _schemas(world).check) == ("full", "broker")


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (commands.PutSchema("nowhere", SCHEMAS[0]), "TOPIC_UNKNOWN"),
        (commands.PutSchema("orders", SCHEMAS[0], "sideways"), "MALFORMED"),
        (commands.PutSchema("orders", SCHEMAS[0], "", "nobody"), "MALFORMED"),
        (commands.PutSchema("orders", Schema(())), "SCHEMA_INVALID"),
        (commands.PutSchema("orders", Schema(parse_fields("a: int8, a: int8"))), "SCHEMA_INVALID"),
        (
            commands.PutSchema("orders", Schema(SCHEMAS[0].fields, definition="x" * limits.SCHEMA_BYTES_MAX)),
            "TOO_LARGE",
        ),
    ],
)
def test_an_invalid_schema_is_refused(world: World, operation: commands.PutSchema, expected: str) -> None:
    assert code(world.do(operation)) == expected
    assert _schemas(world).newest == 0


def test_the_number_and_the_bytes_of_versions_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.engine.decide.schemas.SCHEMA_VERSIONS_MAX", 2)
    _put_schema(world, SCHEMAS[0])
    monkeypatch.setattr("oncemq.engine.decide.schemas.SCHEMAS_BYTES_MAX", 150)
    assert code(_put_schema(world, SCHEMAS[1])) == "LIMIT_REACHED"
    monkeypatch.setattr("oncemq.engine.decide.schemas.SCHEMAS_BYTES_MAX", 10_000)
    _put_schema(world, SCHEMAS[1])
    assert code(_put_schema(world, SCHEMAS[2])) == "LIMIT_REACHED"


def test_a_topic_with_a_schema_refuses_what_was_not_checked(world: World) -> None:
    assert isinstance(world.do(put("orders")), replies.PutReply)
    _put_schema(world, SCHEMAS[0])
    unchecked = (
        put("orders"),
        put("orders", due_ms=world.now_ms + 1_000),
        commands.Transact(puts=(put("orders"),)),
        commands.Stage("s", "orders", "w", 1, commands.Envelope(1, 100, 0)),
    )
    for operation in unchecked:
        assert code(world.do(operation)) == "SCHEMA_REQUIRED", operation
    assert code(world.send(commands.Keyed("web", "k", put("orders"))).reply) == "SCHEMA_REQUIRED"
    assert world.topic_of().next_offset == 1


def test_a_topic_accepts_every_version_that_it_has(world: World) -> None:
    for each in SCHEMAS[:2]:
        _put_schema(world, each)
    for version in (1, 2):
        assert isinstance(world.do(commands.Put("orders", checked(version, 1))), replies.PutReply)
    assert isinstance(world.do(commands.Stage("s", "orders", "w", 1, checked(2, 1))), replies.StageReply)
    assert code(world.do(commands.Put("orders", checked(3, 1)))) == "SCHEMA_UNKNOWN"


def test_versions_of_a_deleted_topic_are_not_those_of_its_successor(world: World) -> None:
    _put_schema(world, SCHEMAS[0])
    world.do(commands.DeleteTopic("orders"))
    world.do(commands.CreateTopic("orders"))
    assert code(world.do(commands.Put("orders", checked(1, 1)))) == "SCHEMA_UNKNOWN"
    world.do(commands.PutSchema("orders", schema("name: string")))
    assert code(world.do(commands.Put("orders", checked(1, 1)))) == "SCHEMA_UNKNOWN"
    assert isinstance(world.do(commands.Put("orders", checked(1, 2))), replies.PutReply)


def test_a_topic_without_a_schema_has_no_version(world: World) -> None:
    assert code(world.do(commands.Put("orders", checked(1, 1)))) == "SCHEMA_UNKNOWN"
    assert code(world.do(commands.Put("new", checked(1), create=True))) == "SCHEMA_UNKNOWN"
    assert code(world.do(commands.Put("new", checked(1)))) == "TOPIC_UNKNOWN"
    both = (put("new", create=True), commands.Put("new", checked(1)))
    assert code(world.do(commands.Transact(puts=both))) == "SCHEMA_UNKNOWN"
    assert "new" not in world.engine.state.topics


def test_without_a_check_the_schema_is_only_documentation(world: World) -> None:
    _put_schema(world, SCHEMAS[0], "", "none")
    assert isinstance(world.do(put("orders")), replies.PutReply)
    assert isinstance(world.do(commands.Put("orders", checked(1, 1))), replies.PutReply)


def test_what_the_broker_finds_is_recorded_as_the_refusal(world: World) -> None:
    _put_schema(world, SCHEMAS[0], "", "broker")
    refusal = replies.Refusal("SCHEMA_MISMATCH", "message 0: id: expected int")
    world.numbers["alice"] += 1
    number = world.numbers["alice"]
    command = commands.Numbered("alice", world.epochs["alice"], number, number, commands.Put("orders", checked(1)))
    slot = _slot(world)
    decision = world.engine.step(world.now_ms, slot, command, refusal)
    assert decision.reply == refusal
    assert decision.event is not None
    # A retry gets the same answer, although nothing is found any more.
    assert world.engine.step(world.now_ms, slot, command).reply == refusal


def test_what_was_decided_before_is_not_refused_later(world: World) -> None:
    _put_schema(world, SCHEMAS[0])
    operation = commands.Put("orders", checked(1))
    stored = world.do(operation)
    number = world.numbers["alice"]
    command = commands.Numbered("alice", world.epochs["alice"], number, number, operation)
    refusal = replies.Refusal("SCHEMA_MISMATCH", "")
    assert world.engine.step(world.now_ms, _slot(world), command, refusal).reply == stored


def _slot(world: World) -> WriteSlot:
    return WriteSlot(world.position, world.free_bytes, world.writable_bytes, world.reserve_bytes)


def test_schemas_survive_replay_and_snapshots(world: World) -> None:
    for each in SCHEMAS[:2]:
        _put_schema(world, each)
    _put_schema(world, None, "full", "none")
    replica = world.replayed()
    assert replica.state.topics["orders"].schema == world.topic_of().schema
    capture = world.engine.capture()
    restored = World()
    restored.engine.restore(list(iter(capture.chunk, None)))
    assert restored.topic_of().schema == world.topic_of().schema
    restored.hello("eve")
    assert restored.do(commands.PutSchema("orders", SCHEMAS[2]), "eve") == replies.SchemaReply(1, 3, True)


def test_a_page_has_at_least_one_version(world: World) -> None:
    for number in range(3):
        each = SCHEMAS[number]
        _put_schema(world, Schema(each.fields, definition="x" * 40_000))
    assert [each.version for each in _schemas(world, 1, 100).versions] == [1]
    assert [each.version for each in _schemas(world, 2, 100).versions] == [2]
    assert code(world.send(commands.Schemas("orders", 4)).reply) == "SCHEMA_UNKNOWN"
    assert code(world.send(commands.Schemas("nowhere")).reply) == "TOPIC_UNKNOWN"
