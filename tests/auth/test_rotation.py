"""Tokens, certificates and rules are changed by commands while a broker serves: applications see no error, except those
whose rights were revoked."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography import x509

from oncemq.auth.tokens import token_id
from oncemq.client.sync import Client
from oncemq.config.addresses import split_address
from oncemq.net.tls import client_context
from oncemq.protocol import errors
from tests.acceptance.processes import DEADLINE_S, wait_until
from tests.auth.load import Load
from tests.auth.served import ServedBroker
from tests.cli.shell import Shell

_RULES = {
    "root": ("role admin",),
    "app": ("all orders.#",),
    # Has the same rights, and owns nothing.
    "rival": ("all orders.#",),
    "guest": ("consume menu",),
}
_ROTATIONS = 3


class Site:
    """A broker, the shell of its administrator, and the file with the token of an application."""

    def __init__(self, folder: Path) -> None:
        self.broker = ServedBroker(folder, rules=_RULES)
        self.shell = Shell("")
        del self.shell.environment["ONCEMQ_URL"]
        self.data = str(self.broker.folder)
        self.token_file = folder / "app.token"
        self.token_file.write_text(self.broker.accounts.tokens["app"])
        self.trust = client_context(self.broker.accounts.ca)

    def auth(self, *arguments: str) -> str:
        return self.shell.ok("auth", *arguments, "--data", self.data).decode()

    def load(self, topic: str) -> Load:
        return Load(self.broker, "app", self.token_file, topic)

    def serial_numbers(self) -> tuple[int, int]:
        """Return those of the certificates that new connections see: at the broker, and at its HTTP gateway."""
        parts = urlsplit(self.broker.https_url)
        gateway = (parts.hostname or "", parts.port or 0)
        return self._serial_number(split_address(self.broker.url)), self._serial_number(gateway)

    def _serial_number(self, address: tuple[str, int]) -> int:
        with (
            socket.create_connection(address, DEADLINE_S) as raw,
            self.trust.wrap_socket(raw, server_hostname="localhost") as encrypted,
        ):
            certificate = encrypted.getpeercert(binary_form=True)
            assert certificate is not None
            return x509.load_der_x509_certificate(certificate).serial_number

    def http(self, user: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.broker.accounts.tokens[user]}"}
        return httpx.Client(base_url=self.broker.https_url, verify=self.trust, headers=headers, timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    # The paths of Unix sockets must be short.
    with tempfile.TemporaryDirectory(prefix="omq-") as folder:
        site = Site(Path(folder))
        site.broker.start()
        try:
            site.broker.wait_until_http()
            yield site
        finally:
            site.broker.kill()


def test_a_token_is_replaced_under_load(site: Site) -> None:
    with site.load("orders.tokens") as load:
        load.advance()
        for _ in range(_ROTATIONS):
            former = token_id(site.token_file.read_text().strip())
            site.auth("token", "app", "--out", str(site.token_file))
            load.advance()
            site.auth("token", "app", "--rm", former)
            load.advance()
    with pytest.raises(errors.Unauthenticated):
        site.broker.connect("app", tries=1)


def test_a_certificate_is_replaced_under_load(site: Site) -> None:
    with site.load("orders.certificates") as load:
        load.advance()
        for _ in range(_ROTATIONS):
            former = site.serial_numbers()
            site.auth("keys", "--replace")
            _wait_for_new_certificate(site, former)
            load.advance()
            with site.broker.connect(token="", token_file=str(site.token_file)) as another:
                another.put("orders.new", b"x", create=True)


def _wait_for_new_certificate(site: Site, former: tuple[int, int]) -> None:
    """The broker has answered the command. Its gateway may read the file a moment later."""
    of_broker, of_gateway = former
    assert site.serial_numbers()[0] != of_broker
    wait_until(lambda: site.serial_numbers()[1] != of_gateway, "new connections see the new certificate")


def _wait_for_silence(admin: Client) -> None:
    """Wait until nobody else sends commands: those that get messages wait for them."""
    counts = [0]

    def is_alone() -> bool:
        counts.append(admin.health().counters["commands"])
        return counts[-1] == counts[-2] + 1

    wait_until(is_alone, "nobody else sends commands")


def test_what_waits_ends_when_a_right_is_revoked(site: Site) -> None:
    path = "/v1/topics/menu/subscriptions/http"
    with site.broker.connect() as admin:
        admin.create_topic("menu")
    with (
        site.broker.connect("guest", timeout_s=DEADLINE_S) as stream,
        site.broker.connect_zeromq("guest", timeout_s=DEADLINE_S) as zeromq,
        site.http("guest") as http,
        ThreadPoolExecutor(4) as threads,
    ):
        assert http.put(path, json={}).is_success
        assert http.put(f"{path}-events", json={}).is_success
        waiting = [
            threads.submit(client.subscribe("menu", name).get, timeout_s=DEADLINE_S)
            for name, client in (("stream", stream), ("zeromq", zeromq))
        ]
        poll = threads.submit(http.get, f"{path}/messages", params={"wait_ms": 1000 * int(DEADLINE_S)})
        events = threads.submit(http.get, f"{path}-events/events")
        with site.broker.connect() as admin:
            _wait_for_silence(admin)
        site.auth("revoke", "guest", "consume", "menu")
        for get in waiting:
            with pytest.raises(errors.Forbidden):
                get.result(DEADLINE_S)
        assert poll.result(DEADLINE_S).json()["code"] == "FORBIDDEN"
        assert "FORBIDDEN" in events.result(DEADLINE_S).text
    with pytest.raises(errors.Forbidden), site.broker.connect("guest") as client:
        client.subscribe("menu", "again")


def test_a_file_that_is_not_valid_changes_nothing(site: Site) -> None:
    file = site.broker.accounts.file
    valid = file.read_bytes()
    arguments = (
        "--url",
        site.broker.url,
        "--tls",
        site.broker.accounts.ca,
        "--token-file",
        str(file.with_name("root")),
    )
    Path(arguments[-1]).write_text(site.broker.accounts.tokens["root"])
    with site.load("orders.broken") as load:
        load.advance()
        for broken in (b"[user.app\n", b'[user.app]\nallow = ["fly orders"]\n', b'[user.app]\ntokens = ["x"]\n'):
            file.write_bytes(broken)
            for how in (("--data", site.data), arguments):
                done = site.shell.run("auth", "reload", *how)
                assert done.returncode == errors.SettingInvalid.exit_code, done.stderr
                assert b"auth.toml" in done.stderr
            load.advance()
            site.broker.connect("rival").close()
        file.write_bytes(valid)
        site.auth("reload")
        load.advance()


def test_owners_and_rights_outlive_a_crash(site: Site) -> None:
    with site.load("orders.crash") as load:
        load.advance()
        site.auth("grant", "guest", "write", "orders.crash.stream")
        for _ in range(2):
            site.broker.restart()
            load.advance()
            with site.broker.connect("rival") as rival:
                with pytest.raises(errors.Forbidden):
                    rival.subscribe("orders.crash.stream", "load")
                with pytest.raises(errors.Forbidden):
                    rival.seek("orders.crash.stream", "load", "new")
                with pytest.raises(errors.Forbidden):
                    rival.unsubscribe("orders.crash.stream", "load")
            with site.broker.connect("guest") as guest, pytest.raises(errors.Forbidden):
                guest.put("orders.crash.http", b"x")
