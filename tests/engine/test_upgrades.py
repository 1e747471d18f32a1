"""Retries are recognised after an upgrade: the digest of an operation does not change."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
import xxhash

from oncemq.engine.digest import digest_of
from oncemq.protocol import commands

ENVELOPE = commands.Envelope(1, 2, 3)

#: Digest of every operation in the first version that had it, with the fields of that version.
AS_AT_FIRST: list[tuple[commands.Operation, list[object]]] = [
    (commands.Void(), ["void"]),
    (commands.CreateTopic("orders"), ["create", "orders", 0, 0]),
    (commands.CreateTopic("orders", 5, 6), ["create", "orders", 5, 6]),
    (commands.DeleteTopic("orders"), ["delete", "orders"]),
    (commands.Subscribe("orders", "eve"), ["subscribe", "orders", "eve", -1]),
    (commands.Subscribe("orders", "eve", 7), ["subscribe", "orders", "eve", 7]),
    (commands.Unsubscribe("orders", "eve"), ["unsubscribe", "orders", "eve"]),
    (commands.Open("orders", "eve"), ["open", "orders", "eve", 0]),
    (commands.Close(1, "eve", 2), ["close", 1, "eve", 2]),
    (commands.Seek("orders", "eve"), ["seek", "orders", "eve", -2, 0]),
    (commands.Put("orders", ENVELOPE), ["put", "orders", [1, 2, 3, 0, 0, b""], False]),
    (commands.Settle(1, "eve", 2), ["settle", 1, "eve", 2, [], []]),
    (
        commands.Transact(puts=(commands.Put("a", ENVELOPE),)),
        ["transact", [], [], [["put", "a", [1, 2, 3, 0, 0, b""], False]]],
    ),
    (commands.Transact((commands.AckUpto(1, "eve", 2, 3),)), ["transact", [[1, "eve", 2, 3]], [], []]),
    (commands.Stage("s", "orders", "w", 1, ENVELOPE), ["stage", "s", "orders", "w", 1, [1, 2, 3, 0, 0, b""]]),
    (commands.Commit("w", 1, "orders", (("s", 1),)), ["commit", "w", 1, "orders", [["s", 1]]]),
    (commands.Abort(("s",)), ["abort", ["s"]]),
    (commands.RegistrySet("n", "k", None), ["register", "n", "k", None, -1]),
    (commands.RemoveSession("eve"), ["remove_session", "eve"]),
    (commands.RemoveKeys("web", ("k1",)), ["remove_keys", "web", ["k1"]]),
    (commands.PutSchema("orders", None, "full", "broker"), ["put_schema", "orders", None, "full", "broker"]),
    (commands.Assign("session", "eve", "ann"), ["assign", "session", "eve", "ann", ""]),
]


@pytest.mark.parametrize(("operation", "elements"), AS_AT_FIRST, ids=[str(one[1]) for one in AS_AT_FIRST])
def test_a_command_that_was_decided_before_an_upgrade_is_recognised(
    operation: commands.Operation, elements: list[object]
) -> None:
    assert digest_of(operation) == xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(elements))


def test_every_operation_is_covered() -> None:
    assert {type(operation) for operation, _ in AS_AT_FIRST} == set(get_args(commands.Operation))


def test_added_fields_change_the_digest() -> None:
    operations: list[commands.Operation] = [
        commands.CreateTopic("orders"),
        commands.CreateTopic("orders", quota_bytes=1),
        commands.CreateTopic("orders", overflow=commands.DROP),
        commands.CreateTopic("orders", alter=True),
        commands.CreateTopic("orders", quota_bytes=1, alter=True),
        commands.Subscribe("orders", "eve"),
        commands.Subscribe("orders", "eve", sharing=commands.Sharing()),
        commands.Subscribe("orders", "eve", sharing=commands.Sharing(key_order=True)),
        commands.Put("orders", ENVELOPE),
        commands.Put("orders", commands.Envelope(1, 2, 3, schema_version=1)),
        commands.Put("orders", commands.Envelope(1, 2, 3, schema_version=1, schema_topic_id=7)),
        commands.Transact((commands.AckUpto(1, "eve", 2, 3),)),
        commands.Transact((commands.AckUpto(1, "eve", 2, 3, 1),)),
        commands.Transact((commands.AckUpto(1, "eve", 2, 3, 2),)),
        commands.Commit("w", 1, "orders", (("s", 1),)),
        commands.Commit("w", 1, "", (), (("orders", (("s", 1),)),)),
        commands.Commit("w", 1, "", (), (("orders", (("s", 1),)), ("bills", ()))),
        commands.Commit("w", 1, "", ()),
        commands.Commit("w", 1, "", (), content=b"a"),
        commands.Commit("w", 1, "", (), content=b"b"),
    ]
    assert len({digest_of(operation) for operation in operations}) == len(operations)
