"""What the gateways can be told beside their addresses: an option `key` of gateway `push` is the setting `push.key`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from oncemq.protocol.errors import SettingInvalid

#: What one datagram holds over IPv4.
DATAGRAM_BYTES_MAX = 65_507

#: By which the broker knows a gateway.
Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        description="By which the broker knows this gateway's subscriptions and registrations. A second gateway of "
        "this kind at one broker needs another name. It has no `/`.",
    ),
]


def _check_name(name: str) -> None:
    # Registry keys are made of it, beside the longest name of a topic.
    if "/" in name or len(name.encode()) > 64:
        raise SettingInvalid(f"A gateway's name has up to 64 bytes and no '/': {name!r} is not possible.")


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    body_bytes_max: Annotated[int, Meta(ge=1024, description="Body of a request, at the most.")] = 8 * 2**20
    connections_max: Annotated[
        int, Meta(ge=1, description="Connections at the same time; more are answered with 503.")
    ] = 1000
    origins: Annotated[
        tuple[str, ...],
        Meta(description="Origins whose web pages may use the gateway (CORS), such as `https://shop.example`."),
    ] = ()
    hosts: Annotated[
        tuple[str, ...],
        Meta(description="Further host names under which the gateway may be called, beside loopback's."),
    ] = ()


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    request_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="A longer request is refused. One that is twice as long is not even received: its peer is "
            "disconnected.",
        ),
    ] = 16 * 2**20
    requests_max: Annotated[
        int, Meta(ge=1, description="Requests in hand, of all peers; beyond them the answer is OVERLOADED.")
    ] = 10_000
    peer_requests_max: Annotated[int, Meta(ge=1, description="The same, of one peer.")] = 100
    requests_bytes_max: Annotated[int, Meta(ge=1, description="The same, in bytes, of all peers.")] = 64 * 2**20
    patience_ms: Annotated[
        int, Meta(ge=1, description="A peer that does not read its answers for so long loses the next one.")
    ] = 10_000


class PushOptions(msgspec.Struct, frozen=True, kw_only=True):
    name: Name = "push"
    feed_listen: Annotated[
        tuple[str, ...],
        Meta(
            description="Further addresses of the live feed: `ipc://PATH`, which costs less, for subscribers on this "
            "machine; `tcp://HOST:PORT`."
        ),
    ] = ()
    message_bytes_max: Annotated[
        int, Meta(ge=1024, description="One frame at the most; a peer that sends more is disconnected.")
    ] = 8 * 2**20
    buffer_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            description="What publishers sent and the broker has not stored yet; beyond it, messages are dropped. A "
            "topic counts for 2 KiB. As much again may be in requests; beyond it the answer is OVERLOADED.",
        ),
    ] = 64 * 2**20
    feed_messages_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Messages that wait in front of a slow subscriber; beyond them it misses some. One of more "
            "than 32 KiB counts for as many as fit into it: all take up to so many times 32 KiB.",
        ),
    ] = 2_000
    topics_max: Annotated[int, Meta(ge=1, description="Topics that are followed at a time.")] = 10_000
    heartbeat_ms: Annotated[int, Meta(ge=1, description="From one heartbeat of the feed to the next.")] = 1_000
    unfollow_ms: Annotated[
        int, Meta(ge=1, description="A topic that nobody listens to is not followed any more after so long.")
    ] = 10_000
    retransmit_ms: Annotated[
        int,
        Meta(ge=1, description="What a reliable subscriber has not acknowledged is sent to it again after so long."),
    ] = 3_000
    answer_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="It has so long to answer; then it is left alone for `retransmit_ms`, twice that, and so on.",
        ),
    ] = 2_000
    pause_ms_max: Annotated[int, Meta(ge=1, description="The longest such pause.")] = 60_000
    any_address: Annotated[
        bool,
        Meta(
            description="Call reliable subscribers at any TCP address that they name, not only at this machine's own."
        ),
    ] = False

    def __post_init__(self) -> None:
        """Raises SettingInvalid."""
        _check_name(self.name)


class UdpOptions(msgspec.Struct, frozen=True, kw_only=True):
    name: Name = "udp"
    packet_bytes_max: Annotated[int, Meta(ge=512, le=DATAGRAM_BYTES_MAX, description="A longer packet is refused.")] = (
        DATAGRAM_BYTES_MAX
    )
    source_packets_per_s: Annotated[
        int,
        Meta(ge=1, description="Packets from one host, and on loopback from one port; more are dropped."),
    ] = 20_000
    packets_per_s: Annotated[int, Meta(ge=1, description="Packets from all together; more are dropped.")] = 100_000
    unproved_bytes_per_s: Annotated[
        int, Meta(ge=1, description="Sent to all addresses together that have not proved themselves.")
    ] = 2**20
    plain_subscriptions_max: Annotated[int, Meta(ge=1, description="Subscriptions by plain packets.")] = 10_000
    peers_max: Annotated[
        int, Meta(ge=1, description="Publishers and subscribers of the extended form that are served at a time.")
    ] = 1000

    def __post_init__(self) -> None:
        """Raises SettingInvalid."""
        _check_name(self.name)


Options = HttpOptions | TextOptions | PushOptions | UdpOptions
OPTIONS: dict[str, type[Options]] = {
    "http": HttpOptions,
    "text": TextOptions,
    "push": PushOptions,
    "udp": UdpOptions,
}
