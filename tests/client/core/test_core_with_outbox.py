"""A core with an outbox: whatever happens to the process, the broker or the file, each operation happens once, in
order, or somebody is told."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.core import Core
from oncemq.client.core.options import Options
from oncemq.client.outbox.file import OutboxFile
from oncemq.protocol import errors
from oncemq.protocol.commands import Envelope, Health, Hello, Open, Operation, Put, Subscribe, Transact, Void
from oncemq.protocol.replies import Done, HealthReply, NotNow, OpenReply, Refusal
from tests.client.core.fake_broker import FakeBroker
from tests.client.core.rig import CoreRig, stored

_nonces = itertools.count(1)

HEALTH = HealthReply("1", "broker", "memory", 0, 0, 0, 0, -1, {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def opened() -> Iterator[Callable[[Path], OutboxFile]]:
    """Opens outboxes that are closed in the end."""
    outboxes: list[OutboxFile] = []

    def open_outbox(path: Path) -> OutboxFile:
        outboxes.append(OutboxFile.open(path))
        return outboxes[-1]

    yield open_outbox
    for outbox in outboxes:
        outbox.close()


Opened = Callable[[Path], OutboxFile]


def put(value: bytes, topic: str = "orders") -> tuple[Operation, bytes]:
    return Put(topic, Envelope(1, len(value), 0)), value


class Life:
    """One process: a core on an outbox, and a broker that answers as long as it is there."""

    def __init__(self, outbox: Any, broker: FakeBroker, point: Callable[[str], None] = lambda _: None) -> None:
        self.outbox = outbox
        self.broker = broker
        self.core = Core(outbox.session, False, next(_nonces), Options(timeout_ms=100.0, tries=3), outbox=outbox)
        self.now_ms = 1000.0
        self._point = point

    def pump(self) -> None:
        """Until there is nothing to send."""
        while requests := self.core.outgoing(self.now_ms):
            for request in requests:
                self._point("before the broker")
                response = self.broker.answer(request)
                self._point("after the broker")
                self.core.receive(self.now_ms, response)
            if self.core.finished is not None:
                raise self.core.finished


def life(path: Path, broker: FakeBroker, opened: Opened) -> Life:
    return Life(opened(path), broker)


def test_an_operation_is_in_the_file_before_it_is_sent(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    rig = CoreRig(outbox=outbox)
    pending = rig.put(b"precious")
    assert pending.number == 1
    assert outbox.pending_count == 1
    rig.greet()
    assert rig.numbers() == [1]
    rig.answer_last(stored(7))
    assert pending.result() == stored(7)
    assert (outbox.pending_count, rig.core.is_idle) == (0, True)


def test_several_are_made_durable_together(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    calls: list[str] = []
    broker = FakeBroker()
    process = Life(KilledOutbox(outbox, calls.append), broker)
    pendings = process.core.submit_all([put(b"1"), put(b"2"), put(b"3")])
    assert calls == ["before append", "after append"]
    process.pump()
    assert [pending.result() for pending in pendings] == [Done()] * 3
    assert broker.values == [b"1", b"2", b"3"]


def test_a_new_process_finishes_what_the_last_one_kept(path: Path, opened: Opened) -> None:
    broker = FakeBroker()
    first = life(path, broker, opened)
    first.core.submit(*put(b"1"))
    first.core.submit(Subscribe("orders", "kitchen"))
    two = Transact(puts=(Put("orders", Envelope(1, 1, 0)), Put("orders", Envelope(1, 2, 0))))
    first.core.submit(two, (b"2", b"22"))
    second = life(path, broker, opened)
    second.core.submit(*put(b"3"))
    second.pump()
    assert broker.values == [b"1", b"2", b"22", b"3"]
    assert second.outbox.pending_count == 0
    assert second.core.is_idle


def test_a_backlog_larger_than_memory_is_sent_in_order(
    path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemq.client.core.commands.outbox_queue._COUNT_MAX", 5)
    broker = FakeBroker()
    first = life(path, broker, opened)
    values = [b"%d" % number for number in range(40)]
    done: list[int] = []
    for value in values[:20]:
        first.core.submit(*put(value))
    second = life(path, broker, opened)
    for value in values[20:]:
        second.core.submit(*put(value), on_done=lambda pending: done.append(pending.number))
    assert len(second.core._window) == 5
    second.pump()
    assert broker.values == values
    assert done == list(range(21, 41))
    assert second.outbox.pending_count == 0


def test_who_holds_a_pending_of_the_backlog_is_answered(
    path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemq.client.core.commands.outbox_queue._COUNT_MAX", 2)
    process = life(path, FakeBroker(), opened)
    held = [process.core.submit(*put(b"%d" % number)) for number in range(10)]
    process.pump()
    assert [pending.result() for pending in held] == [Done()] * 10


# Crashes.


class Killed(BaseException):
    pass


class KilledOutbox:
    """The file of a process that may be killed before or after each of its writes."""

    def __init__(self, outbox: OutboxFile, point: Callable[[str], None]) -> None:
        self._outbox = outbox
        self._point = point

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._outbox, name)
        if name not in ("append", "connected", "entries", "complete", "complete_void", "refuse", "void"):
            return found

        def call(*arguments: Any) -> Any:
            self._point(f"before {name}")
            result = found(*arguments)
            self._point(f"after {name}")
            return result

        return call


class Deaths:
    """Raises Killed at the n-th point, and tells which one that was."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = ""

    def __call__(self, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.where = name
            raise Killed


PLAN = [put(b"1"), put(b"2", "nowhere"), put(b"3", "unreadable"), put(b"4"), put(b"5", "nowhere"), put(b"6")]


def _live(path: Path, broker: FakeBroker, deaths: Deaths) -> OutboxFile:
    """Keep what of the plan is not kept yet, and send; in two steps, so that there is something to be seen."""
    outbox = OutboxFile.open(path)
    process = Life(KilledOutbox(outbox, deaths), broker, deaths)
    while outbox.next_number <= len(PLAN):
        first = outbox.next_number - 1
        process.core.submit_all(PLAN[first : first + 2])
        process.pump()
    process.pump()
    return outbox


def _live_until_killed(path: Path, broker: FakeBroker, deaths: Deaths, grave: Path) -> tuple[OutboxFile | None, Path]:
    """The outbox at the end, or where its file lies after the process was killed."""
    try:
        return _live(path, broker, deaths), path
    except Killed:
        grave.mkdir()
        for name in (path, path.with_name(path.name + "-wal")):
            if os.path.exists(name):
                shutil.copy(name, grave)
        return None, grave / path.name


def _check_the_plan(outbox: OutboxFile, broker: FakeBroker, where: str) -> None:
    assert broker.values == [b"1", b"4", b"6"], where
    refused = [(refusal.number, refusal.code, bytes(refusal.payloads[0])) for refusal in outbox.refusals()]
    assert refused == [
        (2, "TOPIC_UNKNOWN", b"2"),
        (3, "MALFORMED", b"3"),
        (5, "TOPIC_UNKNOWN", b"5"),
    ], where
    assert outbox.pending_count == 0, where


def test_a_process_killed_at_any_point_is_finished_by_the_next_one(tmp_path: Path) -> None:
    names = set()
    for at in itertools.count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        broker = FakeBroker()
        deaths = Deaths(at)
        outbox, path = _live_until_killed(folder / "out", broker, deaths, folder / "after")
        is_over = outbox is not None
        outbox = outbox or _live(path, broker, Deaths(0))
        _check_the_plan(outbox, broker, f"killed {deaths.where}, at point {at}")
        outbox.close()
        names.add(deaths.where)
        if is_over:
            break
    writes = {"before refuse", "after refuse", "after void", "after complete_void", "after connected"}
    assert writes | {"after the broker"} <= names
    assert at > 30


@pytest.mark.parametrize("second", [1, 2, 3, 5, 8, 11, 14])
def test_a_process_killed_twice_is_finished_by_the_third(tmp_path: Path, second: int) -> None:
    for first in range(1, 33, 3):
        folder = tmp_path / str(first)
        folder.mkdir()
        broker = FakeBroker()
        outbox, path = _live_until_killed(folder / "out", broker, Deaths(first), folder / "after")
        if outbox is None:
            outbox, path = _live_until_killed(path, broker, Deaths(second), folder / "later")
        outbox = outbox or _live(path, broker, Deaths(0))
        _check_the_plan(outbox, broker, f"killed at {first}, then at {second}")
        outbox.close()


# Refusals.


def test_a_refusal_is_in_the_file_before_the_broker_may_forget_it(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    rig = CoreRig(outbox=outbox)
    rig.greet()
    refused = rig.put(b"1")
    rig.sent()
    calls: list[int] = []
    real = outbox.refuse

    def refuse(number: int, code: str, text: str) -> None:
        assert rig.core._window.seen_below == 1
        assert not refused.done
        real(number, code, text)
        calls.append(number)

    outbox.refuse = refuse  # type: ignore[method-assign]
    rig.answer_last(Refusal("TOPIC_UNKNOWN", "there is no topic 'orders'"))
    assert calls == [1]
    with pytest.raises(errors.TopicUnknown):
        refused.result()
    rig.put(b"2")
    [command] = rig.numbered()
    assert (command.number, command.seen_below) == (2, 2)


def test_a_refusal_that_can_not_be_written_is_asked_for_again(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    rig = CoreRig(outbox=outbox)
    rig.greet()
    first = rig.put(b"1")
    rig.sent()
    real = outbox.refuse
    outbox.refuse = _full  # type: ignore[method-assign, assignment]
    rig.answer_last(Refusal("TOPIC_UNKNOWN", "no topic"))
    assert not first.done
    assert isinstance(rig.core.obstacle, errors.OutboxFull)
    outbox.refuse = real  # type: ignore[method-assign]
    assert rig.numbers() == []
    rig.now_ms = rig.core.next_deadline_ms()
    [again] = rig.numbered()
    assert (again.number, again.seen_below) == (1, 1)
    rig.answer_last(Refusal("TOPIC_UNKNOWN", "no topic"))
    assert isinstance(first.error, errors.TopicUnknown)
    assert [refusal.number for refusal in outbox.refusals()] == [1]


def _full(*_: object) -> None:
    raise errors.OutboxFull


def test_what_was_submitted_before_its_size_was_known_to_be_too_large_is_refused(path: Path, opened: Opened) -> None:
    broker = FakeBroker()
    broker.batch_bytes_max = 10
    process = life(path, broker, opened)
    before, large, after = process.core.submit_all([put(b"1"), put(b"x" * 11), put(b"3")])
    process.pump()
    assert (before.result(), after.result()) == (Done(), Done())
    with pytest.raises(errors.TooLarge):
        large.result()
    assert [refusal.number for refusal in process.outbox.refusals()] == [2]
    # From then on it is not even kept.
    with pytest.raises(errors.TooLarge):
        process.core.submit(*put(b"x" * 11)).result()
    assert process.outbox.next_number == 4


# Endless patience.


def test_a_broker_that_is_away_does_not_end_it_and_nothing_becomes_void(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    rig = CoreRig(outbox=outbox, tries=2)
    pending = rig.put(b"1")
    impatient = rig.core.submit(Subscribe("orders", "kitchen"), give_up_ms=2000.0)
    asked = rig.core.ask(Health())
    for _ in range(10):
        assert rig.sent()
        assert rig.pass_ms(1000) is True
    for failed in (impatient, asked):
        assert isinstance(failed.error, errors.BrokerAway)
    assert not pending.done
    rig.resume(last_number=0)
    assert [command.operation for command in rig.numbered()] == [
        Put("orders", Envelope(1, 40, checksum_in(outbox))),
        Subscribe("orders", "kitchen"),
    ]
    rig.answer_last(stored(0), Done())
    assert pending.result() == stored(0)
    assert outbox.pending_count == 0


def checksum_in(outbox: OutboxFile) -> int:
    operation = outbox.entries()[0].operation
    assert isinstance(operation, Put)
    return operation.envelope.checksum


def test_not_now_is_waited_out_however_long_it_takes(path: Path, opened: Opened) -> None:
    rig = CoreRig(outbox=opened(path), give_up_ms=100)
    rig.greet()
    pending = rig.put()
    impatient = rig.core.submit(Subscribe("orders", "kitchen"), give_up_ms=500.0)
    for _ in range(20):
        assert rig.numbers() == [1, 2]
        rig.answer_last(NotNow("DISK_FULL", "full"), NotNow("GAP", "1 is next", 0))
        rig.now_ms = rig.core.next_deadline_ms()
    assert isinstance(impatient.error, errors.DiskFull)
    assert not pending.done
    assert [type(command.operation) for command in rig.numbered()] == [Put, Subscribe]


def test_a_hello_that_is_refused_is_tried_again(path: Path, opened: Opened) -> None:
    rig = CoreRig(outbox=opened(path))
    pending = rig.put()
    greeting = rig.core.greet()
    for _ in range(5):
        [hello] = rig.sent()
        rig.answer(hello, Refusal("LIMIT_REACHED", "too many sessions"))
        assert rig.sent() == []
        rig.now_ms = rig.core.next_deadline_ms()
    assert isinstance(greeting.error, errors.LimitReached)
    assert not pending.done
    rig.resume(last_number=0)
    assert rig.numbers() == [1]


def test_who_gives_up_only_stops_waiting(path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.client.core.commands.outbox_queue._COUNT_MAX", 2)
    broker = FakeBroker()
    process = life(path, broker, opened)
    pendings: list[Pending] = [process.core.submit(*put(b"%d" % number)) for number in range(4)]
    for pending in pendings:
        process.core.give_up(pending, errors.ClientClosed())
        assert isinstance(pending.error, errors.ClientClosed)
    process.pump()
    assert broker.values == [b"0", b"1", b"2", b"3"]


def test_a_broker_of_another_version_does_not_empty_the_outbox(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    rig = CoreRig(outbox=outbox)
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.answer_last(Refusal("VERSION_UNSUPPORTED", "protocol version 1; this side speaks 2"))
    assert not pending.done
    rig.now_ms = rig.core.next_deadline_ms()
    assert [type(command.operation) for command in rig.numbered()] == [Put]
    assert outbox.refusals_count == 0


# The numbers of the file and of the broker.


def test_the_numbers_of_the_file_are_sent_with_its_holes(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    first = CoreRig(outbox=outbox)
    first.greet()
    for value in (b"1", b"2", b"3"):
        first.put(value)
    first.sent()
    first.answer(first.requests[-1], NotNow("STOPPING", "later"), stored(1), NotNow("STOPPING", "later"))
    outbox.flush()
    rig = CoreRig(outbox=opened(path))
    rig.put(b"4")
    probe(rig)
    rig.resume(last_number=2)
    commands = rig.numbered()
    assert [(command.number, command.seen_below) for command in commands] == [(1, 1), (3, 1), (4, 1)]


def probe(rig: CoreRig) -> None:
    """An outbox that was connected before asks first whether it is at the right place."""
    [request] = rig.sent()
    health, hello = request.commands
    assert health == Health()
    assert isinstance(hello, Hello)
    assert hello.epoch == 1
    rig.answer(request, HEALTH, Refusal("FENCED", "it is known"))


def test_verdicts_of_an_earlier_process_settle_its_entries(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    outbox.append([(op, (value,)) for op, value in (put(b"1"), put(b"2"), put(b"3"))])
    outbox.connected("broker")
    again = opened(path)
    rig = CoreRig(outbox=again)
    probe(rig)
    rig.resume(last_number=2, verdicts=((1, stored(0)), (2, Refusal("TOPIC_UNKNOWN", "no topic"))))
    assert [refusal.number for refusal in again.refusals()] == [2]
    [command] = rig.numbered()
    assert (command.number, command.seen_below) == (3, 3)


def test_a_forgotten_verdict_means_that_it_happened(path: Path, opened: Opened) -> None:
    broker = FakeBroker()
    first = life(path, broker, opened)
    first.core.submit_all([put(b"1"), put(b"2")])
    first.pump()
    first.core.submit(*put(b"3"))
    copy = path.with_name("copy")
    first.outbox._storage.connection.execute("PRAGMA wal_checkpoint")
    shutil.copy(path, copy)
    first.pump()
    assert broker.sessions[first.outbox.session].verdicts.keys() == {3}
    again = opened(copy)
    assert [kept.number for kept in again.entries()] == [3]
    second = Life(again, broker)
    second.pump()
    assert broker.values == [b"1", b"2", b"3"]
    broker.sessions[first.outbox.session].verdicts.clear()
    third = life(copy, broker, opened)
    third.pump()
    assert broker.values == [b"1", b"2", b"3"]
    assert third.outbox.pending_count == 0


def test_a_file_that_is_older_than_what_the_broker_has_had_is_noticed(path: Path, opened: Opened) -> None:
    broker = FakeBroker()
    first = life(path, broker, opened)
    first.core.submit(*put(b"1"))
    first.pump()
    first.outbox.close()
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    second = life(path, broker, opened)
    second.core.submit_all([put(b"2"), put(b"3")])
    second.pump()
    # Neither more entries than were lost nor another process in between hide it.
    offline = life(copy, broker, opened)
    offline.core.submit_all([put(b"two"), put(b"three"), put(b"four")])
    rewound = life(copy, broker, opened)
    pending = rewound.core.submit(*put(b"five"))
    with pytest.raises(errors.OutboxRewound, match="decided up to number 3"):
        rewound.pump()
    with pytest.raises(errors.OutboxRewound):
        pending.result()
    with pytest.raises(errors.OutboxRewound):
        rewound.core.submit(*put(b"six")).result()
    assert broker.values == [b"1", b"2", b"3"]
    assert rewound.outbox.pending_count == 4


@pytest.mark.parametrize("code", ["SEQUENCE_REUSED", "VERDICT_FORGOTTEN"])
def test_a_number_that_was_used_for_something_else_is_final(path: Path, opened: Opened, code: str) -> None:
    outbox = opened(path)
    rig = CoreRig(outbox=outbox)
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.answer_last(Refusal(code, "number 1 was used"))
    with pytest.raises(errors.OutboxRewound):
        pending.result()
    assert isinstance(rig.core.finished, errors.OutboxRewound)
    assert (outbox.pending_count, outbox.refusals_count) == (1, 0)


def test_a_broker_that_has_forgotten_the_session_is_not_told_everything_again(path: Path, opened: Opened) -> None:
    broker = FakeBroker()
    first = life(path, broker, opened)
    first.core.submit(*put(b"1"))
    first.pump()
    # Its success was not marked in the file: a new session would do it once more.
    broker.sessions.clear()
    second = life(path, broker, opened)
    with pytest.raises(errors.SessionUnknown, match="has forgotten the session"):
        second.pump()
    assert broker.sessions == {}
    assert broker.values == [b"1"]


def test_a_broker_that_has_forgotten_answers_is_noticed(path: Path, opened: Opened) -> None:
    first = life(path, FakeBroker(), opened)
    first.core.submit_all([put(b"1"), put(b"2")])
    first.pump()
    first.outbox.flush()
    rig = CoreRig(outbox=opened(path))
    pending = rig.put(b"3")
    probe(rig)
    rig.resume(last_number=1)
    with pytest.raises(errors.SessionUnknown, match="ends at number 1, and 2 was answered"):
        pending.result()
    assert rig.sent() == []


def test_a_broker_that_loses_its_memory_while_it_is_connected_is_noticed(path: Path, opened: Opened) -> None:
    rig = CoreRig(outbox=opened(path))
    rig.greet()
    rig.put(b"1")
    rig.sent()
    rig.answer_last(stored(0))
    pending = rig.put(b"2")
    rig.sent()
    rig.answer_last(NotNow("GAP", "2 came, 1 is next", 0))
    rig.resume(last_number=0)
    assert isinstance(pending.error, errors.SessionUnknown)


def test_another_broker_is_named_and_gets_nothing(path: Path, opened: Opened) -> None:
    mine, other = FakeBroker("broker-1"), FakeBroker("broker-2")
    first = life(path, mine, opened)
    first.core.submit(*put(b"1"))
    first.pump()
    second = life(path, other, opened)
    second.core.submit(*put(b"2"))
    with pytest.raises(errors.OutboxForeign, match="belongs to broker broker-1, and this is broker broker-2"):
        second.pump()
    assert other.sessions == {}
    third = life(path, mine, opened)
    third.pump()
    assert mine.values == [b"1", b"2"]


def test_nothing_is_sent_before_the_file_says_that_something_may_have_been(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    rig = CoreRig(outbox=outbox)
    pending = rig.put()
    real = outbox.connected
    outbox.connected = _full  # type: ignore[method-assign, assignment]
    rig.resume(last_number=0)
    assert rig.sent() == []
    assert isinstance(rig.core.obstacle, errors.OutboxFull)
    outbox.connected = real  # type: ignore[method-assign]
    rig.now_ms = rig.core.next_deadline_ms()
    rig.resume(last_number=0)
    assert rig.numbers() == [1]
    assert not pending.done


# Owners.


def test_a_second_process_takes_over_and_the_first_is_fenced(path: Path, opened: Opened) -> None:
    broker = FakeBroker()
    first = life(path, broker, opened)
    first.core.submit(*put(b"1"))
    first.pump()
    second = life(path, broker, opened)
    with pytest.raises(errors.Fenced):
        first.core.submit(*put(b"lost"))
    assert isinstance(first.core.finished, errors.Fenced)
    second.core.submit(*put(b"2"))
    second.pump()
    assert broker.values == [b"1", b"2"]


def test_a_refusal_that_the_former_owner_hears_is_left_to_its_successor(path: Path, opened: Opened) -> None:
    broker = FakeBroker()
    rig = CoreRig(outbox=opened(path))
    pending = rig.core.submit(*put(b"1", "nowhere"))
    [hello] = rig.core.outgoing(rig.now_ms)
    rig.core.receive(rig.now_ms, broker.answer(hello))
    [request] = rig.core.outgoing(rig.now_ms)
    successor = life(path, broker, opened)
    rig.core.receive(rig.now_ms, broker.answer(request))
    assert isinstance(pending.error, errors.Fenced)
    assert rig.core.outgoing(rig.now_ms) == []
    successor.pump()
    assert [refusal.code for refusal in successor.outbox.refusals()] == ["TOPIC_UNKNOWN"]


def test_a_broker_s_fence_is_final_and_leaves_the_file_as_it_is(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    rig = CoreRig(outbox=outbox)
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.answer_last(Refusal("FENCED", "another client took over"))
    assert isinstance(pending.error, errors.Fenced)
    assert (outbox.pending_count, outbox.refusals_count) == (1, 0)


def test_what_does_not_fit_into_the_file_was_not_submitted_and_the_rest_goes_on(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    broker = FakeBroker()
    process = Life(outbox, broker)
    process.core.submit(*put(b"1"))
    real = outbox.append
    outbox.append = _full  # type: ignore[method-assign, assignment]
    with pytest.raises(errors.OutboxFull):
        process.core.submit(*put(b"2"))
    outbox.append = real  # type: ignore[method-assign]
    process.core.submit(*put(b"3"))
    process.pump()
    assert broker.values == [b"1", b"3"]


def test_an_open_of_an_earlier_process_does_not_take_a_subscription_from_anybody(path: Path, opened: Opened) -> None:
    outbox = opened(path)
    outbox.append([(Open("orders", "kitchen"), ())])
    again = opened(path)
    rig = CoreRig(outbox=again)
    mine = rig.core.submit(Open("orders", "kitchen"))
    rig.resume(last_number=0)
    assert [command.operation for command in rig.numbered()] == [Void(), Open("orders", "kitchen")]
    rig.answer_last(Done(), OpenReply(5, 2, 0))
    assert mine.result() == OpenReply(5, 2, 0)
    assert (again.pending_count, again.refusals_count) == (0, 0)
