"""What the datagram gateway must be told, and what it does not let anybody change."""

from __future__ import annotations

from oncemq.config.gateways import UdpOptions

DEFAULT_ADDRESS = "127.0.0.1:5560"

#: Puts of a publisher, and messages to a subscriber, that may be without an answer.
WINDOW = 64
#: The same for messages to a subscriber, in bytes; one packet goes in any case.
WINDOW_BYTES = 128 * 1024
#: A reply to an address that has not proved itself is at most so much longer than its question: S4's own fit.
SLACK_BYTES = 48
#: Such an address is sent so many messages before it has to say something again.
UNPROVED_MESSAGES = 1000
#: A plain subscriber elsewhere that says nothing for so long is forgotten: it has no other way to be gone.
PLAIN_SILENT_MS = 24 * 3600 * 1000
#: A subscriber of the extended form that says nothing for so long is not sent to; its subscription stays.
SUBSCRIBER_SILENT_MS = 30_000
PUBLISHER_SILENT_MS = 600_000
#: A list of topics is cut at so many bytes, so that no network cuts its packet.
LIST_BYTES_MAX = 1200
#: Packets that wait for the broker's answer. Others are dropped meanwhile, and come again.
ERRANDS_MAX = 2048


class UdpSettings(UdpOptions, frozen=True, kw_only=True):
    #: HOST:PORT where it listens.
    listen: str = DEFAULT_ADDRESS
    #: Nobody elsewhere can send with an address of this machine's loopback, so those count as proved.
    loopback_is_proved: bool = True
    #: An idle subscription asks the broker again so often: the longest that it overlooks a broker's restart.
    wait_ms: int = 2000

    @property
    def feed_name(self) -> str:
        """The subscriber in whose name plain subscribers get their messages."""
        return f"{self.name}/plain"

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])
