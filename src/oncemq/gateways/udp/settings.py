"""Settings of the datagram gateway, and its fixed limits."""

from __future__ import annotations

from oncemq.client.gateway_api import NO_CREDENTIALS, Credentials
from oncemq.config.addresses import is_loopback
from oncemq.config.gateways import UdpOptions

DEFAULT_ADDRESS = "127.0.0.1:5560"

#: Maximum number of puts of a publisher, and of messages to a subscriber, in flight.
WINDOW = 64
#: Maximum number of bytes in flight to a subscriber; a single packet is always allowed.
WINDOW_BYTES = 128 * 1024
#: How much longer than its request a reply to an unvalidated address may be. The replies to plain packets fit.
SLACK_BYTES = 48
#: How many messages an unvalidated address gets before it must send a packet again.
UNPROVED_MESSAGES = 1000
#: A plain subscriber on another machine is deleted after this time without a packet: nothing else shows that it is
#: gone.
PLAIN_SILENT_MS = 24 * 3600 * 1000
#: Messages to an extended subscriber stop after this time without a packet; its subscription stays.
SUBSCRIBER_SILENT_MS = 30_000
PUBLISHER_SILENT_MS = 600_000
#: Maximum size of a list of topics, so that its packet is not fragmented.
LIST_BYTES_MAX = 1200
#: Maximum number of packets that wait for the broker. Further packets are dropped, and peers repeat them.
PACKET_TASKS_MAX = 2048
#: The part of them that packets from one source may take, and the maximum of their bytes.
SOURCE_TASKS_MAX = 256
#: The same while half of all places, or of their bytes, are taken: the rest is for others.
BUSY_SOURCE_TASKS_MAX = 4
PACKET_TASKS_BYTES_MAX = 16 * 1024 * 1024
#: Puts of all publishers that wait for missing ones. Further ones are dropped, and publishers repeat them.
WAITING_BYTES_TOTAL_MAX = 64 * 1024 * 1024
#: Messages that were fetched for subscribers whose window is full. A delivery may hold the first part in any case.
HELD_BYTES_MAX = 32 * 1024 * 1024
HELD_BYTES_FREE = 128 * 1024
#: Deliveries that fetch stored messages at a time.
FETCHES_MAX = 8
#: Wrong MACs, and access tokens to look up at the broker, of one source per second. Further hellos are dropped.
FAILURES_PER_S = 10
#: Answers per second, all together, that tell a peer that it is not authenticated. They help people, not programs.
HINTS_PER_S = 20


class UdpSettings(UdpOptions, frozen=True, kw_only=True):
    #: Of the gateway itself, for the broker.
    credentials: Credentials = NO_CREDENTIALS
    #: HOST:PORT to listen at.
    listen: str = DEFAULT_ADDRESS
    #: Other machines can't send from a loopback address, so these addresses count as validated.
    loopback_is_validated: bool = True
    #: How long a get waits at the broker: the longest time in which a restart of the broker goes unnoticed.
    wait_ms: int = 2000

    @property
    def source_peers_max(self) -> int:
        """Maximum number of extended peers of one source, so that others find a place."""
        return max(16, self.peers_max // 4)

    @property
    def user_peers_max(self) -> int:
        """Maximum number of extended peers of one user, so that other users find a place."""
        return max(16, self.peers_max * 3 // 4)

    @property
    def source_subscriptions_max(self) -> int:
        """Maximum number of plain subscriptions of one source."""
        return max(16, self.plain_subscriptions_max // 4)

    @property
    def feed_name(self) -> str:
        """The name of the subscriber that all plain subscribers share."""
        return f"{self.name}/plain"

    @property
    def serves_plain(self) -> bool:
        """Whether plain packets are answered here."""
        return self.plain == "true" or (self.plain == "auto" and is_loopback(self.host))

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])
