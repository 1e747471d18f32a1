"""Contexts and credentials against a broker with users, TLS and CURVE."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import oncemq
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess, free_port
from tests.cli.shell import TIMEOUT_S, Shell
from tests.secured_folder import SecuredFolder


class Secured:
    """A broker, and a shell whose current context is `prod`, as the kitchen."""

    def __init__(self, folder: Path, secrets: SecuredFolder, broker: BrokerProcess) -> None:
        self.secrets = secrets
        self.url, self.ca = broker.url, secrets.ca
        self.token = secrets.kitchen.read_text().strip()
        self.shell = Shell("")
        del self.shell.environment["ONCEMQ_URL"]
        self.shell.environment["ONCEMQ_CONTEXTS"] = str(folder / "contexts.toml")
        self.add("prod", "--url", self.url, "--tls", self.ca, "--token-stdin", "--use", stdin=self.token.encode())

    def add(self, name: str, *arguments: str, stdin: bytes = b"") -> None:
        self.shell.ok("context", "add", name, *arguments, stdin=stdin)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    secrets = SecuredFolder(folder)
    with secrets.broker() as broker:
        with broker.connect() as client:
            client.create_topic("orders", retain_ms=3_600_000)
        secured = Secured(folder, secrets, broker)
        yield secured
        secured.shell.end_all()


@pytest.fixture(autouse=True)
def _same_contexts(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients in this process have the contexts of the shell."""
    monkeypatch.setenv("ONCEMQ_CONTEXTS", secured.shell.environment["ONCEMQ_CONTEXTS"])
    monkeypatch.delenv("ONCEMQ_URL", raising=False)


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


def test_the_token_of_a_context_is_not_used_for_an_address_that_is_given(secured: Secured) -> None:
    refused = secured.shell.run("topics", "--url", secured.url, "--tls", secured.ca)
    assert refused.returncode == errors.Unauthenticated.exit_code
    with pytest.raises(errors.Unauthenticated):
        oncemq.connect(secured.url, tls=secured.ca)


def test_credentials_come_from_options_flags_and_the_environment(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--url", secured.url, "--tls", secured.ca, "--token-file", str(secured.secrets.kitchen))
    assert b"orders" in secured.shell.ok("topics", *flags)
    with oncemq.connect(secured.url, token=secured.token, tls=secured.ca) as client:
        assert client.topics()
    monkeypatch.setenv("ONCEMQ_TOKEN", secured.token)
    monkeypatch.setenv("ONCEMQ_TLS", secured.ca)
    with oncemq.connect(secured.url) as client:
        assert client.topics()
    with pytest.raises(errors.Unauthenticated):
        oncemq.connect(secured.url, token="")


def test_a_context_with_curve_keys_reaches_the_listener_of_zeromq(secured: Secured) -> None:
    secrets = secured.secrets
    keys = ("--curve-server", secrets.curve_server)
    secured.add("zmq", "--url", secrets.zmq_url, *keys, "--curve-secret-file", str(secrets.curve_secret))
    assert b"orders" in secured.shell.ok("topics", "--context", "zmq")


def test_a_gateway_shows_its_token(secured: Secured) -> None:
    address = f"127.0.0.1:{free_port()}"
    secured.add("gate", "--url", secured.url, "--tls", secured.ca, "--token-file", str(secured.secrets.gate))
    gateway = secured.shell.start("gateway", "http", "--http", address, "--context", "gate")
    assert gateway.stdout is not None
    assert f"for {secured.url}".encode() in os.read(gateway.stdout.fileno(), 1000)
    topics = f"http://{address}/v1/topics"
    found = httpx.get(topics, headers={"Authorization": f"Bearer {secured.token}"}, timeout=TIMEOUT_S)
    assert "orders" in found.text
    assert httpx.get(topics, timeout=TIMEOUT_S).status_code == 401
    gateway.kill()
