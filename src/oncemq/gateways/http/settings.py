"""Settings of the HTTP gateway."""

from __future__ import annotations

from oncemq.client.gateway_api import NO_CREDENTIALS, Credentials
from oncemq.config.gateways import HttpOptions

DEFAULT_ADDRESS = "127.0.0.1:8002"


class GatewaySettings(HttpOptions, frozen=True, kw_only=True):
    #: Of the gateway itself, for the broker.
    credentials: Credentials = NO_CREDENTIALS
    #: Addresses of the broker and its standbys.
    brokers: tuple[str, ...]
    #: HOST:PORT to listen at.
    http: str = DEFAULT_ADDRESS
    #: Folder of certificates and keys; empty = none. If it has `server.pem`, connections are encrypted.
    keys: str = ""

    @property
    def host(self) -> str:
        return self.http.rpartition(":")[0].strip("[]")

    @property
    def host_text(self) -> str:
        """The host as it is written in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def port(self) -> int:
        return int(self.http.rpartition(":")[2])
