"""A broker with users for tests. It listens for ZeroMQ with CURVE, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import zmq

from oncemq.auth.rules import resolve
from oncemq.auth.users import Quotas, User, Users
from oncemq.broker.clock import SystemClock
from oncemq.broker.loop import Broker
from oncemq.broker.network.listeners import Listeners
from oncemq.broker.security.security import Security
from oncemq.client.credentials import Credentials, CurveKeys
from oncemq.config.settings import ServeSettings
from oncemq.journal.memory import MemoryJournal
from oncemq.net import curve
from oncemq.net.curve import CurveServerKeys
from oncemq.protocol.limits import Limits

DEADLINE_S = 30.0
#: The user as which gateways connect.
GATEWAY = "gateway"
_LIMITS = Limits(batch_bytes_max=4 * 1024 * 1024)


def client_keys(server: CurveServerKeys) -> CurveKeys:
    """New keys of a client, for this server."""
    public, secret = zmq.curve_keypair()
    return CurveKeys(server=server.public, public=public.decode(), secret=secret.decode())


class SecuredBroker:
    def __init__(
        self,
        allow: Mapping[str, Sequence[str]],
        listen: Sequence[str] = ("tcp://127.0.0.1:*",),
        quotas: Mapping[str, Quotas] | None = None,
    ) -> None:
        """`allow` has the users and their rules. There is one more user, for gateways."""
        self.server_keys = curve.generate()
        self.allow = {GATEWAY: ["role gateway"], **{name: list(rules) for name, rules in allow.items()}}
        self.keys = {name: client_keys(self.server_keys) for name in self.allow}
        #: Users whose key is not valid.
        self.revoked: set[str] = set()
        self._quotas = quotas or {}
        self.security = Security(self._users, lambda: int(time.time() * 1000))
        settings = ServeSettings(listen=tuple(listen), batch_bytes_max=_LIMITS.batch_bytes_max)
        self.network = Listeners(settings, gate=self.security, curve=self.server_keys)
        self.urls = self.network.addresses
        self.url = self.urls[0]
        self.broker = Broker(MemoryJournal(), self.network, SystemClock(), _LIMITS, security=self.security)
        self.security.on_reload.append(self.network.drop_invalid)
        self._calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _users(self) -> Users:
        return Users(
            User(
                name,
                resolve(rules, {}),
                curve=frozenset() if name in self.revoked else frozenset((self.keys[name].public,)),
                quotas=self._quotas.get(name, Quotas()),
            )
            for name, rules in self.allow.items()
        )

    def _run(self) -> None:
        while not self._is_stopped:
            self.broker.run_once(min(self.broker.wait_ms(), 5))
            while not self._calls.empty():
                self._calls.get()()

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread of the broker."""
        done: SimpleQueue[Any] = SimpleQueue()
        self._calls.put(lambda: done.put(function()))
        return done.get(timeout=DEADLINE_S)

    def reload(self) -> None:
        """Use the present `allow` and `revoked`."""
        assert self.call(self.security.reload) is None

    def revoke(self, user: str) -> None:
        self.revoked.add(user)
        self.reload()

    def set_rules(self, user: str, *rules: str) -> None:
        self.allow[user] = list(rules)
        self.reload()

    def credentials(self, user: str) -> Credentials:
        return Credentials(curve=self.keys[user])

    def close(self) -> None:
        self._is_stopped = True
        self._thread.join(DEADLINE_S)
        self.network.close()


@contextmanager
def secured_broker(allow: Mapping[str, Sequence[str]], **options: Any) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(allow, **options)
    try:
        yield broker
    finally:
        broker.close()


def use_keys(socket: Any, keys: CurveKeys) -> None:
    """Give a plain socket the keys of a client, as any program does."""
    socket.curve_serverkey = keys.server.encode()
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()


def until(condition: Callable[[], object], what: str) -> None:
    """Poll a condition. Fails after the deadline."""
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, f"not in time: {what}"
        time.sleep(0.005)
