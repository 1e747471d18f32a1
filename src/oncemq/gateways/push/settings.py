"""What the push gateway must be told."""

from __future__ import annotations

import msgspec

from oncemq import errors


class PushSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Raises SettingInvalid for what can't be."""

    #: Where publishers connect their PUB sockets.
    publish: str = "tcp://127.0.0.1:5557"
    #: Where subscribers connect their SUB sockets.
    feed: str = "tcp://127.0.0.1:5558"
    #: Where hello, goodbye, ack_received and publish go.
    acks: str = "tcp://127.0.0.1:5559"
    #: By which the broker knows this gateway's subscriptions and registrations: a second one needs another.
    name: str = "push"
    #: One frame at the most; a peer that sends more is disconnected.
    message_bytes_max: int = 8 * 2**20
    #: What publishers sent and the broker has not stored yet, at the most; beyond it, messages are dropped.
    buffer_bytes_max: int = 64 * 2**20
    #: Messages that wait in front of one slow subscriber of the feed; beyond them it misses some.
    feed_messages_max: int = 10_000
    #: Topics that are followed at a time.
    topics_max: int = 10_000
    heartbeat_ms: int = 1_000
    #: A topic that nobody listens to is not followed any more after so long.
    unfollow_ms: int = 10_000
    #: What a reliable subscriber has not acknowledged is sent to it again after so long.
    retransmit_ms: int = 3_000
    #: It has so long to answer; then it is left alone for `retransmit_ms`, twice that, and so on.
    answer_ms: int = 2_000
    pause_ms_max: int = 60_000
    #: Call reliable subscribers at any TCP address that they name, not only at this machine's own.
    any_address: bool = False

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or len(self.name.encode()) > 64:
            raise errors.SettingInvalid("a push gateway's name has 1 to 64 bytes and no '/'")
        for field in ("heartbeat_ms", "unfollow_ms", "retransmit_ms", "answer_ms", "pause_ms_max"):
            if getattr(self, field) < 1:
                raise errors.SettingInvalid(f"{field} is at least 1")

    @property
    def feed_subscriber(self) -> str:
        """Who the gateway is on the topics that it follows."""
        return f"{self.name}-feed"
