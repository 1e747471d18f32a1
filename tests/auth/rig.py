"""A broker in this process with users, each with a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from oncemq.auth.rules import resolve
from oncemq.auth.users import Quotas, User, Users
from oncemq.broker.security.audit import AuditLog
from oncemq.broker.security.security import Security
from oncemq.protocol import replies
from oncemq.protocol.commands import Command
from tests.auth.walk import ANONYMOUS, RULES
from tests.broker.rig import Rig


def make_users(rules: Mapping[str, Sequence[str]] = RULES, quotas: Mapping[str, Quotas] | None = None) -> Users:
    """Return users whose credentials are certificates of their names."""
    return Users(
        User(
            name,
            resolve(allow, {}),
            certificates=frozenset((name,)),
            quotas=(quotas or {}).get(name, Quotas()),
        )
        for name, allow in rules.items()
    )


class SecureRig(Rig):
    def __init__(self, users: Users | None = None, audit: Path | None = None) -> None:
        self.users: Users | None = users or make_users()
        super().__init__(security=Security(lambda: self.users, lambda: self.clock.now_ms(), audit_log=AuditLog(audit)))

    @property
    def guard(self) -> Security:
        assert self.security is not None
        return self.security

    def login(self, who: str) -> bytes:
        """Return the peer of a user."""
        peer = who.encode()
        if who != ANONYMOUS:
            self.network.callers[peer] = f"{who}/certificate={who}"
        return peer

    def reload(self, users: Users) -> None:
        self.users = users
        assert self.guard.reload() is None

    def send(self, who: str, command: Command, payloads: Sequence[bytes] = ()) -> replies.Reply:
        """Send a command as a user, run a round, and return the reply."""
        request = self.post([command], payloads, self.login(who))
        self.rounds()
        [reply], _ = self.answers()[request]
        return reply
