"""Ownership, revocation, quotas, logins and the audit log of a broker with users."""

from __future__ import annotations

import hmac
import json
from pathlib import Path

import msgspec
import pytest

from oncemq.auth.rules import resolve
from oncemq.auth.tokens import new_token, stored
from oncemq.auth.users import CERTIFICATE, Quotas, User, Users
from oncemq.broker.security.security import Security
from oncemq.engine.decide import lists
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.commands import CURVE, START_EARLIEST, TOKEN, As, Hello, Numbered
from tests.auth.rig import SecureRig, make_users
from tests.auth.walk import GATE, OTHER, OWNER, ROOT, RULES, STRANGER, Walk
from tests.broker.rig import code, expect

BOTH = {**RULES, OTHER: ("all orders.#",)}


def walk_of(rig: SecureRig) -> Walk:
    return Walk(rig.send)


# Owners.


def test_another_user_with_the_same_rights_cannot_touch_what_a_user_has_created() -> None:
    rig = SecureRig(make_users(BOTH))
    walk = walk_of(rig)
    examples = walk.examples()
    for kind in (Hello, commands.Bye, commands.Get, commands.Take, commands.Leave, commands.GetAny, commands.Writer):
        assert code(walk.send(OTHER, examples[kind]())) == "FORBIDDEN", kind
    for operation in (
        commands.Open(walk.topic, "kitchen"),
        commands.Subscribe(walk.topic, "kitchen", START_EARLIEST),
        commands.Unsubscribe(walk.topic, "kitchen"),
        commands.Seek(walk.topic, "kitchen"),
        commands.Abort((walk.stage,)),
        commands.Commit(walk.writer, 2, walk.topic, ()),
    ):
        assert code(walk.do(OTHER, operation)) == "FORBIDDEN", operation
    assert code(walk.do(OTHER, commands.RemoveSession(walk.victim))) == "SESSION_UNKNOWN"
    assert isinstance(walk.do(OTHER, commands.Subscribe(walk.topic, "cellar")), replies.SubscribeReply)
    number = Numbered(walk.victim, walk.victim_epoch, 1, 1, commands.Void())
    assert code(walk.send(OTHER, number)) == "SESSION_UNKNOWN", "verdicts of others can't be replayed"
    assert isinstance(walk.send(OWNER, number), replies.Done), "and the refusal did not use up the number"


def test_owners_survive_a_crash_and_a_snapshot() -> None:
    rig = SecureRig(make_users(BOTH))
    walk = walk_of(rig)
    before = sorted(rig.broker.engine.state.owners)
    assert {kind for kind, *_ in before} == {"topic", "session", "subscription", "stage", "writer"}
    rig.restart()
    assert sorted(rig.broker.engine.state.owners) == before
    rig.broker.stop()
    rig.restart()
    assert sorted(rig.broker.engine.state.owners) == before
    assert code(walk.send(OTHER, Hello(walk.victim, 0, 9, 8))) == "FORBIDDEN"


def test_what_nobody_owns_belongs_to_the_first_user_who_takes_it_over() -> None:
    rig = SecureRig(make_users(BOTH))
    users, rig.users = rig.users, None
    rig.security = Security(lambda: rig.users, rig.clock.now_ms)
    rig.broker = rig._broker()
    rig.do(commands.Subscribe("orders.1", "kitchen"))
    assert users is not None
    rig.reload(users)
    walk = Walk(rig.send)
    assert isinstance(walk.do(OTHER, commands.Open("orders.1", "kitchen")), replies.OpenReply)
    assert isinstance(walk.send(OTHER, Hello("alice", 0, 5, 8)), replies.HelloReply)
    assert code(walk.do(OWNER, commands.Open("orders.1", "kitchen"))) == "FORBIDDEN"
    assert code(walk.send(OWNER, Hello("alice", 0, 6, 8))) == "FORBIDDEN"


def test_a_user_who_may_not_see_a_topic_does_not_learn_from_an_unsubscribe_whether_it_exists() -> None:
    rig = SecureRig()
    walk = walk_of(rig)
    for topic, subscriber in ((walk.topic, "kitchen"), (walk.topic, "nobody"), ("orders.none", "nobody")):
        assert code(walk.do(OTHER, commands.Unsubscribe(topic, subscriber))) == "FORBIDDEN"
    rig.reload(make_users({**RULES, OWNER: ()}))
    assert isinstance(walk.do(OWNER, commands.Unsubscribe(walk.topic, "kitchen")), replies.Done), "it is his"


def test_an_administrator_gives_a_subscription_to_another_user() -> None:
    rig = SecureRig(make_users(BOTH))
    walk = walk_of(rig)
    given = commands.Assign(commands.SUBSCRIPTION, "kitchen", OTHER, walk.topic)
    assert isinstance(walk.do(ROOT, given), replies.Done)
    assert code(walk.do(OWNER, commands.Open(walk.topic, "kitchen"))) == "FORBIDDEN"
    assert isinstance(walk.do(OTHER, commands.Open(walk.topic, "kitchen")), replies.OpenReply)
    rig.restart()
    assert rig.broker.engine.state.owners.get(commands.SUBSCRIPTION, walk.topic, "kitchen") == OTHER
    assert code(walk.do(ROOT, commands.Assign("topic", "x", OTHER))) == "MALFORMED"
    assert code(walk.do(ROOT, commands.Assign(commands.SESSION, "unknown", OTHER))) == "MALFORMED"
    assert code(walk.do(ROOT, commands.Assign(commands.SESSION, walk.victim, "nobody"))) == "MALFORMED"


def test_puts_are_refused_once_their_session_belongs_to_somebody_else() -> None:
    rig = SecureRig(make_users(BOTH))
    walk = walk_of(rig)
    put, payloads = walk.examples()[commands.Put]()
    begun = expect(replies.HelloReply, walk.send(OWNER, Hello("mine", 0, 1, 8)))
    for number in (1, 2):
        assert isinstance(walk.send(OWNER, Numbered("mine", begun.epoch, number, 1, put), payloads), replies.PutReply)
    walk.do(ROOT, commands.Assign(commands.SESSION, "mine", OTHER))
    assert code(walk.send(OWNER, Numbered("mine", begun.epoch, 3, 1, put), payloads)) == "SESSION_UNKNOWN"


def test_a_name_can_be_used_by_another_user_after_it_was_deleted() -> None:
    rig = SecureRig(make_users(BOTH))
    walk = walk_of(rig)
    walk.do(OWNER, commands.Unsubscribe(walk.topic, "kitchen"))
    assert isinstance(walk.do(OTHER, commands.Subscribe(walk.topic, "kitchen")), replies.SubscribeReply)
    assert code(walk.do(OWNER, commands.Open(walk.topic, "kitchen"))) == "FORBIDDEN"


# A gateway acts for its callers.


def test_a_gateway_uses_its_own_session_for_the_operations_of_its_callers() -> None:
    rig = SecureRig()
    begun = expect(replies.HelloReply, rig.send(GATE, Hello("gateway-1", 0, 1, 8)))
    create = commands.CreateTopic("orders.1")

    def number(n: int, who: str) -> As:
        return As(f"{who}/certificate={who}", Numbered("gateway-1", begun.epoch, n, n, create), True)

    assert code(rig.send(GATE, number(1, OTHER))) == "FORBIDDEN"
    assert isinstance(rig.send(GATE, number(2, OWNER)), replies.TopicReply), "the refusal has used up number 1"
    assert rig.broker.engine.state.owners.get("topic", "", "orders.1") == OWNER
    own = Numbered("gateway-1", begun.epoch, 3, 3, create)
    assert code(rig.send(GATE, own)) == "FORBIDDEN", "without a caller, a gateway may do nothing with topics"
    assert code(rig.send(OWNER, As(f"{OTHER}/certificate={OTHER}", commands.Health()))) == "FORBIDDEN"
    assert code(rig.send(OWNER, number(4, OWNER))) == "FORBIDDEN"


def test_a_caller_of_a_gateway_cannot_use_the_session_of_the_gateway() -> None:
    rig = SecureRig()
    expect(replies.HelloReply, rig.send(GATE, Hello("gateway-1", 0, 1, 8)))
    caller = f"{OWNER}/certificate={OWNER}"
    assert code(rig.send(GATE, As(caller, Hello("gateway-1", 0, 2, 8)))) == "FORBIDDEN"
    assert code(rig.send(GATE, As(caller, Numbered("gateway-1", 1, 1, 1, commands.Void())))) == "SESSION_UNKNOWN"


def test_a_credential_that_was_removed_ends_what_a_gateway_does_for_it() -> None:
    rig = SecureRig()
    begun = expect(replies.HelloReply, rig.send(GATE, Hello("gateway-1", 0, 1, 8)))
    put = commands.CreateTopic("orders.1")
    rig.reload(make_users({name: rules for name, rules in RULES.items() if name != OWNER}))
    caller = f"{OWNER}/certificate={OWNER}"
    assert code(rig.send(GATE, As(caller, commands.Health()))) == "UNAUTHENTICATED"
    assert code(rig.send(GATE, As(caller, Numbered("gateway-1", begun.epoch, 1, 1, put), True))) == "UNAUTHENTICATED"
    void = Numbered("gateway-1", begun.epoch, 2, 2, commands.Void())
    assert isinstance(rig.send(GATE, void), replies.Done), "the number of the refused one is used up"


# Revocation.


@pytest.mark.parametrize("rules", [(), ("describe orders.#",), None], ids=["no rights", "fewer rights", "no user"])
def test_waiting_requests_end_when_rights_are_revoked(rules: tuple[str, ...] | None) -> None:
    rig = SecureRig()
    walk = walk_of(rig)
    waits: list[commands.Command] = [
        commands.Get(walk.topic_id, "kitchen", walk.epoch, 3, 1000, 60_000),
        commands.Read(walk.topic, commands.START_NEW, 1000, 60_000),
        commands.GetAny(walk.pattern, "kitchen", walk.pattern_epoch, ((walk.topic_id, 3),), 1000, 60_000),
        commands.Take(walk.topic_id, "workers", walk.shared_epoch, "late", 1, 10, 1000, 60_000),
    ]
    rig.send(OWNER, msgspec.structs.replace(waits[3], number=1, wait_ms=0))
    waits[3] = msgspec.structs.replace(waits[3], number=2)
    requests = [rig.post([command], [], rig.login(OWNER)) for command in waits]
    rig.rounds()
    assert not rig.answers(), "all of them wait"
    changed = {**RULES, OWNER: rules} if rules is not None else {k: v for k, v in RULES.items() if k != OWNER}
    rig.reload(make_users(changed))
    rig.rounds(2)
    answers = rig.answers()
    assert {code(answers[request][0][0]) for request in requests} <= {"FORBIDDEN", "UNAUTHENTICATED"}
    assert len(answers) == len(waits)


def test_a_decided_number_is_answered_even_if_the_right_was_revoked() -> None:
    rig = SecureRig()
    walk = walk_of(rig)
    begun = expect(replies.HelloReply, walk.send(OWNER, Hello("mine", 0, 1, 8)))
    create = Numbered("mine", begun.epoch, 1, 1, commands.CreateTopic("orders.new"))
    first = walk.send(OWNER, create)
    assert isinstance(first, replies.TopicReply)
    rig.reload(make_users({**RULES, OWNER: ()}))
    assert walk.send(OWNER, create) == first
    again = Numbered("mine", begun.epoch, 2, 2, commands.CreateTopic("orders.newer"))
    assert code(walk.send(OWNER, again)) == "FORBIDDEN"
    rig.reload(make_users())
    assert code(walk.send(OWNER, again)) == "FORBIDDEN", "the refusal is the verdict of this number"


def test_a_refused_key_can_be_used_once_the_right_is_granted() -> None:
    rig = SecureRig(make_users({**RULES, OWNER: ()}))
    keyed = commands.Keyed(OWNER, "k", commands.CreateTopic("orders.1"))
    assert code(rig.send(OWNER, keyed)) == "FORBIDDEN"
    assert not len(rig.broker.engine.state.keys)
    rig.reload(make_users())
    assert isinstance(rig.send(OWNER, keyed), replies.TopicReply)


def test_a_broken_file_leaves_the_former_users_in_force(tmp_path: Path) -> None:
    def broken() -> None:
        raise errors.SettingInvalid("auth.toml: user 'x': there is no role 'chef'")

    rig = SecureRig(audit=tmp_path / "audit.log")
    rig.guard._load = broken
    refused = rig.send(ROOT, commands.AuthReload())
    assert code(refused) == "SETTING_INVALID"
    assert isinstance(rig.send(OWNER, commands.Topics()), replies.TopicsReply)
    assert json.loads((tmp_path / "audit.log").read_text().splitlines()[-1])["event"] == "not reloaded"
    rig.guard._load = lambda: None
    assert code(rig.send(ROOT, commands.AuthReload())) == "SETTING_INVALID", "users do not vanish with the file"


# Lists.


def test_pages_show_only_what_the_user_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "_HIDDEN_MAX", 3)
    rig = SecureRig(make_users({**RULES, STRANGER: ("describe a7", "describe z")}))
    walk = walk_of(rig)
    for index in range(10):
        walk.do(ROOT, commands.CreateTopic(f"a{index}"))
    walk.do(ROOT, commands.CreateTopic("z"))
    seen, after, pages = [], "", 0
    while True:
        page = expect(replies.TopicsReply, rig.send(STRANGER, commands.Topics(after, 2)))
        seen += [topic.name for topic in page.topics]
        pages += 1
        after = page.after
        if not after:
            break
        assert after.startswith("\0") or after in ("a7", "z"), "a name that the user may not see"
    assert seen == ["a7", "z"]
    assert pages > 3
    assert code(rig.send(STRANGER, commands.Topics("\x00999999"))) == "BUSY"
    assert code(rig.send(STRANGER, commands.Topics("\0x"))) == "BUSY"


def test_users_see_their_own_sessions_patterns_and_principals() -> None:
    rig = SecureRig(make_users(BOTH | {STRANGER: ("describe orders.9",), "eve": ("role viewer",)}))
    walk = walk_of(rig)
    own = expect(replies.SessionsReply, rig.send(OWNER, commands.Sessions()))
    assert walk.victim in [entry.name for entry in own.sessions]
    others = expect(replies.SessionsReply, rig.send(OTHER, commands.Sessions()))
    assert not [entry for entry in others.sessions if entry.name == walk.victim]
    everything = expect(replies.SessionsReply, rig.send("eve", commands.Sessions()))
    assert walk.victim in [entry.name for entry in everything.sessions]
    assert expect(replies.PatternsReply, rig.send(OWNER, commands.Patterns())).patterns
    assert not expect(replies.PatternsReply, rig.send(STRANGER, commands.Patterns())).patterns
    for principal in (OWNER, f"{OWNER}/http", OTHER, "owners"):
        rig.send(ROOT, commands.Keyed(principal, "k", commands.Void()))
    shares = expect(replies.SharesReply, rig.send(OWNER, commands.Shares(commands.KEYS)))
    assert [share.owner for share in shares.shares] == [OWNER, f"{OWNER}/http"]
    page = expect(replies.SharesReply, rig.send(OWNER, commands.Shares(commands.KEYS, OWNER)))
    assert [share.owner for share in page.shares] == [f"{OWNER}/http"]


def test_where_the_journal_is_is_shown_to_viewers_only() -> None:
    rig = SecureRig(make_users({**RULES, "eve": ("role viewer",)}))
    assert expect(replies.HealthReply, rig.send("eve", commands.Health())).journal
    hidden = expect(replies.HealthReply, rig.send(STRANGER, commands.Health()))
    assert (hidden.journal, hidden.counters) == ("", {})


def test_pages_cannot_be_asked_for_by_the_ids_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "_HIDDEN_MAX", 1)
    rig = SecureRig()
    walk = walk_of(rig)
    page = expect(replies.SessionsReply, rig.send(OTHER, commands.Sessions()))
    assert page.after.startswith("\0")
    assert isinstance(rig.send(OTHER, commands.Sessions(page.after)), replies.SessionsReply)
    assert code(rig.send(STRANGER, commands.Sessions(page.after))) == "BUSY", "it is another user's"
    number = rig.broker.engine.state.sessions[walk.victim].id
    for forged in (f"\0{number}", f"\0{number}.", f"\0{number}.{'0' * 32}"):
        assert code(rig.send(OTHER, commands.Sessions(forged))) == "BUSY"


# What was found by those who tried to get around the rules.


def test_a_user_who_may_only_look_changes_nothing_by_creating_a_topic_that_exists() -> None:
    rig = SecureRig(make_users({**BOTH, "eve": ("role viewer",), "mallory": ("create orders.#",)}))
    walk = walk_of(rig)
    walk.do(OWNER, commands.Subscribe("orders.passing", "kitchen"))
    for who in ("eve", "mallory"):
        wiped = commands.CreateTopic("orders.passing", quota_bytes=1, overflow=commands.DROP)
        assert code(walk.do(who, wiped)) == "FORBIDDEN"
    topic = rig.broker.engine.state.topics["orders.passing"]
    assert (topic.stays, topic.quota_bytes) == (False, 0)


def test_refusals_do_not_tell_whether_something_exists() -> None:
    rig = SecureRig()
    walk = walk_of(rig)
    for operation in (
        lambda topic: commands.CreateTopic(topic),
        lambda topic: commands.Unsubscribe(topic, "kitchen"),
        lambda topic: commands.Put(topic, walk.examples()[commands.Put]()[0].envelope),
    ):
        texts = set()
        for topic in (walk.topic, "orders.none"):
            payloads = walk.examples()[commands.Put]()[1] if isinstance(operation(topic), commands.Put) else []
            reply = walk.do(STRANGER, operation(topic), payloads)
            assert isinstance(reply, replies.Refusal)
            texts.add((reply.code, reply.text.replace(topic, "T")))
        assert len(texts) == 1, texts


def test_a_name_of_a_subscription_shows_no_other_topic() -> None:
    rig = SecureRig(make_users({**RULES, OTHER: ("all mine.#",)}))
    walk = walk_of(rig)
    walk.do(OTHER, commands.Subscribe("mine.t", "k"))
    for command in (
        commands.Get(walk.topic_id, "k\nmine.t", 1, 0, 100),
        commands.Ack(walk.topic_id, "k\nmine.t", 1, 0),
    ):
        assert code(rig.send(OTHER, command)) == "TOPIC_GONE"
    assert code(walk.do(OTHER, commands.Close(walk.topic_id, "k\nmine.t", 1))) == "TOPIC_GONE"


def test_what_nobody_owns_is_not_deleted_by_users_without_the_right() -> None:
    rig = SecureRig(make_users(BOTH))
    users, rig.users = rig.users, None
    rig.security = Security(lambda: rig.users, rig.clock.now_ms)
    rig.broker = rig._broker()
    rig.do(commands.Subscribe("orders.1", "kitchen"))
    assert users is not None
    rig.reload(users)
    walk = Walk(rig.send)
    assert code(walk.do(STRANGER, commands.Unsubscribe("orders.1", "kitchen"))) == "FORBIDDEN"
    assert code(walk.do(OTHER, commands.RemoveSession("alice"))) == "SESSION_UNKNOWN"
    assert isinstance(walk.do(ROOT, commands.RemoveSession("alice")), replies.Done)
    assert code(walk.do(STRANGER, commands.Commit("squatted", 1, "", ()))) == "FORBIDDEN"


def test_long_names_are_neither_compared_nor_remembered(tmp_path: Path) -> None:
    rig = SecureRig(audit=tmp_path / "audit.log")
    walk = walk_of(rig)
    before = (tmp_path / "audit.log").stat().st_size
    name = "a" + ".a" * 500_000
    reply = walk.do(OTHER, commands.CreateTopic(name))
    assert isinstance(reply, replies.Refusal)
    assert len(reply.text) < 1000
    assert (tmp_path / "audit.log").stat().st_size - before < 2_000
    caller = rig.guard._caller(f"{OTHER}/certificate={OTHER}")
    assert caller is not None
    assert name not in {topic for _, topic in caller.rights._remembered}


# Quotas.


def test_numbers_of_things_are_limited_per_user() -> None:
    limited = Quotas(topics=2, subscriptions=3, sessions=2, keys=1)
    rig = SecureRig(make_users(BOTH, {OTHER: limited}))
    walk = walk_of(rig)
    assert isinstance(walk.do(OTHER, commands.CreateTopic("orders.a")), replies.TopicReply)
    assert isinstance(walk.do(OTHER, commands.Subscribe("orders.b", "one")), replies.SubscribeReply)
    assert code(walk.do(OTHER, commands.CreateTopic("orders.c"))) == "QUOTA_REACHED"
    assert code(walk.do(OTHER, commands.Subscribe("orders.c", "one"))) == "QUOTA_REACHED"
    assert isinstance(walk.do(OTHER, commands.CreateTopic("orders.a")), replies.TopicReply), "it exists"
    for name in ("two", "three"):
        assert isinstance(walk.do(OTHER, commands.Subscribe(walk.topic, name)), replies.SubscribeReply)
    assert code(walk.do(OTHER, commands.Subscribe(walk.topic, "four"))) == "QUOTA_REACHED"
    assert code(walk.do(OTHER, commands.Subscribe("orders.#", "four"))) == "QUOTA_REACHED"
    walk.do(OTHER, commands.Unsubscribe(walk.topic, "three"))
    assert isinstance(walk.do(OTHER, commands.Subscribe(walk.topic, "four")), replies.SubscribeReply)
    assert isinstance(rig.send(OTHER, Hello("second", 0, 1, 8)), replies.HelloReply)
    assert code(rig.send(OTHER, Hello("third", 0, 1, 8))) == "QUOTA_REACHED"
    assert isinstance(rig.send(OTHER, Hello("second", 0, 2, 8)), replies.HelloReply), "it exists"
    assert isinstance(rig.send(OTHER, commands.Keyed(OTHER, "k1", commands.Void())), replies.Done)
    assert code(rig.send(OTHER, commands.Keyed(f"{OTHER}/x", "k2", commands.Void()))) == "QUOTA_REACHED"
    assert isinstance(rig.send(OTHER, commands.Keyed(OTHER, "k1", commands.Void())), replies.Done), "it exists"
    assert isinstance(walk.do(OWNER, commands.CreateTopic("orders.c")), replies.TopicReply), "others are not affected"
    assert rig.broker.counters["refused_quota_reached"] == 6


def test_messages_per_second_are_limited_per_user() -> None:
    rig = SecureRig(make_users(BOTH, {OTHER: Quotas(messages_per_s=10)}))
    walk = walk_of(rig)
    put = walk.examples()[commands.Put]()
    results = [walk.send(OTHER, commands.Keyed(OTHER, f"k{index}", put[0]), put[1]) for index in range(12)]
    assert sum(isinstance(result, replies.PutReply) for result in results) == 10
    assert {code(result) for result in results[10:]} == {"RATE_LIMITED"}
    assert isinstance(walk.do(OWNER, *put), replies.PutReply)
    rig.rounds(forward_ms=500)
    results = [walk.send(OTHER, commands.Keyed(OTHER, f"k{index}", put[0]), put[1]) for index in range(10, 18)]
    assert sum(isinstance(result, replies.PutReply) for result in results) == 5


def test_stored_bytes_are_limited_by_the_owner_of_the_topic() -> None:
    rig = SecureRig(make_users(BOTH, {OWNER: Quotas(stored_bytes=1000)}))
    walk = walk_of(rig)
    put, payloads = walk.examples()[commands.Put]()
    size = put.envelope.size
    stored = 0
    while isinstance(reply := walk.send(OTHER, commands.Keyed(OTHER, f"k{stored}", put), payloads), replies.PutReply):
        stored += 1
    assert code(reply) == "QUOTA_FULL"
    topic = rig.broker.engine.state.topics[walk.topic]
    assert 1000 - 2 * size < topic.stored_bytes <= 1000
    walk.send(OWNER, commands.Ack(walk.topic_id, "kitchen", walk.epoch, topic.next_offset))
    walk.do(OWNER, commands.Unsubscribe(walk.topic, "workers"))
    walk.do(OWNER, commands.Unsubscribe(walk.pattern, "kitchen"))
    rig.rounds(forward_ms=2_000)
    assert isinstance(walk.send(OTHER, commands.Keyed(OTHER, "k", put), payloads), replies.PutReply)


def test_a_repetition_gets_its_verdict_whatever_the_quotas_are() -> None:
    rig = SecureRig(make_users(BOTH, {OWNER: Quotas(stored_bytes=200), OTHER: Quotas(messages_per_s=1)}))
    walk = walk_of(rig)
    put, payloads = walk.examples()[commands.Put]()
    begun = expect(replies.HelloReply, walk.send(OTHER, Hello("mine", 0, 1, 8)))
    number = Numbered("mine", begun.epoch, 1, 1, put)
    first = walk.send(OTHER, number, payloads)
    assert isinstance(first, replies.PutReply)
    for _ in range(3):
        assert walk.send(OTHER, number, payloads) == first
    keyed = commands.Keyed(OWNER, "k", put)
    stored_once = walk.send(OWNER, keyed, payloads)
    while isinstance(walk.do(OWNER, put, payloads), replies.PutReply):
        pass
    assert walk.send(OWNER, keyed, payloads) == stored_once


def test_a_count_that_is_not_valid_does_not_change_the_rate() -> None:
    rig = SecureRig(make_users(BOTH, {OTHER: Quotas(messages_per_s=5)}))
    walk = walk_of(rig)
    put, payloads = walk.examples()[commands.Put]()
    for index, count in enumerate((-(10**9), 2**60)):
        forged = msgspec.structs.replace(put, envelope=msgspec.structs.replace(put.envelope, count=count))
        assert code(walk.send(OTHER, commands.Keyed(OTHER, f"f{index}", forged), payloads)) == "MALFORMED"
    results = [walk.send(OTHER, commands.Keyed(OTHER, f"k{index}", put), payloads) for index in range(8)]
    assert sum(isinstance(result, replies.PutReply) for result in results) == 5


def test_bytes_in_flight_are_limited_per_user() -> None:
    rig = SecureRig(make_users(BOTH, {OTHER: Quotas(in_flight_bytes=1000)}))
    walk = walk_of(rig)
    put, payloads = walk.examples()[commands.Put]()
    puts = [commands.Keyed(OTHER, f"k{index}" + "x" * 300, put) for index in range(8)]
    requests = [rig.post([each], payloads, rig.login(OTHER)) for each in puts]
    own = rig.post([commands.Keyed(OWNER, "k", put)], payloads, rig.login(OWNER))
    rig.rounds()
    answers = rig.answers()
    codes = [code(answers[each][0][0]) for each in requests if not isinstance(answers[each][0][0], replies.PutReply)]
    assert codes
    assert set(codes) == {"RATE_LIMITED"}
    assert isinstance(answers[own][0][0], replies.PutReply)
    again = rig.post(puts[-1:], payloads, rig.login(OTHER))
    rig.rounds()
    assert isinstance(rig.answers()[again][0][0], replies.PutReply), "what was decided is not in flight any more"


def test_connections_are_limited_per_user() -> None:
    rig = SecureRig(make_users(RULES, {OTHER: Quotas(connections=2)}))
    guard = rig.guard
    callers = [guard.admit(CERTIFICATE, OTHER, "10.0.0.1") for _ in range(2)]
    with pytest.raises(errors.QuotaReached):
        guard.admit(CERTIFICATE, OTHER, "10.0.0.1")
    assert guard.admit(CERTIFICATE, OWNER, "10.0.0.1") == f"{OWNER}/certificate={OWNER}"
    guard.left(callers[0])
    assert guard.admit(CERTIFICATE, OTHER, "10.0.0.1") == callers[0]


# Logins and the audit log.


def test_failed_logins_are_limited_per_address() -> None:
    rig = SecureRig()
    guard = rig.guard
    for _ in range(10):
        with pytest.raises(errors.Unauthenticated):
            guard.admit(TOKEN, new_token(), "10.0.0.1")
    with pytest.raises(errors.RateLimited):
        guard.admit(TOKEN, new_token(), "10.0.0.1")
    with pytest.raises(errors.RateLimited):
        guard.admit(CURVE, "x" * 40, "10.0.0.1")
    with pytest.raises(errors.Unauthenticated):
        guard.admit(TOKEN, new_token(), "10.0.0.2")
    assert guard.admit(CERTIFICATE, OWNER, "10.0.0.1"), "others on the same machine are not kept out"
    rig.clock.time_ms += 1_500
    with pytest.raises(errors.Unauthenticated):
        guard.admit(TOKEN, new_token(), "10.0.0.1")
    for _ in range(10):
        with pytest.raises(errors.Unauthenticated):
            guard.admit(CURVE, "x" * 40, "2001:db8::1")
    with pytest.raises(errors.RateLimited):
        guard.admit(CURVE, "x" * 40, "2001:db8::2")
    login = commands.Login(CURVE, "x" * 40, "2001:db8::3", "text")
    assert code(rig.send(GATE, login)) == "RATE_LIMITED"


def test_a_token_whose_secret_is_guessed_is_limited_for_that_address() -> None:
    one, other = new_token(), new_token()
    allowed = [
        User(name, resolve((), {}), {stored(token).id: stored(token)}) for name, token in (("a", one), ("b", other))
    ]
    guard = SecureRig(Users(allowed)).guard
    guess = one[:-5] + "AAAAA"
    for _ in range(10):
        with pytest.raises(errors.Unauthenticated):
            guard.admit(TOKEN, guess, "10.0.0.1")
    with pytest.raises(errors.RateLimited):
        guard.admit(TOKEN, one, "10.0.0.1")
    assert guard.admit(TOKEN, one, "10.0.0.2").startswith("a/")
    assert guard.admit(TOKEN, other, "10.0.0.1").startswith("b/"), "other tokens are not affected"


def test_the_audit_log_has_logins_refusals_and_changes_and_no_secrets(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    rig = SecureRig(audit=path)
    guard = rig.guard
    secret = "omq_aaaaaaaa_" + "s" * 43
    with pytest.raises(errors.Unauthenticated):
        guard.admit(TOKEN, secret, "10.0.0.1")
    guard.admit(CERTIFICATE, OWNER, "10.0.0.2")
    walk = walk_of(rig)
    for _ in range(5):
        walk.do(OTHER, commands.DeleteTopic(walk.topic))
    walk.do(OWNER, commands.DeleteTopic(walk.topic))
    rig.rounds()
    text = path.read_text()
    assert secret not in text
    entries = [json.loads(line) for line in text.splitlines()]
    assert path.stat().st_mode & 0o777 == 0o600
    assert next(e for e in entries if e["event"] == "login failed")["address"] == "10.0.0.1"
    assert {"user": OWNER, "address": "10.0.0.2", "kind": "certificate"}.items() <= next(
        e for e in entries if e["event"] == "login"
    ).items()
    refusals = [e for e in entries if e["event"] == "refused"]
    assert [(e["user"], e["code"]) for e in refusals] == [(OTHER, "FORBIDDEN")], "the same refusal is there once"
    changes = [(e["operation"], e.get("name")) for e in entries if e["event"] == "changed" and e["user"] == OWNER]
    assert changes[-1] == ("delete", walk.topic)
    path.rename(tmp_path / "audit.log.1")
    guard.reload()
    rig.rounds()
    assert "reloaded" in path.read_text(), "the log is opened again, so that it can be rotated"


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = SecureRig(audit=tmp_path / "missing" / "audit.log")
    walk = walk_of(rig)
    assert isinstance(walk.do(OWNER, commands.CreateTopic("orders.x")), replies.TopicReply)
    assert [record.message for record in caplog.records if "can't be written" in record.message]


def test_comparisons_take_place_for_unknown_tokens_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    real = hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    rig = SecureRig()
    for token in (new_token(), "", "nonsense"):
        with pytest.raises(errors.Unauthenticated):
            rig.guard.admit(TOKEN, token, token)
    assert len(compared) == 3
