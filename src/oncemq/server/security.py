"""The security of a broker that `oncemq serve` runs, from its settings."""

from __future__ import annotations

import time
from pathlib import Path

from oncemq.auth.file import load
from oncemq.auth.tokens import stored
from oncemq.auth.users import Users
from oncemq.broker.security.audit import AuditLog
from oncemq.broker.security.security import Security
from oncemq.config.settings import ServeSettings


def make_security(settings: ServeSettings, gateway_token: str) -> Security:
    """Read auth.toml, if there is one. `gateway_token` is the token of the broker's own gateways. Raises
    SettingInvalid."""
    path = settings.auth_file

    def load_users() -> Users | None:
        return load(path) if path.exists() else None

    log = AuditLog(Path(settings.audit) if settings.audit else path.parent / "audit.log")
    return Security(load_users, _now_ms, audit_log=log, own_gateway=stored(gateway_token))


def _now_ms() -> int:
    return int(time.time() * 1000)
