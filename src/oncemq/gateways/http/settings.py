"""What the HTTP gateway must be told."""

from __future__ import annotations

from oncemq.config.gateways import HttpOptions

DEFAULT_ADDRESS = "127.0.0.1:8002"


class GatewaySettings(HttpOptions, frozen=True, kw_only=True):
    #: Addresses of the broker, and of its standby.
    brokers: tuple[str, ...]
    #: HOST:PORT where it listens.
    http: str = DEFAULT_ADDRESS

    @property
    def host(self) -> str:
        return self.http.rpartition(":")[0].strip("[]")

    @property
    def host_text(self) -> str:
        """As it stands in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def port(self) -> int:
        return int(self.http.rpartition(":")[2])
