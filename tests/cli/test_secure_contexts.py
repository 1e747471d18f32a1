"""Contexts and credentials against a broker that checks tokens, over TLS."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import oncemq
from oncemq.protocol import errors
from oncemq.testing.broker_process import free_port
from tests.cli.shell import TIMEOUT_S, Shell
from tests.secure_broker import FakeGate, SecureBroker, make_keys, secure_broker

TOKEN = "omq-kitchen"


class Secured:
    """A broker, and a shell whose current context is `prod`, as the kitchen."""

    def __init__(self, folder: Path, broker: SecureBroker) -> None:
        assert broker.keys is not None
        assert broker.gate is not None
        self.url, self.gate = broker.url, broker.gate
        self.ca = str(broker.keys / "ca.pem")
        self.token_file = folder / "kitchen.token"
        self.token_file.write_text(f"{TOKEN}\n")
        self.shell = Shell("")
        del self.shell.environment["ONCEMQ_URL"]
        self.shell.environment["ONCEMQ_CONTEXTS"] = str(folder / "contexts.toml")
        arguments = ("--url", self.url, "--tls", self.ca, "--token-stdin", "--use")
        self.shell.ok("context", "add", "prod", *arguments, stdin=TOKEN.encode())


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    keys = make_keys(tmp_path / "keys")
    with secure_broker(tmp_path, keys, FakeGate()) as broker:
        secured = Secured(tmp_path, broker)
        monkeypatch.setenv("ONCEMQ_CONTEXTS", secured.shell.environment["ONCEMQ_CONTEXTS"])
        monkeypatch.delenv("ONCEMQ_URL", raising=False)
        yield secured
        secured.shell.end_all()


def test_commands_and_clients_use_the_current_context(secured: Secured) -> None:
    shell = secured.shell
    shell.ok("sub", "orders", "cook")
    shell.ok("put", "orders", "one pizza")
    assert shell.ok("get", "orders", "cook") == b"one pizza\n"
    with oncemq.connect() as client:
        assert [topic.name for topic in client.topics()] == ["orders"]

    async def look() -> list[str]:
        async with oncemq.aio.connect(context="prod") as client:
            return [topic.name for topic in await client.topics()]

    assert asyncio.run(look()) == ["orders"]


def test_the_token_of_a_context_is_not_sent_to_another_address(secured: Secured) -> None:
    refused = secured.shell.run("topics", "--url", secured.url, "--tls", secured.ca, "--json")
    assert refused.returncode == errors.Unauthenticated.exit_code
    with pytest.raises(errors.Unauthenticated):
        oncemq.connect(secured.url, tls=secured.ca)
    assert {credential for _, credential, _ in secured.gate.asked} == {""}


def test_credentials_come_from_options_flags_and_the_environment(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--url", secured.url, "--tls", secured.ca, "--token-file", str(secured.token_file))
    secured.shell.ok("topics", *flags)
    oncemq.connect(secured.url, token=TOKEN, tls=secured.ca).close()
    monkeypatch.setenv("ONCEMQ_TOKEN", TOKEN)
    monkeypatch.setenv("ONCEMQ_TLS", secured.ca)
    oncemq.connect(secured.url).close()
    with pytest.raises(errors.Unauthenticated):
        oncemq.connect(secured.url, token="")


def test_a_gateway_shows_its_token(secured: Secured) -> None:
    address = f"127.0.0.1:{free_port()}"
    gateway = secured.shell.start("gateway", "http", "--http", address, "--context", "prod")
    assert gateway.stdout is not None
    assert f"for {secured.url}".encode() in os.read(gateway.stdout.fileno(), 1000)
    httpx.get(f"http://{address}/v1/health", timeout=TIMEOUT_S)
    gateway.kill()
    assert {credential for _, credential, _ in secured.gate.asked} == {TOKEN}
