"""The examples run unchanged, and print what they should."""

from __future__ import annotations

import asyncio
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from examples.datagrams.peers import Subscriber

from oncemq.testing.broker_process import BrokerProcess
from tests.gateways.udp.rig import GatewayProcess, GatewayThread
from tests.gateways.udp.users import BrokerWithUsers

EXAMPLES = Path(__file__).parents[3] / "examples" / "datagrams"


@pytest.fixture
def gateway(oncemq_broker: BrokerProcess) -> Iterator[str]:
    process = GatewayProcess([oncemq_broker.url])
    process.start()
    yield process.settings.listen
    process.kill()


def run(folder: Path, name: str, *arguments: str, environment: dict[str, str] | None = None) -> list[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_plain_datagrams_say_what_the_page_shows(gateway: str, tmp_path: Path) -> None:
    said = run(tmp_path, "plain.py", gateway)
    assert said == [
        "Acknowledged!",
        '["Cooking Recipes"]',
        "Subscribed to Cooking Recipes!",
        "Acknowledged!",
        "Cooking Recipes: boil the water first",
        "Unsubscribed!",
    ]


def test_a_file_is_copied_line_by_line_and_once(oncemq_broker: BrokerProcess, gateway: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n", encoding="ascii")
    with oncemq_broker.connect() as client:
        client.create_topic("readings", retain_ms=3_600_000)
    assert run(tmp_path, "publish_file.py", "readings", "lines.txt", gateway) == ["0 lines were there, 2 are new"]
    lines.write_text("one\ntwo\nthree\n", encoding="ascii")
    assert run(tmp_path, "publish_file.py", "readings", "lines.txt", gateway) == ["2 lines were there, 1 are new"]
    (tmp_path / "copy.txt").write_text("0 one\n1 tw", encoding="ascii")
    assert run(tmp_path, "append_file.py", "readings", "copy.txt", gateway) == ["2 messages"]
    assert (tmp_path / "copy.txt").read_text(encoding="ascii") == "0 one\n1 two\n2 three\n"


def test_a_user_copies_a_file_with_an_access_token(tmp_path: Path) -> None:
    users = BrokerWithUsers(tmp_path)
    gateway = GatewayProcess([users.url])
    gateway.start()
    (tmp_path / "lines.txt").write_text("one\ntwo\n", encoding="ascii")
    (tmp_path / "token").write_text(users.token("alice") + "\n", encoding="ascii")
    publish = ("publish_file.py", "readings", "lines.txt", gateway.settings.listen)
    try:
        # The topic exists while it has a subscriber.
        assert run(tmp_path, *publish, environment={"ONCEMQ_TOKEN": users.token("alice")})
        with closing(Subscriber(gateway.address, "readings", "copy to copy.txt", access_token=users.token("alice"))):
            pass
        (tmp_path / "lines.txt").write_text("one\ntwo\nthree\n", encoding="ascii")
        from_file = {"ONCEMQ_TOKEN_FILE": str(tmp_path / "token")}
        assert run(tmp_path, *publish, environment=from_file) == ["2 lines were there, 1 are new"]
        append = ("append_file.py", "readings", "copy.txt", gateway.settings.listen)
        assert run(tmp_path, *append, environment=from_file) == ["1 messages"]
        assert (tmp_path / "copy.txt").read_text(encoding="ascii") == "2 three\n"
        with pytest.raises(AssertionError, match="refused: UNAUTHENTICATED"):
            run(tmp_path, *publish)
    finally:
        gateway.kill()
        users.stop()


def test_a_file_that_is_copied_in_part_is_a_failure(
    oncemq_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop_delivering(_delivery: object, _position: int) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    gateway = GatewayThread([oncemq_broker.url])
    try:
        with oncemq_broker.connect() as client:
            client.create_topic("readings", retain_ms=3_600_000)
            client.put("readings", "one")
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setitem(__import__("peers").Subscriber.__init__.__kwdefaults__, "timeout_s", 0.3)
        monkeypatch.setattr("oncemq.gateways.udp.extended.delivery.Delivery._advance", stop_delivering)
        arguments = ["append_file.py", "readings", str(tmp_path / "copy.txt"), gateway.settings.listen]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit, match="message 0 of 1 has not arrived"):
            runpy.run_path(str(EXAMPLES / "append_file.py"))
    finally:
        gateway.stop()


def test_a_line_that_is_refused_is_a_failure(gateway: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\n", encoding="ascii")
    command = [sys.executable, str(EXAMPLES / "publish_file.py"), "not*a*name", "lines.txt", gateway]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "line 1 was refused: NAME_INVALID\n"


def test_a_late_reply_to_a_plain_packet_does_not_acknowledge_the_next_one(tmp_path: Path) -> None:
    """The gateway's reply to the first packet is doubled, and the first copy of the next message is lost."""
    gateway = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    gateway.bind(("127.0.0.1", 0))
    gateway.settimeout(30)
    copies: list[tuple[str, int]] = []

    def serve() -> None:
        subscriber = ("", 0)
        while len(copies) < 2:
            packet, address = gateway.recvfrom(65_536)
            if packet == b'1 "Cooking Recipes"':
                for _ in range(2):
                    gateway.sendto(b"Acknowledged!", address)
            elif packet.startswith(b"1 "):
                copies.append(address)
                if len(copies) == 2:
                    gateway.sendto(b"Acknowledged!", address)
                    gateway.sendto(b"Cooking Recipes: boil the water first", subscriber)
            else:
                subscriber = address
                gateway.sendto(b"[]" if packet == b"4 list" else b"Subscribed to Cooking Recipes!", address)
        packet, address = gateway.recvfrom(65_536)
        gateway.sendto(b"Unsubscribed!", address)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    host, port = gateway.getsockname()
    said = run(tmp_path, "plain.py", f"{host}:{port}")
    thread.join(30)
    gateway.close()
    assert said[3:] == ["Acknowledged!", "Cooking Recipes: boil the water first", "Unsubscribed!"]
    assert copies[0] == copies[1], "a repetition comes from the same port"
