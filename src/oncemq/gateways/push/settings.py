"""What the push gateway must be told."""

from __future__ import annotations

from oncemq.config.gateways import PushOptions


class PushSettings(PushOptions, frozen=True, kw_only=True):
    """Raises SettingInvalid for what can't be."""

    #: Where publishers connect their PUB sockets.
    publish: str = "tcp://127.0.0.1:5557"
    #: Where subscribers connect their SUB sockets, beside `feed_listen`.
    feed: str = "tcp://127.0.0.1:5558"
    #: Where hello, goodbye, ack_received and publish go.
    acks: str = "tcp://127.0.0.1:5559"

    @property
    def feed_subscriber(self) -> str:
        """Who the gateway is on the topics that it follows."""
        return f"{self.name}-feed"
