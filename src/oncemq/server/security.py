"""The security of a broker that `oncemq serve` runs, from its settings."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oncemq.auth.file import load
from oncemq.auth.status import StatusFile
from oncemq.auth.tokens import stored
from oncemq.auth.users import Users
from oncemq.broker.security.audit import AuditLog
from oncemq.broker.security.security import Security
from oncemq.config.settings import ServeSettings
from oncemq.protocol.errors import SettingInvalid
from oncemq.server.encryption import Encryption

log = logging.getLogger("oncemq.security")


def make_security(settings: ServeSettings, gateway_token: str, encryption: Encryption) -> Security:
    """Read auth.toml, if there is one. `gateway_token` is the token of the broker's own gateways. Certificates are read
    again together with the users. Raises SettingInvalid."""
    path = settings.auth_file

    def load_users() -> Users | None:
        encryption.read()
        try:
            is_there = path.exists()
        except OSError as error:
            raise SettingInvalid(f"{path} can't be read: {error.strerror}") from None
        if not is_there and settings.auth:
            raise SettingInvalid(f"{path} does not exist, although the setting `auth` names it")
        return load(path) if is_there else None

    log = AuditLog(Path(settings.audit) if settings.audit else path.parent / "audit.log")
    security = Security(load_users, _now_ms, audit_log=log, own_gateway=stored(gateway_token))
    security.on_reload.append(encryption.use)
    return security


@contextmanager
def status_reported(settings: ServeSettings, security: Security) -> Iterator[None]:
    """Inside, commands on this machine find the broker on its data folder, and learn what it says about auth.toml. The
    journal must be locked."""
    try:
        status = StatusFile(Path(settings.folder), settings.auth_file)
    except OSError as error:
        log.warning("`oncemq auth` does not find this broker: %s", error)
        yield
        return

    def report(error: str = "") -> None:
        try:
            status.report(has_users=security.users is not None, error=error)
        except OSError as failure:
            log.warning("`oncemq auth` does not find this broker: %s", failure)

    report()
    security.on_read.append(report)
    try:
        yield
    finally:
        status.close()


def _now_ms() -> int:
    return int(time.time() * 1000)
