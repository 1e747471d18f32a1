"""Every native operation is in the table, and every row of the table is enforced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest

from oncemq.auth import operations
from oncemq.auth.operations import NEEDS
from oncemq.broker.security import authorizer
from oncemq.broker.security.security import Security
from oncemq.protocol import commands, replies
from oncemq.protocol.commands import As, Command, Operation, PlainCommand
from tests.auth.rig import SecureRig
from tests.auth.walk import ANONYMOUS, GATE, OWNER, ROOT, Walk, check

KINDS = sorted(NEEDS, key=lambda kind: kind.__name__)


@pytest.fixture
def rig() -> SecureRig:
    return SecureRig()


def test_every_command_and_operation_has_a_row() -> None:
    assert set(NEEDS) == {*get_args(PlainCommand), *get_args(Operation)}


def test_what_has_no_row_is_refused(rig: SecureRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = {kind: needs for kind, needs in NEEDS.items() if kind is not commands.Health}
    monkeypatch.setattr(authorizer, "NEEDS", rest)
    reply = rig.send(ROOT, commands.Health())
    assert isinstance(reply, replies.Refusal)
    assert reply.code == "FORBIDDEN"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_everybody_sends_every_command(rig: SecureRig, kind: type) -> None:
    check(Walk(rig.send), kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_gateway_has_no_more_rights_than_its_caller(rig: SecureRig, kind: type) -> None:
    def send(who: str, command: Command, payloads: Sequence[bytes]) -> replies.Reply:
        if who in (ANONYMOUS, GATE):
            return rig.send(who, command, payloads)
        assert not isinstance(command, As)
        return rig.send(GATE, As(f"{who}/certificate={who}", command), payloads)

    if any(need.verb == operations.GATEWAY for need in NEEDS[kind]):
        pytest.skip("a gateway does this for its callers")
    check(Walk(send), kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_administrator_may_do_everything(rig: SecureRig, kind: type) -> None:
    if kind is commands.Login:
        pytest.skip("the answer is about somebody else")
    reply = Walk(rig.send).example(kind, ROOT)
    assert not isinstance(reply, replies.Refusal) or reply.code not in {"FORBIDDEN", "UNAUTHENTICATED", "TOPIC_GONE"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_without_users_everybody_may_do_everything(kind: type) -> None:
    rig = SecureRig()
    rig.users = None
    rig.security = Security(lambda: None, rig.clock.now_ms)
    rig.broker = rig._broker()
    walk = Walk(lambda _, command, payloads: rig.send(ANONYMOUS, command, payloads))
    reply = walk.example(kind, OWNER)
    assert not isinstance(reply, replies.Refusal) or reply.code not in {"FORBIDDEN", "UNAUTHENTICATED"}
    assert kind is commands.Assign or not list(rig.broker.engine.state.owners)
