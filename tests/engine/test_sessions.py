"""Numbered commands are executed once."""

from __future__ import annotations

from oncemq.protocol import commands, replies
from oncemq.protocol.limits import NONCES_MAX, Limits
from tests.engine.world import World, code, put


def world_with_topic() -> World:
    world = World()
    world.do(commands.Subscribe("orders", "billing"))
    return world


def end_offset(world: World) -> int:
    return world.engine.state.topics["orders"].next_offset


def test_a_retried_put_is_stored_once() -> None:
    world = world_with_topic()
    first = world.do(put())
    assert world.again(put()) == first
    assert isinstance(first, replies.PutReply)
    assert end_offset(world) == 1


def test_a_retry_is_recognised_after_the_message_was_deleted() -> None:
    world = world_with_topic()
    first = world.do(put())
    owner = world.open("orders", "billing")
    world.get(owner, "billing", ack=1)
    assert len(world.engine.state.topics["orders"].index) == 0
    assert world.again(put(), number=2) == first
    assert end_offset(world) == 1


def test_a_refusal_consumes_its_number_and_is_repeated() -> None:
    world = World()
    assert code(world.do(put("nowhere"))) == "TOPIC_UNKNOWN"
    world.do(commands.CreateTopic("nowhere"), session="bob")
    assert code(world.again(put("nowhere"))) == "TOPIC_UNKNOWN"
    assert world.engine.state.topics["nowhere"].next_offset == 0


def test_not_now_leaves_the_number_open() -> None:
    world = world_with_topic()
    world.writable_bytes = 0
    assert code(world.do(put())) == "DISK_FULL"
    world.writable_bytes = 1 << 20
    assert isinstance(world.again(put()), replies.PutReply)
    assert end_offset(world) == 1


def test_different_bytes_under_a_used_number_are_refused() -> None:
    world = world_with_topic()
    world.do(put(checksum=1))
    assert code(world.again(put(checksum=2))) == "SEQUENCE_REUSED"
    assert end_offset(world) == 1


def test_a_gap_decides_nothing_and_names_the_last_number() -> None:
    world = world_with_topic()
    reply = world.again(put(), number=5)
    assert isinstance(reply, replies.NotNow)
    assert (reply.code, reply.last_number) == ("GAP", 1)
    assert end_offset(world) == 0


def test_a_void_consumes_an_open_number() -> None:
    world = world_with_topic()
    assert world.do(commands.Void()) == replies.Done()
    assert code(world.again(put())) == "SEQUENCE_REUSED"


def test_a_void_for_a_decided_number_gets_its_verdict() -> None:
    world = world_with_topic()
    first = world.do(put())
    assert world.again(commands.Void()) == first


def test_confirmed_verdicts_are_deleted_and_a_retry_is_told_so() -> None:
    world = world_with_topic()
    world.do(put())
    world.do(put())
    assert code(world.again(put(), number=2)) == "VERDICT_FORGOTTEN"
    assert world.again(commands.Void(), number=2) == replies.Done()
    assert end_offset(world) == 2


def test_commands_beyond_the_window_are_not_accepted() -> None:
    world = World()
    world.hello()
    for number in range(1, 9):
        world.send(commands.Numbered("alice", 1, number, 1, commands.Void()))
    assert code(world.send(commands.Numbered("alice", 1, 9, 1, commands.Void())).reply) == "WINDOW_FULL"
    assert world.send(commands.Numbered("alice", 1, 9, 2, commands.Void())).reply == replies.Done()


def test_hello_returns_what_was_decided_and_keeps_the_numbering() -> None:
    world = world_with_topic()
    stored = world.do(put())
    reply = world.hello(nonce=2)
    assert isinstance(reply, replies.HelloReply)
    assert (reply.epoch, reply.last_number) == (2, 2)
    assert dict(reply.verdicts)[2] == stored


def test_a_second_client_of_the_same_name_fences_the_first() -> None:
    world = world_with_topic()
    world.send(commands.Hello("alice", 0, 99, 8))
    assert code(world.do(put())) == "FENCED"
    assert code(world.hello(epoch=1)) == "FENCED"


def test_a_repeated_hello_takes_over_once() -> None:
    world = World()
    assert world.hello(nonce=7) == world.hello(nonce=7)
    assert world.engine.state.sessions["alice"].epoch == 1


def test_a_late_duplicate_of_an_old_hello_does_not_fence_the_successor() -> None:
    world = World()
    for nonce in range(1, NONCES_MAX + 1):
        world.hello(nonce=nonce)
    assert code(world.send(commands.Hello("alice", 0, 1, 8)).reply) == "FENCED"
    assert world.engine.state.sessions["alice"].epoch == NONCES_MAX


def test_an_automatic_reconnect_continues_its_epoch() -> None:
    world = world_with_topic()
    reply = world.hello(epoch=1, nonce=12)
    assert isinstance(reply, replies.HelloReply)
    assert reply.epoch == 1


def test_an_unknown_session_is_never_created_silently() -> None:
    world = World()
    assert code(world.hello(epoch=3)) == "SESSION_UNKNOWN"
    assert code(world.send(commands.Numbered("ghost", 1, 1, 1, commands.Void())).reply) == "SESSION_UNKNOWN"
    assert not world.engine.state.sessions


def test_anonymous_sessions_expire_and_named_ones_stay() -> None:
    world = World(Limits(session_idle_ms=1_000))
    world.hello("passer-by", anonymous=True)
    world.hello("alice")
    world.now_ms += 900
    world.do(commands.Void(), session="passer-by")
    world.tick(900)
    assert set(world.engine.state.sessions) == {"passer-by", "alice"}
    world.tick(200)
    assert set(world.engine.state.sessions) == {"alice"}
    assert code(world.do(commands.Void(), session="passer-by")) == "SESSION_UNKNOWN"


def test_bye_ends_an_anonymous_session_only() -> None:
    world = World()
    world.hello("passer-by", anonymous=True)
    world.hello("alice")
    world.send(commands.Bye("passer-by", 1))
    world.send(commands.Bye("alice", 1))
    assert set(world.engine.state.sessions) == {"alice"}


def test_a_named_session_is_deleted_by_a_final_bye_of_its_current_client() -> None:
    world = World()
    world.hello("alice")
    world.hello("alice", nonce=5)
    world.send(commands.Bye("alice", 1, True))
    assert set(world.engine.state.sessions) == {"alice"}
    world.send(commands.Bye("alice", 2, True))
    assert set(world.engine.state.sessions) == set()
    assert code(world.do(commands.Void(), session="alice")) == "SESSION_UNKNOWN"


def test_a_deleted_session_is_unknown_and_can_be_created_again() -> None:
    world = World()
    world.hello("bob")
    assert world.do(commands.RemoveSession("bob")) == replies.Done()
    assert code(world.do(commands.Void(), session="bob")) == "SESSION_UNKNOWN"
    assert isinstance(world.hello("bob", nonce=5), replies.HelloReply)


def test_a_session_cannot_delete_itself() -> None:
    assert code(World().do(commands.RemoveSession("alice"))) == "SESSION_UNKNOWN"


def test_the_number_of_sessions_is_limited() -> None:
    world = World(Limits(sessions_max=1))
    world.hello("alice")
    assert code(world.hello("bob")) == "LIMIT_REACHED"


def test_a_keyed_operation_is_executed_once_for_seven_days() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "billing"))
    keyed = commands.Keyed("web", "k1", put())
    first = world.send(keyed).reply
    assert world.send(keyed).reply == first
    world.tick(world.limits.key_ms - 1)
    assert world.send(keyed).reply == first
    world.tick(1)
    assert world.send(keyed).reply != first
    assert end_offset(world) == 2


def test_a_key_with_a_different_body_is_refused() -> None:
    world = world_with_topic()
    world.send(commands.Keyed("web", "k1", put(checksum=1)))
    assert code(world.send(commands.Keyed("web", "k1", put(checksum=2))).reply) == "KEY_REUSED"
    assert isinstance(world.send(commands.Keyed("other", "k1", put(checksum=2))).reply, replies.PutReply)


def test_at_the_limit_new_keys_are_refused_and_none_is_deleted() -> None:
    world = World(Limits(keys_max=1))
    world.do(commands.Subscribe("orders", "billing"))
    first = world.send(commands.Keyed("web", "k1", put())).reply
    assert code(world.send(commands.Keyed("web", "k2", put())).reply) == "KEYS_FULL"
    assert world.send(commands.Keyed("web", "k1", put())).reply == first
