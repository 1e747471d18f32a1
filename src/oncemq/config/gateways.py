"""The settings of gateways, except their addresses. The option `key` of the gateway `push` is the setting
`push.key`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncemq.protocol.errors import SettingInvalid

#: Maximum payload of a datagram over IPv4.
DATAGRAM_BYTES_MAX = 65_507


def described(description: str) -> Meta:
    return Meta(description=description)


def at_least(bound: int, description: str) -> Meta:
    return Meta(ge=bound, description=description)


SocketMode = Annotated[
    str,
    Meta(
        pattern="^0?[0-7]{3}$",
        examples=["0660"],
        description="Mode of the files of Unix sockets, in octal digits, whatever the umask is. To connect, a user "
        "needs the right to write: 0660 admits the group of the broker's process.",
    ),
]

Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        description="Name under which the broker keeps the subscriptions and registrations of this gateway, without "
        "`/`. A second gateway of the same kind at one broker needs another name.",
    ),
]


Connections = Annotated[
    int,
    at_least(
        1,
        "Maximum number of connections of each socket. Further ones are refused, and also if the process has too few "
        "descriptors left (`ulimit -n`).",
    ),
]
PeerBytes = Annotated[
    int,
    at_least(
        1,
        "Maximum bytes that one peer has sent and the gateway has not read, and maximum bytes of replies that one peer "
        "has not read. The largest message is always accepted, and 8 MiB are added for what the network holds.",
    ),
]


def _check_name(name: str) -> None:
    # Registry keys consist of it and the name of a topic, which may have the maximum length.
    if "/" in name or len(name.encode()) > 64:
        raise SettingInvalid(f"{name!r} is not a valid name of a gateway: it must have at most 64 bytes and no '/'.")


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    body_bytes_max: Annotated[int, at_least(1024, "Maximum size of the body of a request.")] = 8 * 2**20
    connections_max: Annotated[
        int,
        at_least(
            1,
            "Maximum number of requests that are being answered at the same time, and of those that wait for messages. "
            "Further ones are answered with 503. Connections that wait for a request come on top, up to 1000.",
        ),
    ] = 1000
    buffer_bytes_max: Annotated[
        int,
        at_least(
            2**20,
            "Maximum bytes in memory of large request bodies, and the same for large responses. Further ones wait; "
            "clients that then make no progress are disconnected. The same for complete bodies up to 64 KiB: further "
            "ones are answered with 503.",
        ),
    ] = 64 * 2**20
    origins: Annotated[
        tuple[str, ...],
        described("Origins whose web pages may use the gateway (CORS), such as `https://shop.example`."),
    ] = ()
    hosts: Annotated[
        tuple[str, ...], described("Host names by which the gateway may be called, in addition to those of loopback.")
    ] = ()


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    request_bytes_max: Annotated[
        int,
        at_least(
            1,
            "Maximum size of a request. A larger one is refused; a peer that sends one of twice the size "
            "is disconnected.",
        ),
    ] = 16 * 2**20
    requests_max: Annotated[
        int, at_least(1, "Maximum number of open requests of all peers. Further ones are answered with OVERLOADED.")
    ] = 10_000
    peer_requests_max: Annotated[int, at_least(1, "Maximum number of open requests of one peer.")] = 100
    requests_bytes_max: Annotated[int, at_least(1, "Maximum bytes of the open requests of all peers.")] = 64 * 2**20
    patience_ms: Annotated[
        int,
        at_least(1, "How long a peer may not read its replies before the next one is dropped and it is disconnected."),
    ] = 10_000
    connections_max: Connections = 10_000
    peer_bytes_max: PeerBytes = 32 * 2**20


class PushOptions(msgspec.Struct, frozen=True, kw_only=True):
    name: Name = "push"
    feed_listen: Annotated[
        tuple[str, ...],
        described(
            "Additional addresses of the live feed: `tcp://HOST:PORT`, or `ipc://PATH`, which is cheaper, "
            "for subscribers on this machine."
        ),
    ] = ()
    socket_mode: SocketMode = "0600"
    message_bytes_max: Annotated[
        int, at_least(1024, "Maximum size of a frame. A peer that sends a larger one is disconnected.")
    ] = 8 * 2**20
    buffer_bytes_max: Annotated[
        int,
        at_least(
            64 * 1024,
            "Maximum bytes that publishers have sent and the broker has not stored yet. Further messages "
            "are dropped. A topic counts as 2 KiB. Requests have another buffer of this size; if it is full, they are "
            "answered with OVERLOADED.",
        ),
    ] = 64 * 2**20
    feed_messages_max: Annotated[
        int,
        at_least(
            1,
            "Maximum number of messages queued for a slow subscriber. Beyond that it misses messages. "
            "Each 32 KiB of a message count as one message.",
        ),
    ] = 2_000
    topics_max: Annotated[int, at_least(1, "Maximum number of topics that are followed at the same time.")] = 10_000
    heartbeat_ms: Annotated[int, at_least(1, "How often the feed sends a heartbeat.")] = 1_000
    unfollow_ms: Annotated[int, at_least(1, "How long a topic without listeners is followed.")] = 10_000
    retransmit_ms: Annotated[
        int, at_least(1, "How long to wait for the ack of a reliable subscriber before a message is sent again.")
    ] = 3_000
    answer_ms: Annotated[
        int,
        at_least(
            1,
            "How long a reliable subscriber may take to answer. If it does not, it is not called for "
            "`retransmit_ms`, then twice that, and so on.",
        ),
    ] = 2_000
    pause_ms_max: Annotated[int, at_least(1, "Maximum length of such a pause.")] = 60_000
    connections_max: Connections = 10_000
    peer_bytes_max: PeerBytes = 32 * 2**20
    any_address: Annotated[
        bool,
        described("Call reliable subscribers at any TCP address that they give, not only at those of this machine."),
    ] = False

    def __post_init__(self) -> None:
        """Raise SettingInvalid for an invalid name."""
        _check_name(self.name)


class UdpOptions(msgspec.Struct, frozen=True, kw_only=True):
    name: Name = "udp"
    packet_bytes_max: Annotated[
        int, Meta(ge=512, le=DATAGRAM_BYTES_MAX, description="Maximum size of a packet. A larger one is refused.")
    ] = DATAGRAM_BYTES_MAX
    source_packets_per_s: Annotated[
        int,
        at_least(1, "Maximum packets per second from one host (on loopback: from one port). Further ones are dropped."),
    ] = 20_000
    packets_per_s: Annotated[
        int, at_least(1, "Maximum packets per second from all hosts together. Further ones are dropped.")
    ] = 100_000
    unvalidated_bytes_per_s: Annotated[
        int,
        at_least(1, "Maximum bytes per second sent to addresses that are not validated, all together."),
    ] = 2**20
    plain_subscriptions_max: Annotated[int, at_least(1, "Maximum number of subscriptions by plain packets.")] = 10_000
    peers_max: Annotated[
        int,
        at_least(1, "Maximum number of publishers and subscribers that use the extended protocol at the same time."),
    ] = 1000
    plain: Annotated[
        Literal["auto", "true", "false"],
        described(
            "Whether plain packets are answered. They can't prove who has sent them. `auto`: only if the gateway "
            "listens on loopback."
        ),
    ] = "auto"
    plain_user: Annotated[
        str,
        described(
            "User who does what plain packets ask for, if the broker has users: whoever reaches the gateway has the "
            "rights of this user. Empty: plain packets are refused then."
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Raise SettingInvalid for an invalid name."""
        _check_name(self.name)


Options = HttpOptions | TextOptions | PushOptions | UdpOptions
OPTIONS: dict[str, type[Options]] = {
    "http": HttpOptions,
    "text": TextOptions,
    "push": PushOptions,
    "udp": UdpOptions,
}
