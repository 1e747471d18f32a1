"""What was decided under an older version is recognised by a newer one: an operation's digest does not change."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
import xxhash

from oncemq.engine import commands as co
from oncemq.engine.engine import digest_of

ENVELOPE = co.Envelope(1, 2, 3)

#: Every operation as the first version that knew it digested it: with all fields that it had then.
AS_AT_FIRST: list[tuple[co.Operation, list[object]]] = [
    (co.Void(), ["void"]),
    (co.CreateTopic("orders"), ["create", "orders", 0, 0]),
    (co.CreateTopic("orders", 5, 6), ["create", "orders", 5, 6]),
    (co.DeleteTopic("orders"), ["delete", "orders"]),
    (co.Subscribe("orders", "eve"), ["subscribe", "orders", "eve", -1]),
    (co.Subscribe("orders", "eve", 7), ["subscribe", "orders", "eve", 7]),
    (co.Unsubscribe("orders", "eve"), ["unsubscribe", "orders", "eve"]),
    (co.Open("orders", "eve"), ["open", "orders", "eve", 0]),
    (co.Close(1, "eve", 2), ["close", 1, "eve", 2]),
    (co.Seek("orders", "eve"), ["seek", "orders", "eve", -2, 0]),
    (co.Put("orders", ENVELOPE), ["put", "orders", [1, 2, 3, 0, 0, b""], False]),
    (co.Settle(1, "eve", 2), ["settle", 1, "eve", 2, [], []]),
    (co.Transact(puts=(co.Put("a", ENVELOPE),)), ["transact", [], [], [["put", "a", [1, 2, 3, 0, 0, b""], False]]]),
    (co.Stage("s", "orders", "w", 1, ENVELOPE), ["stage", "s", "orders", "w", 1, [1, 2, 3, 0, 0, b""]]),
    (co.Commit("w", 1, "orders", (("s", 1),)), ["commit", "w", 1, "orders", [["s", 1]]]),
    (co.Abort(("s",)), ["abort", ["s"]]),
    (co.RegistrySet("n", "k", None), ["register", "n", "k", None, -1]),
    (co.RemoveSession("eve"), ["remove_session", "eve"]),
]


@pytest.mark.parametrize(("operation", "elements"), AS_AT_FIRST, ids=[str(one[1]) for one in AS_AT_FIRST])
def test_a_command_that_was_decided_before_an_upgrade_is_recognised(
    operation: co.Operation, elements: list[object]
) -> None:
    assert digest_of(operation) == xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(elements))


def test_every_operation_is_looked_at() -> None:
    assert {type(operation) for operation, _ in AS_AT_FIRST} == set(get_args(co.Operation))


def test_fields_that_were_added_tell_commands_apart() -> None:
    operations: list[co.Operation] = [
        co.CreateTopic("orders"),
        co.CreateTopic("orders", quota_bytes=1),
        co.CreateTopic("orders", overflow=co.DROP),
        co.CreateTopic("orders", alter=True),
        co.CreateTopic("orders", quota_bytes=1, alter=True),
        co.Subscribe("orders", "eve"),
        co.Subscribe("orders", "eve", sharing=co.Sharing()),
        co.Subscribe("orders", "eve", sharing=co.Sharing(key_order=True)),
        co.Commit("w", 1, "orders", (("s", 1),)),
        co.Commit("w", 1, "", (), (("orders", (("s", 1),)),)),
        co.Commit("w", 1, "", (), (("orders", (("s", 1),)), ("bills", ()))),
        co.Commit("w", 1, "", ()),
    ]
    assert len({digest_of(operation) for operation in operations}) == len(operations)
