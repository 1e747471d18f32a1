"""A core whose client was refused: every caller is told at once, and the next command is another attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncemq.client.outbox.file import OutboxFile
from oncemq.protocol import errors
from oncemq.protocol.commands import Health, Hello, Void
from oncemq.protocol.replies import Done, Refusal
from tests.client.core.rig import CoreRig, stored

REFUSAL = errors.Unauthenticated("not you")


def refuse(rig: CoreRig) -> None:
    rig.core.refused(rig.now_ms, REFUSAL)


def test_callers_of_all_kinds_are_told_at_once_and_nothing_is_sent_any_more() -> None:
    rig = CoreRig()
    pendings = [rig.core.greet(), rig.put(), rig.core.ask(Health())]
    rig.sent()
    refuse(rig)
    for pending in pendings:
        with pytest.raises(errors.Unauthenticated, match="not you"):
            pending.result()
    assert rig.sent() == []
    assert rig.core.next_deadline_ms() == float("inf")
    assert rig.core.is_idle


def test_the_next_command_begins_with_a_hello_and_may_succeed() -> None:
    rig = CoreRig()
    rig.core.greet()
    rig.sent()
    refuse(rig)
    pending = rig.put()
    [hello] = rig.commands()
    assert isinstance(hello, Hello)
    rig.core.connection_lost(rig.now_ms)
    rig.resume(last_number=0)
    [command] = rig.numbered()
    rig.answer_last(stored(0))
    assert command.number == 1
    assert pending.result() == stored(0)


def test_a_command_in_flight_is_told_to_its_caller_and_does_not_happen_later() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    assert rig.numbers() == [1]
    refuse(rig)
    assert isinstance(pending.error, errors.Unauthenticated)
    later = rig.put()
    rig.resume(last_number=0)
    [void, command] = rig.numbered()
    assert (void.number, type(void.operation)) == (1, Void)
    assert command.number == 2
    rig.answer_last(Done(), stored(0))
    assert later.result() == stored(0)


def test_a_number_that_the_broker_has_not_looked_at_is_not_decided() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    assert rig.numbers() == [1]
    rig.answer_last(Refusal("UNAUTHENTICATED", "the credentials are not valid any more"))
    assert isinstance(pending.error, errors.Unauthenticated)
    later = rig.put()
    rig.resume(last_number=0)
    [void, command] = rig.numbered()
    assert (void.number, type(void.operation), command.number) == (1, Void, 2)
    rig.answer_last(Done(), stored(0))
    assert later.result() == stored(0)


def test_a_refusal_of_a_session_that_has_ended_changes_nothing() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.answer_last(Refusal("FENCED", "another one"))
    refuse(rig)
    assert isinstance(pending.error, errors.Fenced)
    assert isinstance(rig.core.finished, errors.Fenced)


def test_an_outbox_tries_again_after_a_pause(tmp_path: Path) -> None:
    outbox = OutboxFile.open(tmp_path / "out")
    try:
        rig = CoreRig(outbox=outbox)
        pending = rig.put()
        asked = rig.core.ask(Health())
        assert isinstance(rig.commands()[-1], Hello)
        refuse(rig)
        assert isinstance(asked.error, errors.Unauthenticated)
        assert not pending.done, "what is in an outbox has no time limit"
        assert rig.sent() == []
        assert rig.core.obstacle is REFUSAL
        assert rig.core.next_deadline_ms() == rig.now_ms + 5000
        rig.now_ms += 5000
        [hello] = rig.commands()
        assert isinstance(hello, Hello)
    finally:
        outbox.close()
