"""What the HTTP gateway must be told."""

from __future__ import annotations

import msgspec

DEFAULT_ADDRESS = "127.0.0.1:8002"


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    #: Addresses of the broker, and of its standby.
    brokers: tuple[str, ...]
    #: HOST:PORT where it listens.
    http: str = DEFAULT_ADDRESS
    body_bytes_max: int = 8 * 2**20
    connections_max: int = 1000
    #: Origins of web pages that may use it.
    origins: tuple[str, ...] = ()
    #: Host names under which it may be called, beside loopback's and the one that it listens on.
    hosts: tuple[str, ...] = ()

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
