"""Settings of the push gateway."""

from __future__ import annotations

from oncemq.client.gateway_api import NO_CREDENTIALS, Credentials
from oncemq.config.gateways import PushOptions
from oncemq.net.curve import CurveServerKeys
from oncemq.net.policy import KERNEL_BYTES, ListenerLimits


class PushSettings(PushOptions, frozen=True, kw_only=True):
    """Raises SettingInvalid for invalid values."""

    #: Of the gateway itself, for the broker.
    credentials: Credentials = NO_CREDENTIALS
    #: The keys of its sockets. None: they are not encrypted, and if the broker has users, they allow nothing.
    curve: CurveServerKeys | None = None
    #: Where publishers connect their PUB sockets.
    publish: str = "tcp://127.0.0.1:5557"
    #: Where subscribers connect their SUB sockets, in addition to `feed_listen`.
    feed: str = "tcp://127.0.0.1:5558"
    #: Where hello, goodbye, ack_received and publish go.
    acks: str = "tcp://127.0.0.1:5559"
    #: How long a peer may read nothing of what was sent to it.
    write_timeout_s: float = 10.0

    @property
    def limits(self) -> ListenerLimits:
        """What each of the three sockets allows its peers. A message has two frames."""
        return ListenerLimits(
            connections_max=self.connections_max,
            peer_bytes_max=max(self.peer_bytes_max, 2 * self.message_bytes_max) + KERNEL_BYTES,
            write_timeout_s=self.write_timeout_s,
        )

    def feed_subscriber_of(self, user: str) -> str:
        """The gateway's own subscriber name on the topics that it follows, for a user."""
        return f"{self.name}-feed/{user}" if user else f"{self.name}-feed"
