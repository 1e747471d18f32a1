"""A broker with users in a thread, and access tokens for them. Every connection to it is that of a gateway."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from oncemq.auth.file import load
from oncemq.auth.tokens import new_token, stored, token_id
from oncemq.auth.users import Users
from oncemq.broker.clock import SystemClock
from oncemq.broker.loop import Broker
from oncemq.broker.network.listeners import Listeners
from oncemq.broker.security.security import Security
from oncemq.config.settings import ServeSettings
from oncemq.journal.memory import MemoryJournal
from tests.gateways.hosts import TIMEOUT_S

#: User → rules.
RULES = {
    "alice": ["all #"],
    "bob": ["all #"],
    "reader": ["consume news"],
    "visitor": ["all public.#"],
    "gate": ["role gateway"],
}


class _GatewaysOnly(Listeners):
    """Every connection is that of a gateway."""

    caller = ""

    def caller_of(self, peer: bytes) -> str:
        return self.caller


class BrokerWithUsers:
    def __init__(self, folder: Path, *, has_users: bool = True) -> None:
        """`auth.toml` in the folder has the users: from now on, or from the first `reload` on."""
        self.path = folder / "auth.toml"
        self.tokens = {name: [new_token()] for name in RULES}
        if has_users:
            self._write()
        settings = ServeSettings(listen=("oncemq://127.0.0.1:0",))
        self._network = _GatewaysOnly(settings)
        self._network.caller = f"gate/{token_id(self.tokens['gate'][0])}"
        self.url = self._network.addresses[0]
        clock = SystemClock()
        self.security = Security(self._load, clock.now_ms)
        self.broker = Broker(MemoryJournal(), self._network, clock, settings.limits, security=self.security)
        self._calls: list[Callable[[], object]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _load(self) -> Users | None:
        return load(self.path) if self.path.exists() else None

    def _write(self) -> None:
        lines = []
        for name, rules in RULES.items():
            lines += [f"[user.{name}]", f"allow = {rules}", f"tokens = {[str(stored(t)) for t in self.tokens[name]]}"]
        self.path.write_text("\n".join(lines), encoding="utf-8")
        self.path.chmod(0o600)

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.broker.run_once(min(self.broker.wait_ms(), 10))
            while self._calls:
                self._calls.pop(0)()

    def token(self, user: str) -> str:
        """Return the newest access token of a user."""
        return self.tokens[user][-1]

    def add_token(self, user: str) -> str:
        self.tokens[user].append(new_token())
        self.reload()
        return self.token(user)

    def remove_token(self, user: str) -> None:
        """Remove the oldest access token of a user."""
        del self.tokens[user][0]
        self.reload()

    def reload(self) -> None:
        self._write()
        done = threading.Event()
        self._calls += [self.security.reload, done.set]
        assert done.wait(TIMEOUT_S)

    @property
    def sessions(self) -> set[str]:
        return set(self.broker.engine.state.sessions)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(TIMEOUT_S)
        self._network.close()
