"""The gateway process of a broker: it is restarted, and never outlives the broker."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncemq.cli.server.gateway import several
from oncemq.cli.server.serve import given
from oncemq.config import sources
from oncemq.config.addresses import GATEWAY_ADDRESSES
from oncemq.config.gateways import HttpOptions, PushOptions
from oncemq.config.settings import ServeSettings
from oncemq.protocol import errors
from oncemq.server import supervisor
from oncemq.server.serve_gateways import arguments_for, gateway_supervisor
from oncemq.server.supervisor import Supervisor
from oncemq.testing.broker_process import free_port, free_ports
from tests.acceptance.processes import SMALL, wait_until
from tests.forking import ForkedBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ForkedBroker]:
    found = ForkedBroker(tmp_path / "data", *SMALL, http=True)
    yield found
    found.kill()


def gateways_of(pid: int, name: str = "python") -> list[int]:
    """Return its child processes of that name, of all its threads."""
    children = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in _words(task / "children")]
    return [int(child) for child in children if name in "".join(_words(Path(f"/proc/{child}/stat"))[1:2])]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def is_gone(pid: int) -> bool:
    """Return whether the process has ended; it may be a zombie."""
    words = _words(Path(f"/proc/{pid}/stat"))
    return not words or words[2] == "Z"


def test_a_gateway_that_dies_is_restarted_and_ends_with_its_broker(broker: ForkedBroker) -> None:
    broker.start()
    broker.wait_until_http()
    [first] = gateways_of(broker.pid)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: gateways_of(broker.pid) not in ([], [first]), "there is another gateway")
    broker.wait_until_http()
    [second] = gateways_of(broker.pid)
    assert "the gateway was killed by SIGKILL" in broker.log_tail()
    # Only the broker is killed: the gateway gets no signal.
    os.kill(broker.pid, signal.SIGKILL)
    broker.wait()
    wait_until(lambda: is_gone(second), "the gateway has ended too")


def test_a_broker_that_is_killed_during_requests_can_be_restarted_at_once(broker: ForkedBroker) -> None:
    broker.start()
    broker.wait_until_http()
    with broker.connect() as client:
        client.subscribe("orders", "kitchen")
    host, _, port = broker.http_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as waiting:
        path = "/v1/topics/orders/subscriptions/kitchen/messages?wait_ms=60000"
        waiting.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        with broker.connect() as client:
            wait_until(lambda: any("http" in session.name for session in client.sessions()), "it waits at the broker")
        # Only the broker is killed: the gateway gets no signal.
        os.kill(broker.pid, signal.SIGKILL)
        broker.wait()
        broker.start()
        broker.wait_until_http()


def test_a_broker_with_all_gateways_that_is_killed_can_be_restarted_at_once(tmp_path: Path) -> None:
    text, push, udp = free_port(), free_ports(3), free_port()
    flags = (f"--text=127.0.0.1:{text}", f"--push=127.0.0.1:{push}", f"--udp=127.0.0.1:{udp}")
    broker = ForkedBroker(tmp_path / "data", *SMALL, *flags, http=True)
    ports = [int(broker.http_url.rpartition(":")[2]), text, push, push + 1, push + 2]

    def is_listening() -> bool:
        return {*ports} <= bound_ports("tcp", "0A") and udp in bound_ports("udp", "07")

    try:
        broker.start()
        wait_until(is_listening, "all gateways listen")
        [gateway] = gateways_of(broker.pid)
        # The connections outlive the gateway that accepted them.
        with ExitStack() as peers:
            for port in ports:
                peers.enter_context(socket.create_connection(("127.0.0.1", port)))
            # Only the broker is killed: the gateway gets no signal.
            os.kill(broker.pid, signal.SIGKILL)
            broker.wait()
            broker.start()
            wait_until(lambda: is_gone(gateway) and is_listening(), "all gateways listen again")
    finally:
        broker.kill()


def bound_ports(protocol: str, state: str) -> set[int]:
    """Return the local ports of the sockets in this state, without touching them."""
    lines = Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]
    return {int(words[1].rpartition(":")[2], 16) for words in map(str.split, lines) if words[3] == state}


def test_sigterm_ends_the_gateway_before_the_broker(broker: ForkedBroker) -> None:
    broker.start()
    broker.wait_until_http()
    [gateway] = gateways_of(broker.pid)
    os.kill(broker.pid, signal.SIGTERM)
    assert broker.wait() == 0
    assert is_gone(gateway)
    assert "Traceback" not in broker.log_tail(100)


def test_ctrl_c_ends_both_without_a_traceback(broker: ForkedBroker) -> None:
    broker.start()
    broker.wait_until_http()
    os.killpg(broker.pid, signal.SIGINT)
    assert broker.wait() == 0
    assert "Traceback" not in broker.log_tail(100)


def _program(folder: Path, command: str) -> str:
    """A script that replaces Python."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    return str(program)


def test_a_gateway_ends_when_its_broker_becomes_a_standby_and_starts_when_it_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", _program(tmp_path, "exec sleep 60"))
    gateways = Supervisor(lambda: ["gateway"])
    seen = set()
    for _ in range(3):
        gateways.start("tcp://127.0.0.1:1")
        wait_until(lambda: bool(gateways_of(os.getpid(), "sleep")), "it runs")
        [pid] = gateways_of(os.getpid(), "sleep")
        seen.add(pid)
        gateways.end()
        assert is_gone(pid)
    assert len(seen) == 3


def test_a_gateway_that_cannot_run_with_its_settings_is_not_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", _program(tmp_path, "exit 2"))
    gateways = Supervisor(lambda: ["gateway"])
    with caplog.at_level(logging.ERROR, "oncemq.gateways"):
        gateways.start("tcp://127.0.0.1:1")
        assert gateways._thread is not None
        gateways._thread.join(60)
    assert [record.getMessage() for record in caplog.records] == [
        "the gateway can't run with its settings; the broker continues without it"
    ]
    assert gateways.has_drained()


# Which gateways are started.


def test_no_gateway_is_started_if_none_is_configured() -> None:
    gateways = gateway_supervisor(ServeSettings(http="none"), lambda _: None)
    gateways.start("tcp://127.0.0.1:1")
    assert gateways.has_drained()
    gateways.end()


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Callable[..., object] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))


@pytest.mark.usefixtures("without_extra")
def test_a_missing_extra_is_an_error_only_if_the_gateway_was_requested() -> None:
    said: list[str] = []
    assert gateway_supervisor(ServeSettings(http="auto"), said.append).has_drained()
    assert said == ["HTTP is off: pip install 'oncemq[http]' installs it."]
    with pytest.raises(errors.MissingExtra, match="pip install"):
        gateway_supervisor(ServeSettings(http="127.0.0.1:8002"), said.append)


def test_a_port_in_use_is_an_error_only_if_the_gateway_was_requested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", _program(tmp_path, "exec sleep 60"))
    monkeypatch.setattr(supervisor, "_CHECK_EVERY_S", 0.01)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for name in ("http", "text", "push"):
            with pytest.raises(errors.ListenFailed, match=f"{taken.getsockname()[1]}.* for {name}") as refused:
                gateway_supervisor(ServeSettings(**{"http": "none", name: address}), lambda _: None)  # type: ignore[arg-type]
            assert f"`--{name}`" in refused.value.advice
        monkeypatch.setitem(GATEWAY_ADDRESSES, "http", address)
        gateways = gateway_supervisor(ServeSettings(http="auto"), said.append)
        gateways.start("tcp://127.0.0.1:1")
        assert not gateways_of(os.getpid(), "sleep")
    wait_until(lambda: bool(gateways_of(os.getpid(), "sleep")), "HTTP begins when the port is free")
    gateways.end()
    [text] = said
    assert text.startswith("HTTP is off: ")
    assert "--http" in text


def test_a_requested_gateway_waits_a_moment_for_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        threading.Timer(0.1, taken.close).start()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        gateway_supervisor(ServeSettings(http=address), lambda _: None)


def test_http_that_was_not_requested_leaves_its_port_to_another_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setitem(GATEWAY_ADDRESSES, "http", address)
    said: list[str] = []
    gateway_supervisor(ServeSettings(http="auto", text=address), said.append)
    assert [line.partition(":")[0] for line in said] == ["HTTP is off"]


def test_the_gateway_gets_the_settings_of_the_broker() -> None:
    settings = ServeSettings(
        http="[::1]:8099",
        http_options=HttpOptions(origins=("https://a.example", "b.example"), connections_max=7),
        push_options=PushOptions(name="--odd", any_address=True, feed_listen=("ipc:///tmp/feed",)),
        insecure=True,
    )
    arguments = arguments_for(settings, {"http": settings.http, "udp": "127.0.0.1:5560"})
    assert arguments[:4] == ["gateway", "several", "--http", "[::1]:8099"]
    command = several.make_context("several", arguments[2:])
    assert (command.params["text"], command.params["push"], command.params["udp"]) == ("none", "none", "127.0.0.1:5560")
    told = sources.load_serve(given({**command.params, "config": os.devnull}), {})
    assert told.http_options == settings.http_options
    assert told.push_options == settings.push_options
    assert told.insecure
    assert told.keys_folder == settings.keys_folder


@pytest.mark.parametrize(
    ("bound", "called"),
    [
        ("tcp://0.0.0.0:5555", "tcp://127.0.0.1:5555"),
        ("tcp://[::]:5555", "tcp://[::1]:5555"),
        ("oncemq://0.0.0.0:5554", "oncemq://127.0.0.1:5554"),
        ("oncemq://[::]:5554", "oncemq://[::1]:5554"),
        ("tcp://10.0.0.0:5555", "tcp://10.0.0.0:5555"),
        ("ipc:///run/oncemq.sock", "ipc:///run/oncemq.sock"),
    ],
)
def test_the_address_of_all_interfaces_is_reached_by_loopback(bound: str, called: str) -> None:
    assert supervisor.connectable(bound) == called
