"""After logins, failures, changes and requests of all kinds, no secret is found where others may look."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from examples.datagrams.peers import Publisher, Refused
from zmq.utils import z85

from oncemq.auth.tokens import mac_key_of, new_token, stored, token_id
from oncemq.journal.files.layout import SNAPSHOTS
from oncemq.net.tls import client_context
from oncemq.protocol import errors
from oncemq.tools.faults.processes import children_of
from tests.acceptance.processes import DEADLINE_S, wait_until
from tests.auth.load import Load
from tests.auth.serve_with_known_token import GATEWAY_TOKEN
from tests.auth.served import ServedBroker
from tests.cli.shell import Shell

_RULES = {"root": ("role admin",), "app": ("all orders.#",)}
_PRIVATE = ("ca-key.pem", "server-key.pem", "curve.secret")


class Secrets:
    """Name → the forms in which a secret might be found. The broker stores hashes of tokens in auth.toml, and MACs of
    datagrams are made with them: they are secret everywhere else."""

    def __init__(self) -> None:
        self.forms: dict[str, list[bytes]] = {}
        self.hashes: dict[str, list[bytes]] = {}

    def add_text(self, name: str, text: str) -> None:
        self.forms[name] = [text.encode(), base64.b64encode(text.encode()).rstrip(b"=")]

    def add_token(self, name: str, token: str) -> None:
        self.add_text(name, token)
        self.forms[name].append(token.split("_", 2)[2].encode())
        digest = stored(token).sha256
        self.hashes[name] = [
            digest.encode(),
            bytes.fromhex(digest),
            mac_key_of(token),
            mac_key_of(token).hex().encode(),
        ]

    def add_curve(self, name: str, secret: str) -> None:
        self.add_text(name, secret)
        self.forms[name].append(z85.decode(secret))

    def add_pem(self, path: Path) -> None:
        pem = path.read_bytes()
        key = load_pem_private_key(pem, None)
        number = key.private_numbers().private_value  # type: ignore[union-attr]
        raw = number.to_bytes(32, "big")
        der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        lines = pem.splitlines()
        self.forms[path.name] = [raw, raw.hex().encode(), der, lines[len(lines) // 2]]

    def found_in(self, data: bytes, *, with_hashes: bool = True) -> list[str]:
        """Return the names of those that are found."""
        forms = {
            name: [*forms, *(self.hashes.get(name, []) if with_hashes else [])] for name, forms in self.forms.items()
        }
        return [name for name, of_one in forms.items() if any(form in data for form in of_one)]


class Site:
    """A broker that has served for a while, and what people and programs were told by it."""

    def __init__(self, folder: Path) -> None:
        # As much as it can say is in its log.
        self.broker = ServedBroker(
            folder,
            "--log-level=debug",
            "--snapshot-events=50",
            rules=_RULES,
            module="tests.auth.serve_with_known_token",
        )
        self.accounts = self.broker.accounts
        self.secrets = Secrets()
        self.told: dict[str, str] = {}
        self._token_file = folder / "app.token"
        self._token_file.write_text(self.accounts.tokens["app"])
        self._shell = Shell("")
        for name in list(self._shell.environment):
            if name.startswith("ONCEMQ_"):
                del self._shell.environment[name]
        self._trust = client_context(self.accounts.ca)
        for name, token in self.accounts.tokens.items():
            self.secrets.add_token(f"token of {name}", token)
            self.secrets.add_curve(f"key of {name}", self.accounts.pairs[name].secret)
        self.secrets.add_token("token of the gateway", GATEWAY_TOKEN)
        self.secrets.add_curve("key of the broker", self.accounts.server.secret)
        self._add_keys()

    def _add_keys(self) -> None:
        for name in ("ca-key.pem", "server-key.pem"):
            self.secrets.add_pem(self.accounts.keys / name)

    def start(self) -> None:
        self.broker.start()
        self.broker.wait_until_http()

    def use(self) -> None:
        """Log in, fail to log in, and change things, in all ways."""
        with Load(self.broker, "app", self._token_file, "orders.load") as load:
            load.advance()
            former = token_id(self.accounts.tokens["app"])
            self._auth("token", "app", "--out", str(self._token_file))
            self.secrets.add_token("new token of app", self._token_file.read_text().strip())
            load.advance()
            self._auth("token", "app", "--rm", former)
            self._auth("keys", "--replace")
            self._add_keys()
            load.advance()
            self._fail_to_log_in()
            self._use_browser()
            self._use_datagrams()
            load.advance()
        self.told["health"] = self._command("health", "--json", token=self.accounts.tokens["root"])
        self.told["metrics"] = self._http(self.accounts.tokens["root"], "GET", "/metrics")

    def _fail_to_log_in(self) -> None:
        """Each wrong token is a token of somebody else, or almost a valid one."""
        removed, valid = self.accounts.tokens["app"], self.accounts.tokens["root"]
        wrong = {"removed": removed, "unknown": new_token(), "changed": valid[:-6] + "000000", "text": "not a token"}
        for name, token in wrong.items():
            self.secrets.add_token(name, token) if token_id(token) else self.secrets.add_text(name, token)
            self.told[f"client, {name}"] = self._error(lambda token=token: self.broker.connect(token=token, tries=1))  # type: ignore[misc]
            self.told[f"command, {name}"] = self._command("topics", token=token)
            self.told[f"http, {name}"] = self._http(token, "GET", "/v1/topics")
            body = {"token": token}
            self.told[f"login, {name}"] = self._http("", "POST", "/v1/login", json=body)
            self.told[f"malformed login, {name}"] = self._http("", "POST", "/v1/login", json={"tokens": token})
            self.told[f"query, {name}"] = self._http("", "GET", "/v1/topics", params=body)

    def _error(self, call: Callable[[], object]) -> str:
        with pytest.raises(errors.OnceMQError) as raised:
            call()
        return f"{raised.value} {raised.value!r} {raised.value.args}"

    def _use_browser(self) -> None:
        with httpx.Client(base_url=self.broker.https_url, verify=self._trust, timeout=DEADLINE_S) as browser:
            reply = browser.post("/v1/login", json={"token": self.accounts.tokens["root"]}).json()
            [cookie] = browser.cookies.jar
            assert cookie.value
            self.secrets.add_text("cookie", cookie.value)
            self.secrets.add_text("csrf token", reply["csrf_token"])
            browser.get("/v1/whoami")
            browser.put("/v1/topics/x", json={})
            browser.post("/v1/logout", headers={"OnceMQ-CSRF": reply["csrf_token"]})

    def _use_datagrams(self) -> None:
        with closing(Publisher(self.broker.udp, "p", access_token=self.accounts.tokens["root"])) as publisher:
            publisher.put("orders.udp", b"x", create=True)
            publisher.flush()
        with suppress(Refused):
            Publisher(self.broker.udp, "p", access_token=self.accounts.tokens["app"])

    def _auth(self, *arguments: str) -> None:
        done = self._shell.run("auth", *arguments, "--data", str(self.broker.folder))
        assert done.returncode == 0, done.stderr
        self.told["auth " + arguments[0]] = (done.stdout + done.stderr).decode()

    def _command(self, *arguments: str, token: str) -> str:
        file = self._token_file.with_name("command.token")
        file.write_text(token)
        shown = ("--url", self.broker.url, "--tls", self.accounts.ca, "--token-file", str(file))
        done = self._shell.run(*arguments, *shown)
        return (done.stdout + done.stderr).decode()

    def _http(self, token: str, method: str, path: str, **given: object) -> str:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = self.broker.https_url + path
        response = httpx.request(method, url, headers=headers, verify=self._trust, timeout=DEADLINE_S, **given)  # type: ignore[arg-type]
        return f"{response.status_code} {response.headers} {response.text}"

    def processes(self) -> list[Path]:
        pids = [self.broker.pid, *children_of(self.broker.pid)]
        assert len(pids) > 1
        return [Path(f"/proc/{pid}") for pid in pids]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="omq-") as folder:
        site = Site(Path(folder))
        site.start()
        try:
            site.use()
            yield site
        finally:
            site.broker.kill()


def test_the_secrets_are_known(site: Site) -> None:
    """Otherwise none would be found anywhere."""
    keys = site.accounts.keys
    assert site.secrets.found_in((keys / "curve.secret").read_bytes()) == ["key of the broker"]
    assert site.secrets.found_in((keys / "server-key.pem").read_bytes()) == ["server-key.pem"]
    assert site.secrets.found_in(site._token_file.read_bytes()) == ["new token of app"]
    assert "token of root" in site.secrets.found_in(site.accounts.file.read_bytes())
    site.broker.connect(token=GATEWAY_TOKEN).close()


def test_no_secret_is_told_or_logged(site: Site) -> None:
    for what, text in site.told.items():
        assert site.secrets.found_in(text.encode()) == [], what
    log = site.broker.log_path.read_bytes()
    # It is worth looking at.
    assert b"warning" in log
    assert b"oncemq.security" in log
    assert site.secrets.found_in(log) == []
    audit = (site.broker.folder / "audit.log").read_bytes()
    assert {json.loads(line)["event"] for line in audit.splitlines()} >= {
        "login",
        "login failed",
        "reloaded",
        "changed",
    }
    assert site.secrets.found_in(audit) == []


def test_no_secret_is_in_the_arguments_or_the_environment_of_a_process(site: Site) -> None:
    for process in site.processes():
        arguments, environment = ((process / name).read_bytes() for name in ("cmdline", "environ"))
        assert b"serve" in arguments or b"gateway" in arguments
        assert b"PATH=" in environment
        assert site.secrets.found_in(arguments + environment) == []


def test_no_secret_is_in_the_files_of_the_broker(site: Site) -> None:
    def files() -> list[Path]:
        return [path for path in site.broker.folder.rglob("*") if path.is_file() and path.name not in _PRIVATE]

    wait_until(lambda: any(path.parent.name == SNAPSHOTS for path in files()), "there is a snapshot")
    assert any(path.stat().st_size > 2**20 for path in files()), "there is a journal"
    for path in files():
        found = site.secrets.found_in(path.read_bytes(), with_hashes=path != site.accounts.file)
        assert found == [], path


def test_files_with_secrets_are_private(site: Site) -> None:
    for path in (site.accounts.file, *(site.accounts.keys / name for name in _PRIVATE)):
        assert path.stat().st_mode & 0o077 == 0, path
