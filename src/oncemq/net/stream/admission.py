"""Asks the gate who a new connection is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncemq.auth.users import CERTIFICATE
from oncemq.net.gate import Gate
from oncemq.net.stream.connection import StreamConnection
from oncemq.protocol.commands import NO_CREDENTIAL, TOKEN
from oncemq.protocol.errors import Malformed


def admit(gate: Gate | None, connection: StreamConnection, properties: Mapping[str, Any]) -> str:
    """Return the caller of a connection whose opening has these properties. Raises OnceMQError if it is refused, and
    OSError if its peer is gone."""
    if gate is None:
        return ""
    kind, credential = _credential(connection, properties)
    return gate.admit(kind, credential, connection.address)


def _credential(connection: StreamConnection, properties: Mapping[str, Any]) -> tuple[str, str]:
    """The token comes first. No error text contains anything of it."""
    auth = properties.get("auth", {})
    token = auth.get("token", "") if isinstance(auth, dict) else None
    if not isinstance(token, str):
        raise Malformed("the property `auth` of the opening is not a map with a text `token`")
    if token:
        return TOKEN, token
    name = connection.common_name
    return (CERTIFICATE, name) if name else (NO_CREDENTIAL, "")
