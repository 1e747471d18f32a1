"""Settings of the push gateway."""

from __future__ import annotations

from oncemq.config.gateways import PushOptions


class PushSettings(PushOptions, frozen=True, kw_only=True):
    """Raises SettingInvalid for invalid values."""

    #: Where publishers connect their PUB sockets.
    publish: str = "tcp://127.0.0.1:5557"
    #: Where subscribers connect their SUB sockets, in addition to `feed_listen`.
    feed: str = "tcp://127.0.0.1:5558"
    #: Where hello, goodbye, ack_received and publish go.
    acks: str = "tcp://127.0.0.1:5559"

    @property
    def feed_subscriber(self) -> str:
        """The gateway's own subscriber name on the topics that it follows."""
        return f"{self.name}-feed"
