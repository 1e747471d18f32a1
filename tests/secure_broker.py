"""A broker with TLS and a gate in this process, and clients that show it their credentials."""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oncemq.auth.certificates import create_authority, create_server
from oncemq.auth.users import CERTIFICATE
from oncemq.broker.network.listeners import Listeners
from oncemq.client import aio
from oncemq.client.connect import _connect_outbox
from oncemq.client.connect_aio import _connect as connect_aio
from oncemq.client.credentials import Credentials, TlsSettings
from oncemq.client.options import settings_of
from oncemq.client.outbox.sync import OutboxClient
from oncemq.client.runtime.stream import StreamTransport
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.runtime.transport import open_transport
from oncemq.client.sync import Client, make_client
from oncemq.config.settings import ServeSettings
from oncemq.journal.memory import MemoryJournal
from oncemq.net.tls import server_context
from oncemq.protocol import errors
from oncemq.protocol.commands import NO_CREDENTIAL, TOKEN
from oncemq.server.serve import run
from tests.stream_peer import connected

ANY_PORT = "oncemq://127.0.0.1:*"
TOKENS = {"omq-kitchen": "kitchen/one", "omq-waiter": "waiter/two"}
_STOP_S = 30.0


class FakeGate:
    """Knows these tokens, and common names that begin with `client`."""

    def __init__(self, tokens: dict[str, str] | None = None, *, is_open: bool = False) -> None:
        self.tokens = dict(TOKENS if tokens is None else tokens)
        #: Connections without a credential are admitted.
        self.is_open = is_open
        self.connections_max = 1_000_000
        self.inside: Counter[str] = Counter()
        self.asked: list[tuple[str, str, str]] = []
        self.revoked: set[str] = set()

    def admit(self, kind: str, credential: str, address: str) -> str:
        self.asked.append((kind, credential, address))
        caller = self._caller(kind, credential)
        if caller in self.revoked or caller is None:
            raise errors.Unauthenticated("the credentials are not valid")
        if self.inside[caller] >= self.connections_max:
            raise errors.QuotaReached("the user has too many connections")
        self.inside[caller] += 1
        return caller

    def _caller(self, kind: str, credential: str) -> str | None:
        if kind == TOKEN:
            return self.tokens.get(credential)
        if kind == CERTIFICATE and credential.startswith("client"):
            return f"{credential}/certificate={credential}"
        return "" if kind == NO_CREDENTIAL and self.is_open else None

    def left(self, caller: str) -> None:
        self.inside[caller] -= 1
        assert self.inside[caller] >= 0, f"{caller} has left twice"

    def is_valid(self, caller: str) -> bool:
        return caller not in self.revoked


def make_keys(folder: Path, *names: str) -> Path:
    """Create an authority, and a certificate of a broker with these names."""
    create_authority(folder)
    create_server(folder, names or ("127.0.0.1", "localhost"))
    return folder


class SecureBroker:
    """A broker with a journal in memory, which runs in a thread."""

    def __init__(self, folder: Path, keys: Path | None, gate: FakeGate | None, **settings: Any) -> None:
        """Without `keys`, it does not use TLS."""
        self.keys = keys
        self.gate = gate
        unix = f"oncemq+unix://{folder}/secure.sock"
        self.settings = ServeSettings(listen=(ANY_PORT, unix), **settings)
        self.network = Listeners(self.settings, gate=gate, tls=self._context())
        self.url, self.unix_url = self.network.addresses
        self._is_stopping = False
        #: What the broker's thread does before its next round.
        self._calls: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _context(self, client_certificates: bool = False) -> ssl.SSLContext | None:
        if self.keys is None:
            return None
        return server_context(self.keys, client_certificates=client_certificates)

    def _run(self) -> None:
        run(MemoryJournal(), self.network, self.settings, lambda _: None, self._stopping)

    def _stopping(self) -> bool:
        while self._calls:
            self._calls.pop(0)()
        return self._is_stopping

    def call(self, what: Callable[[], None]) -> None:
        """Do something in the broker's thread."""
        done = threading.Event()
        self._calls += [what, done.set]
        while not done.wait(0.01):
            # This ends a wait of the broker.
            connected(self.unix_url).close()
            assert self._thread.is_alive()

    def use_certificate(self, *, client_certificates: bool = False) -> None:
        """Load the certificate again."""
        context = self._context(client_certificates)
        self.call(lambda: self.network.use_tls(context))

    def drop(self, *callers: str) -> None:
        """Remove the credentials of these callers."""
        assert self.gate is not None
        self.gate.revoked |= {*callers}
        self.call(self.network.drop_invalid)

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.network.counters.counts)

    @property
    def tls(self) -> TlsSettings:
        """The settings of a client that trusts its authority."""
        assert self.keys is not None
        return TlsSettings(ca=str(self.keys / "ca.pem"))

    def shown(self, token: str = "omq-kitchen") -> Credentials:
        """The credentials of a client that trusts its authority, and has this token."""
        return credentials(token, tls=self.tls if self.keys is not None else None)

    def stop(self) -> None:
        self._is_stopping = True
        self._thread.join(_STOP_S)
        assert not self._thread.is_alive()
        self.network.close()


@contextmanager
def secure_broker(
    folder: Path, keys: Path | None, gate: FakeGate | None = None, **settings: Any
) -> Iterator[SecureBroker]:
    broker = SecureBroker(folder, keys, gate, **settings)
    try:
        yield broker
    finally:
        broker.stop()


# Clients.


def credentials(token: str = "", token_file: str = "", tls: TlsSettings | None = None) -> Credentials:
    return Credentials(token=token, token_file=token_file, tls=tls)


def stream_transport(urls: Sequence[str], shown: Credentials, busy_poll_us: int = 0) -> StreamTransport:
    transport = open_transport(urls, busy_poll_us, shown)
    assert isinstance(transport, StreamTransport)
    return transport


def connect(url: str | Sequence[str], shown: Credentials, **options: Any) -> Client:
    settings = settings_of(url, None, options)
    transport = stream_transport(settings.urls, shown, settings.busy_poll_us)
    client = make_client(ThreadDriver(settings.make_core(), transport), settings)
    client._driver.run(client._connection.greet())
    return client


def connect_outbox(url: str, outbox: Path, shown: Credentials) -> OutboxClient:
    settings = settings_of(url, outbox, {})
    return _connect_outbox(settings, stream_transport(settings.urls, shown))


async def connect_async(url: str | Sequence[str], shown: Credentials, **options: Any) -> aio.Client:
    settings = settings_of(url, None, options)
    return await connect_aio(settings, stream_transport(settings.urls, shown))
