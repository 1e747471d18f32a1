"""How a change becomes active: a broker on this machine is told by a signal, and its answer is reported."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import oncemq
from oncemq.auth import status
from oncemq.auth.file import load
from oncemq.auth.status import StatusFile, running
from oncemq.cli.auth import local_broker
from oncemq.config.settings import ServeSettings
from oncemq.protocol.errors import BrokerAway, SettingInvalid, Unauthenticated
from tests.cli.auth.conftest import FILE, Auth
from tests.forking import ForkedBroker

FOLDER = Path("oncemq-data")


class Broker:
    """What a broker does about its users, in this process."""

    def __init__(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        self.status = StatusFile(FOLDER, FILE)
        self.has_users = FILE.exists()
        self.status.report(has_users=self.has_users)
        self.signals = 0
        self.refusal = ""

    def reload(self, _number: int, _frame: FrameType | None) -> None:
        self.signals += 1
        try:
            load(FILE)
        except SettingInvalid as error:
            self.refusal = error.text
        self.has_users = self.has_users or not self.refusal
        self.status.report(has_users=self.has_users, error=self.refusal)


@pytest.fixture
def start() -> Iterator[Callable[[], Broker]]:
    started: list[Broker] = []
    former = signal.getsignal(signal.SIGHUP)

    def start() -> Broker:
        started.append(Broker())
        signal.signal(signal.SIGHUP, started[-1].reload)
        return started[-1]

    yield start
    signal.signal(signal.SIGHUP, former)
    for broker in started:
        broker.status.close()


def test_a_change_is_active_at_once_if_the_broker_runs_here(auth: Auth, start: Callable[[], Broker]) -> None:
    auth("user", "add", "alice")
    broker = start()
    for command in (
        ("user", "add", "bob"),
        ("token", "bob"),
        ("grant", "bob", "read", "menu"),
        ("quota", "bob", "keys=3"),
    ):
        assert f"The broker (pid {os.getpid()}) uses it now." in auth(*command).stderr
    assert broker.signals == 4
    auth("grant", "bob", "read", "menu")
    auth("quota", "bob")
    assert broker.signals == 4


def test_the_signal_can_be_left_out(auth: Auth, start: Callable[[], Broker]) -> None:
    auth("user", "add", "alice")
    broker = start()
    said = auth("user", "add", "bob", "--no-reload").stderr
    assert said == f"The broker (pid {os.getpid()}) uses it after `oncemq auth reload --data ./oncemq-data`.\n"
    assert broker.signals == 0


def test_the_first_users_lock_nobody_out_before_an_administrator_says_so(
    auth: Auth, start: Callable[[], Broker]
) -> None:
    broker = start()
    said = auth("user", "add", "alice").stderr
    assert "has no users yet, so everybody may do everything" in said
    assert "run: oncemq auth reload --data ./oncemq-data" in said
    auth("token", "alice")
    assert broker.signals == 0
    done = auth("reload", "--data", "./oncemq-data")
    assert done.stdout == f"The broker (pid {os.getpid()}) has read its users and keys again.\n"
    assert broker.has_users
    assert "uses it now" in auth("token", "alice").stderr


def test_the_refusal_of_the_broker_is_reported(auth: Auth, start: Callable[[], Broker]) -> None:
    auth("user", "add", "alice")
    broker = start()
    broker.refusal = "the certificate is not valid"
    refused = auth("user", "add", "bob", code=2)
    assert refused.stdout.startswith("Added bob")
    assert (
        refused.stderr
        == f"error: the broker (pid {os.getpid()}) keeps the former users: the certificate is not valid\n"
    )
    assert auth("reload", "--data", "oncemq-data", code=2).stdout == ""


def test_a_token_that_the_broker_does_not_accept_is_not_displayed(auth: Auth, start: Callable[[], Broker]) -> None:
    auth("user", "add", "alice")
    start().refusal = "no"
    assert auth("token", "alice", code=2).stdout == ""
    assert load(FILE).by_name["alice"].tokens == {}


def test_a_broken_file_is_reported_without_a_signal(auth: Auth, start: Callable[[], Broker]) -> None:
    auth("user", "add", "alice")
    broker = start()
    FILE.write_text("[user")
    assert "auth.toml" in auth("reload", "--data", "oncemq-data", code=2).stderr
    assert broker.signals == 0


def test_a_broker_that_uses_another_file_is_not_told(auth: Auth, start: Callable[[], Broker]) -> None:
    auth("user", "add", "alice")
    broker = start()
    said = auth("user", "add", "alice", "--auth", "other.toml").stderr
    assert said == f"warning: The broker (pid {os.getpid()}) uses {FILE.absolute()}, not other.toml.\n"
    assert broker.signals == 0


def test_a_pid_of_another_container_is_not_signalled(
    auth: Auth, start: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    auth("user", "add", "alice")
    broker = start()
    monkeypatch.setattr(local_broker, "process_space", lambda: "another boot 4026531836")
    assert "in another container" in auth("user", "add", "bob", code=2).stderr
    assert broker.signals == 0


def test_a_process_that_cannot_be_signalled_is_one_sentence(
    auth: Auth, start: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    auth("user", "add", "alice")
    start()

    def refuse(*_: int) -> None:
        raise failure

    monkeypatch.setattr(os, "kill", refuse)
    failure: OSError = PermissionError(1, "Operation not permitted")
    assert "belongs to another user" in auth("user", "add", "bob", code=2).stderr
    failure = ProcessLookupError(3, "No such process")
    assert "there is no process with the pid" in auth("user", "add", "carol", code=6).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_signals_no_process_of_somebody_else_than_the_owner_of_the_file(
    auth: Auth, start: Callable[[], Broker]
) -> None:
    auth("user", "add", "alice")
    broker = start()
    os.chown(FOLDER / "auth.status", 12345, 12345)
    assert "belongs to another user" in auth("user", "add", "bob", code=2).stderr
    assert broker.signals == 0


@pytest.mark.parametrize("what", ["ends", "is silent"])
def test_a_broker_that_does_not_answer_is_reported(
    what: str, auth: Auth, start: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    auth("user", "add", "alice")
    broker = start()
    monkeypatch.setattr(local_broker, "_ANSWER_S", 0.05)

    def answer(_pid: int, _number: int) -> None:
        if what == "ends":
            os.dup2(os.open(os.devnull, os.O_RDONLY), broker.status._descriptor)

    monkeypatch.setattr(os, "kill", answer)
    said = auth("reload", "--data", "oncemq-data", code=6).stderr
    assert ("has ended" in said) is (what == "ends")
    assert ("has not read the file" in said) is (what == "is silent")


def test_a_real_broker_reads_its_users_when_it_is_told_to(auth: Auth) -> None:
    with ForkedBroker(FOLDER) as broker:
        assert f"The broker (pid {broker.pid}) has no users yet" in auth("user", "add", "alice").stderr
        with broker.connect() as client:
            client.health()
        auth("reload", "--data", str(FOLDER))
        with pytest.raises(Unauthenticated):
            broker.connect()
        assert f"The broker (pid {broker.pid}) uses it now." in auth("grant", "alice", "role", "admin").stderr
        good = FILE.read_text()
        FILE.unlink()
        status = running(FOLDER)
        assert status is not None
        with pytest.raises(SettingInvalid, match=r"keeps the former users: auth\.toml does not exist any more"):
            local_broker.reload(status, ServeSettings(data=str(FOLDER)))
        FILE.write_text(good)
        FILE.chmod(0o600)
        auth("reload", "--data", str(FOLDER))
    assert running(FOLDER) is None


def test_a_client_can_tell_a_broker_to_read_its_users(auth: Auth) -> None:
    async def reload(url: str) -> None:
        async with oncemq.aio.connect(url) as client:
            await client.assign("alice", "subscription", "s", of="orders")
            await client.auth_reload()

    with ForkedBroker(FOLDER) as broker:
        with broker.connect() as client:
            client.subscribe("orders", "s")
            client.auth_reload()
        asyncio.run(reload(broker.url))
        status = running(FOLDER)
        assert status is not None
        assert (status.reads, status.has_users) == (3, False)
        auth("user", "add", "alice")
        with pytest.raises(Unauthenticated), broker.connect() as client:
            client.auth_reload()
            client.health()


def test_without_a_broker_there_is_nothing_to_reload(auth: Auth) -> None:
    assert "no broker runs on nowhere" in auth("reload", "--data", "nowhere", code=6).stderr
    auth("user", "add", "alice")
    assert "no broker runs on oncemq-data" in auth("reload", "--data", "oncemq-data", code=6).stderr


def test_the_status_is_that_of_a_running_broker_only(tmp_path: Path) -> None:
    assert running(tmp_path) is None
    file = StatusFile(tmp_path, FILE)
    file.report(has_users=True, error="a long reason " * 20)
    file.report(has_users=True)
    found = running(tmp_path)
    assert found is not None
    assert (found.pid, found.reads, found.has_users, found.error) == (os.getpid(), 2, True, "")
    assert (tmp_path / "auth.status").stat().st_mode & 0o777 == 0o600
    file.close()
    assert running(tmp_path) is None


def test_a_broker_that_has_not_reported_yet_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "_WAIT_S", 0.01)
    file = StatusFile(tmp_path, FILE)
    with pytest.raises(BrokerAway, match="not ready yet"):
        running(tmp_path)
    file.close()


def test_without_a_kernel_that_tells_the_machine_is_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    assert status.process_space() == status.process_space()
    monkeypatch.setattr(Path, "read_text", fail)
    assert status.process_space() == os.uname().nodename
