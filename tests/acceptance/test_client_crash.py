"""Short crash campaigns against clients. `make crash KILLS=1000` runs long ones."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import oncemq.aio
from oncemq.client.transaction import Transaction
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance import __main__ as command
from tests.acceptance.campaigns.report import CampaignReport
from tests.acceptance.faults import system_calls
from tests.acceptance.faults.kill_points import CLIENT, OUTBOX, points_of
from tests.acceptance.processes import DEADLINE_S, wait_until
from tests.transports import EACH_TRANSPORT_OF_PROCESS

CAMPAIGN_DEADLINE_S = 240


def _campaign(name: str, kills: int) -> CampaignReport:
    seed = random.SystemRandom().randrange(2**32)
    command = [sys.executable, "-m", "tests.acceptance", "--only", name, "--kills", str(kills), "--seed", str(seed)]
    ended = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=CAMPAIGN_DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [found] = json.loads(ended.stdout)
    report = CampaignReport(**found)
    assert report.problems == []
    assert report.kills_count >= kills
    assert report.lost == report.duplicated == report.out_of_order == 0
    assert report.attempted >= report.stored >= report.acknowledged > 0
    assert {"over_oncemq", "over_oncemq+unix", "over_tcp"} <= report.more.keys(), "every transport is used"
    return report


def test_what_was_put_into_an_outbox_is_stored_once_wherever_its_producer_is_killed() -> None:
    report = _campaign("outbox", 45)
    met = set(report.kills) & set(points_of(*CLIENT, *OUTBOX))
    assert len(met) >= 10, report.kills
    assert report.more["copies_rejected"] == report.more["copies"] >= 1


@pytest.mark.parametrize("name", ["copier", "copier-outbox"])
def test_a_copier_copies_each_message_once_and_in_order_wherever_it_is_killed(name: str) -> None:
    report = _campaign(name, 25)
    assert report.attempted == report.stored
    assert report.kills_count > report.kills.get("at any moment", 0)


@pytest.mark.parametrize("name", ["workers", "workers-in-order"])
def test_there_is_one_result_of_each_task_wherever_workers_are_killed(name: str) -> None:
    report = _campaign(name, 30)
    assert report.attempted == report.stored


def test_a_message_that_kills_its_workers_is_a_dead_letter_once_and_all_others_are_done() -> None:
    report = _campaign("poison", 12)
    assert report.attempted == report.stored
    assert report.more["dead_letters"] >= 1


# Single cases.


def _process(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


_WORKER = """
import sys, oncemq
with oncemq.connect(sys.argv[1], tries=30) as client:
    workers = client.shared_subscription("tasks", "workers")
    task = workers.take(timeout_s=30)
    print("taken", task.text, flush=True)
    input()
    try:
        if sys.argv[2] == "ack":
            task.ack(wait=True)
        else:
            with client.transaction() as transaction:
                transaction.put("results", "late")
                transaction.ack(task)
        print("done", flush=True)
    except oncemq.LeaseLost:
        print("lost", flush=True)
"""


@pytest.mark.parametrize("kind", ["ack", "transaction"])
def test_a_worker_that_was_stopped_beyond_its_lease_is_refused_when_it_continues(
    broker_process: BrokerProcess, kind: str
) -> None:
    broker_process.start()
    with broker_process.connect() as client:
        workers = client.subscribe_shared("tasks", "workers", lease_s=0.3)
        client.subscribe("results", "audit")
        client.put("tasks", "one")
        stopped = _process(_WORKER, broker_process.url, kind)
        try:
            assert _line(stopped) == "taken one"
            os.kill(stopped.pid, signal.SIGSTOP)
            task = workers.take(timeout_s=DEADLINE_S)
            assert task is not None
            assert task.tries == 2
            with client.transaction() as transaction:
                transaction.put("results", "in time")
                transaction.ack(task)
            os.kill(stopped.pid, signal.SIGCONT)
            _say(stopped)
            assert _line(stopped) == "lost"
            assert stopped.wait(DEADLINE_S) == 0
        finally:
            stopped.kill()
            stopped.communicate()
        assert [message.text for message in client.read("results")] == ["in time"]


_PRODUCER = """
import sys, oncemq
client = oncemq.connect(sys.argv[1], outbox=sys.argv[2], tries=30)
try:
    while True:
        client.put("orders", sys.argv[3])
        print("put", flush=True)
        input()
except oncemq.Fenced:
    print("fenced", flush=True)
"""


@pytest.mark.parametrize("broker_runs", [True, False])
def test_a_second_process_on_an_outbox_fences_the_first_and_nothing_is_duplicated(
    broker_process: BrokerProcess, tmp_path: Path, broker_runs: bool
) -> None:
    broker_process.start()
    with broker_process.connect() as client:
        client.subscribe("orders", "audit")
    if not broker_runs:
        broker_process.kill()
    outbox = tmp_path / "outbox"
    first = _process(_PRODUCER, broker_process.url, str(outbox), "first")
    second = None
    try:
        assert _line(first) == "put"
        second = _process(_PRODUCER, broker_process.url, str(outbox), "second")
        assert _line(second) == "put"
        _say(first)
        assert _line(first) == "fenced"
        if not broker_runs:
            broker_process.start()
        _say(second)
        assert _line(second) == "put"
        with broker_process.connect() as client:
            wait_until(lambda: client.topics()[0].end_offset == 3, "everything is stored")
            assert [message.text for message in client.read("orders")] == ["first", "second", "second"]
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.communicate()


def test_what_was_put_into_an_outbox_is_synced_before_put_returns(tmp_path: Path) -> None:
    """A kill leaves the page cache intact, so it does not show this."""
    if system_calls.problem():
        pytest.skip(system_calls.problem())
    code = (
        "import oncemq, os, sys\nclient = oncemq.connect('tcp://127.0.0.1:9', outbox=sys.argv[1])\n"
        "for number in range(5):\n    client.put('orders', str(number))\n    os.write(1, b'returned')\n"
        "os._exit(0)"
    )
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-y", "-o", str(trace), "-e", "trace=pwrite64,fdatasync,fsync,write"]
    outbox = str(tmp_path / "outbox")
    subprocess.run([*strace, sys.executable, "-c", code, outbox], timeout=DEADLINE_S, check=True, capture_output=True)
    is_synced, returned = False, 0
    for line in trace.read_text().splitlines():
        if "outbox-wal>" in line:
            is_synced = "sync(" in line
        elif '"returned"' in line:
            assert is_synced, line
            is_synced = False
            returned += 1
    assert returned == 5


class Interruption(BaseException):
    """Like Ctrl-C, which would end the tests."""


@EACH_TRANSPORT_OF_PROCESS
@pytest.mark.parametrize("outbox", [False, True])
def test_a_transaction_whose_caller_was_interrupted_is_not_done_again(
    broker_process: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outbox: bool
) -> None:
    broker_process.start()
    options: dict[str, Any] = {"outbox": tmp_path / "outbox"} if outbox else {}
    with broker_process.connect(**options) as client:
        _prepare_copying(client)
        source = client.subscription("source", "copier", auto_ack=False)
        transport = type(client._driver.transport)

        def interrupted(_self: object, _timeout_ms: float) -> None:
            monkeypatch.undo()
            raise Interruption

        transaction = client.transaction()
        _copy(transaction, source)
        broker_process.pause()
        monkeypatch.setattr(transport, "wait", interrupted)
        with pytest.raises(Interruption):
            transaction.commit()
        # The broker has received what was sent, and executes it first.
        broker_process.resume()
        with client.transaction() as transaction:
            _copy(transaction, source)
        assert [message.text for message in client.read("target")] == ["1", "2", "3"]


def _prepare_copying(client: oncemq.Client) -> None:
    client.subscribe("source", "copier")
    # Another subscription keeps the messages, so that they could be read again.
    client.subscribe("source", "other")
    client.subscribe("target", "audit")
    client.put_many("source", ["1", "2", "3"])
    client.flush()


def _copy(transaction: Transaction, source: oncemq.Subscription) -> None:
    messages = source.get_many(10, timeout_s=0.5)
    for message in messages:
        transaction.put("target", message.value)
    if messages:
        transaction.ack(source)


@EACH_TRANSPORT_OF_PROCESS
def test_a_transaction_that_was_cancelled_on_its_way_is_not_done_again(broker_process: BrokerProcess) -> None:
    broker_process.start()
    with broker_process.connect() as client:
        _prepare_copying(client)

        async def copy_twice() -> None:
            async with oncemq.aio.connect(broker_process.url, timeout_s=DEADLINE_S) as own:
                source = await own.subscription("source", "copier", auto_ack=False)
                transaction = own.transaction()
                for message in await source.get_many(10, timeout_s=DEADLINE_S):
                    transaction.put("target", message.value)
                transaction.ack(source)
                broker_process.pause()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(transaction.commit(), 0.2)
                # The broker has received what was sent, and executes it first.
                broker_process.resume()
                async with own.transaction() as transaction:
                    for message in await source.get_many(10, timeout_s=0.5):
                        transaction.put("target", message.value)

        asyncio.run(copy_twice())
        assert [message.text for message in client.read("target")] == ["1", "2", "3"]


# The tools of the campaigns themselves.


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        (["a1", "b1", "a2"], ""),
        (["a1", "a2", "b1", "b2"], ""),
        (["b1", "a2"], "lost: a1"),
        (["a1", "a2", "a1"], "duplicated: a1"),
        (["a2", "a1"], "out of order: a1"),
        (["a1", "a2", "c9"], "unexpected: c9"),
    ],
)
def test_a_report_names_what_is_lost_duplicated_out_of_order_or_unexpected(stored: list[str], problem: str) -> None:
    report = CampaignReport(campaign="any")
    report.compare(["a1", "a2", "b1", "b2"], ["a1", "a2"], stored, lambda message_id: message_id[0])
    found = [line.partition(" in ")[0] for line in report.problems]
    assert found == ([problem] if problem else [])


def test_a_violation_ends_a_campaign_with_1_and_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Evidence of a violation is kept.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reports = {
        "outbox": CampaignReport(campaign="outbox", kills={"before send": 3}),
        "copier": CampaignReport(campaign="copier"),
    }
    reports["copier"].compare(["1", "2"], ["1", "2"], ["1", "1"])
    monkeypatch.setattr(command, "CAMPAIGNS", {name: lambda *_, name=name: reports[name] for name in reports})
    monkeypatch.setattr(sys, "argv", ["tests.acceptance", "--kills", "3", "--seed", "7"])
    assert command.main() == 1
    written = capsys.readouterr()
    assert "copier: duplicated: 1 in 'messages'" in written.err
    assert "Repeat it with: python -m tests.acceptance --only copier --kills 3 --seed 7" in written.err
    assert [line.split()[:2] for line in written.out.splitlines()] == [
        ["campaign", "client"],
        ["outbox", "3"],
        ["copier", "0"],
    ]
    del reports["copier"]
    monkeypatch.setattr(command, "CAMPAIGNS", {"outbox": lambda *_: reports["outbox"]})
    assert command.main() == 0


_SABOTAGED = """
import sys
from tests.acceptance import __main__ as command
from tests.acceptance.campaigns.copier import Copier
fill = Copier._fill
def fill_with_loss(copier, transaction, subscription):
    transaction.put_really, count = transaction.put, []
    def put(topic, *arguments):
        count.append(topic)
        if len(count) != 2:
            transaction.put_really(topic, *arguments)
    transaction.put = put
    return fill(copier, transaction, subscription)
Copier._fill = fill_with_loss
sys.argv = ["tests.acceptance", "--only", "copier", "--kills", "2", "--seed", "7"]
sys.exit(command.main())
"""


def test_a_copier_that_loses_messages_is_noticed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SABOTAGED],
        capture_output=True,
        text=True,
        timeout=CAMPAIGN_DEADLINE_S,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "copier: lost: " in done.stderr


def test_a_report_checks_the_order_within_a_stream() -> None:
    report = CampaignReport(campaign="any")
    report.compare(["1", "2"], [], ["2", "1"])
    assert report.out_of_order == 1


def test_a_process_is_killed_at_its_nth_system_call(tmp_path: Path) -> None:
    if system_calls.problem():
        pytest.skip(system_calls.problem())
    code = (
        "import os\nfrom tests.acceptance.faults.system_calls import wait_until_traced\n"
        "wait_until_traced(os.getpid())\n"
        "file = os.open('file', os.O_CREAT | os.O_WRONLY)\nfor _ in range(9):\n    os.pwrite(file, b'x', 0)\n"
        "    os.write(file, b'y')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    tracer = system_calls.attach(process.pid, "pwrite64", 4)
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    tracer.wait(DEADLINE_S)
    assert (tmp_path / "file").stat().st_size == 3
