"""Idempotency keys: one principal cannot use up the table, and an operator can free keys."""

from __future__ import annotations

import pytest

from oncemq.engine.state.key_table import KeyEntry, KeyTable
from oncemq.engine.state.sorted_names import SortedNames
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import REMOVED_KEYS_MAX, Limits
from tests.engine.world import World, code, put

KEY_MS = 10_000


def _world(**limits: int) -> World:
    world = World(Limits(key_ms=KEY_MS, **limits))
    world.do(commands.Subscribe("orders", "billing"))
    return world


def _put(world: World, principal: str, key: str) -> replies.Reply:
    return world.send(commands.Keyed(principal, key, put())).reply


def test_one_principal_cannot_use_up_the_keys_of_the_others() -> None:
    world = _world(keys_per_principal_max=3)
    for number in range(3):
        assert isinstance(_put(world, "greedy", f"k{number}"), replies.PutReply)
    refused = _put(world, "greedy", "k3")
    assert isinstance(refused, replies.NotNow)
    assert refused.code == "KEYS_FULL"
    assert "principal 'greedy' has reached its limit of 3 keys" in refused.text
    assert "expires in 10 seconds" in refused.text
    assert "oncemq keys rm" in refused.text
    assert isinstance(_put(world, "modest", "k3"), replies.PutReply)
    # A known key is still recognised.
    assert isinstance(_put(world, "greedy", "k1"), replies.PutReply)


def test_the_share_of_a_principal_is_free_again_when_its_keys_expire() -> None:
    world = _world(keys_per_principal_max=1)
    _put(world, "greedy", "k1")
    world.tick(KEY_MS)
    assert isinstance(_put(world, "greedy", "k2"), replies.PutReply)


def test_the_share_of_a_principal_is_counted_after_a_restart() -> None:
    world = _world(keys_per_principal_max=2)
    _put(world, "greedy", "k1")
    _put(world, "greedy", "k2")
    capture = world.engine.capture()
    chunks = list(iter(capture.chunk, None))
    other = World(world.limits)
    other.engine.restore(chunks)
    assert code(_put(other, "greedy", "k3")) == "KEYS_FULL"
    assert isinstance(_put(other, "modest", "k3"), replies.PutReply | replies.Refusal)


def test_a_freed_key_makes_space_and_its_request_is_executed_again() -> None:
    world = _world(keys_per_principal_max=2)
    first = _put(world, "web", "k1")
    _put(world, "web", "k2")
    assert world.do(commands.RemoveKeys("web", ("k1", "unknown", "k1"))) == replies.Done()
    again = _put(world, "web", "k1")
    assert isinstance(again, replies.PutReply)
    assert again != first
    assert code(_put(world, "web", "k3")) == "KEYS_FULL"


def test_the_keys_of_other_principals_are_not_freed() -> None:
    world = _world()
    first = _put(world, "web", "k1")
    _put(world, "text", "k1")
    world.do(commands.RemoveKeys("text", ("k1",)))
    assert _put(world, "web", "k1") == first


def test_too_many_keys_in_one_command_are_refused() -> None:
    keys = tuple(f"k{number}" for number in range(REMOVED_KEYS_MAX + 1))
    assert code(_world().do(commands.RemoveKeys("web", keys))) == "MALFORMED"


def test_freed_keys_do_not_expire_a_second_time() -> None:
    world = _world()
    for number in range(10):
        _put(world, "web", f"k{number}")
    world.do(commands.RemoveKeys("web", ("k0", "k5")))
    world.tick(KEY_MS // 2)
    kept = _put(world, "web", "late")
    world.tick(KEY_MS // 2)
    assert len(world.engine.state.keys) == 1
    assert _put(world, "web", "late") == kept


def test_keys_and_principals_are_listed_page_by_page() -> None:
    world = _world()
    for number in range(5):
        _put(world, "web", f"k{number}")
    _put(world, "text", "k0")
    shares = world.send(commands.Shares(commands.KEYS)).reply
    assert shares == replies.SharesReply((replies.ShareInfo("text", 1), replies.ShareInfo("web", 5)), "")
    page = world.send(commands.Keys("web", "", 2)).reply
    assert isinstance(page, replies.KeysReply)
    assert [info.key for info in page.keys] == ["k0", "k1"]
    assert page.after == "k1"
    _put(world, "web", "k11")
    world.do(commands.RemoveKeys("web", ("k2",)))
    page = world.send(commands.Keys("web", page.after, 10)).reply
    assert isinstance(page, replies.KeysReply)
    assert [info.key for info in page.keys] == ["k11", "k3", "k4"]
    assert world.send(commands.Keys("nobody")).reply == replies.KeysReply((), "")
    assert code(world.send(commands.Shares("sessions")).reply) == "MALFORMED"


def test_one_namespace_cannot_use_up_the_registry() -> None:
    world = _world(registry_entries_per_namespace_max=2)
    for number in range(2):
        world.do(commands.RegistrySet("queue", f"k{number}", b""))
    refused = world.do(commands.RegistrySet("queue", "k2", b""))
    assert code(refused) == "LIMIT_REACHED"
    assert isinstance(refused, replies.Refusal)
    assert "'queue'" in refused.text
    assert isinstance(world.do(commands.RegistrySet("queue", "k1", b"new")), replies.RegistryReply)
    assert isinstance(world.do(commands.RegistrySet("given", "k2", b"")), replies.RegistryReply)
    shares = world.send(commands.Shares(commands.REGISTRY)).reply
    assert shares == replies.SharesReply((replies.ShareInfo("given", 1), replies.ShareInfo("queue", 2)), "")
    world.do(commands.RegistrySet("given", "k2", None))
    world.do(commands.RegistrySet("queue", "k0", None))
    shares = world.send(commands.Shares(commands.REGISTRY)).reply
    assert shares == replies.SharesReply((replies.ShareInfo("queue", 1),), "")
    assert isinstance(world.do(commands.RegistrySet("queue", "k2", b"")), replies.RegistryReply)


def test_the_order_of_ages_survives_many_freed_keys() -> None:
    table = KeyTable()
    entries = [KeyEntry("p", f"k{number}", 0, replies.Done(), number) for number in range(5_000)]
    for entry in entries:
        table.add(entry)
    for entry in entries[:4_000:2] + entries[4_000:]:
        table.free("p", entry.key)
    assert list(table) == entries[1:4_000:2]
    assert len(table) == 2_000
    table.expire(1_999)
    assert list(table) == [entries[3_999]]
    table.expire(1)
    assert len(table) == 0


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 3_000])
def test_sorted_names_are_the_names_in_order(count: int) -> None:
    names = [f"n{number * 7919 % 10_007:05}" for number in range(count)]
    ordered = SortedNames(names[: count // 2])
    for name in names[count // 2 :]:
        ordered.add(name)
    for name in names[::3]:
        ordered.remove(name)
    left = sorted(set(names) - set(names[::3]))
    assert list(ordered.after("")) == left
    for name in [*left[::100], "a", "z"]:
        assert list(ordered.after(name)) == [other for other in left if other > name]
        assert list(ordered.after(name, inclusive=True)) == [other for other in left if other >= name]


def test_the_oldest_key_is_found_at_once_after_older_keys_were_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = KeyTable()
    for number in range(2_000):
        table.add(KeyEntry("web", f"{number}", 0, replies.Done(), number))
    for number in range(1, 900):
        table.free("web", f"{number}")
    table.expire(1)
    looks: list[str] = []
    get = KeyTable.get

    def counted(table: KeyTable, principal: str, key: str) -> KeyEntry | None:
        looks.append(key)
        return get(table, principal, key)

    monkeypatch.setattr(KeyTable, "get", counted)
    assert next(iter(table)).key == "900"
    assert len(list(table)) == 1_100
    assert looks == []
    table.free("web", "1000")
    looks.clear()
    assert next(iter(table)).key == "900"
    assert looks == ["900"]
    assert "1000" not in [entry.key for entry in table]
