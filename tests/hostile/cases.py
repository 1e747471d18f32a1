"""Which attacks are made at which listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.hostile import attacks, http_peers, native_requests, stream_peers, udp_peers
from tests.hostile.others import publish_request
from tests.hostile.servers import Servers

_MIB = 2**20
_PUT = "/v1/topics/victim/messages"
_READ_LARGE = f"/v1/topics/large/messages?bytes_max={8 * _MIB}"
_READ_SMALL = "/v1/topics/victim/messages?limit=1"
_WAIT = "/v1/topics/large/messages?position=new&wait_ms=60000"
#: More than a flood can send while it is measured.
_ENDLESS_PACKETS = 100_000_000


class Case(NamedTuple):
    name: str
    #: The process whose memory is measured: "broker", "gateway", or "secured", a broker with users and TLS.
    process: str
    #: Which peer measures its latency.
    other: str
    #: A function of a module, so that another process can import it.
    attack: Callable[..., object]
    arguments: tuple[Any, ...]
    #: What must be stored before.
    needs: str = ""
    #: Whether the latency of the other peer must stay low.
    limits_latency: bool = True


def cases(servers: Servers) -> list[Case]:
    """Return all cases. Those that leave most behind come last."""
    return [
        *_stream(servers.stream, "stream"),
        *_stream(servers.stream_unix, "stream unix"),
        *_secured(servers),
        *_zeromq(servers.zeromq, "zeromq"),
        *_zeromq(servers.zeromq_ipc, "zeromq ipc"),
        *_text(servers.text),
        *_push(servers),
        *_http(servers.broker.http_url),
        *_udp(servers.udp),
        *_heavy(servers.stream),
    ]


def _stream(url: str, name: str) -> list[Case]:
    def case(what: str, attack: Callable[..., object], *arguments: Any, needs: str = "") -> Case:
        return Case(f"{name}: {what}", "broker", "stream", attack, (url, *arguments), needs)

    read = attacks.read_request("large", 8 * _MIB)
    return [
        case("unfinished messages", stream_peers.unfinished),
        case("endless message", stream_peers.beyond_the_limit),
        case("large claims", stream_peers.large_claims),
        case("tiny chunks", stream_peers.tiny_chunks),
        case("tiny requests", stream_peers.tiny_requests),
        case("tiny frames", stream_peers.tiny_frames),
        case("unread replies", stream_peers.unread_replies, read, needs="large"),
        case("silent connections", stream_peers.silent_connections),
        case("slow openings", stream_peers.slow_openings),
        case("connection flood", stream_peers.connection_flood),
        case("malformed", stream_peers.malformed),
    ]


def _secured(servers: Servers) -> list[Case]:
    """Peers that never authenticate."""

    def case(what: str, attack: Callable[..., object], *arguments: Any) -> Case:
        return Case(f"secured: {what}", "secured", "secured", attack, (servers.secured.url, *arguments))

    return [
        case("silent connections", stream_peers.silent_connections),
        case("half handshakes", stream_peers.half_handshakes, servers.ca),
        case("slow handshakes", stream_peers.slow_handshakes, servers.ca),
        case("wrong tokens", stream_peers.wrong_tokens, servers.ca),
        case("connection flood", stream_peers.connection_flood),
        case("malformed", stream_peers.malformed),
    ]


def _zeromq(url: str, name: str) -> list[Case]:
    read = attacks.read_request("large", 8 * _MIB)
    return [
        Case(f"{name}: endless message", "broker", "zeromq", attacks.unfinished, (url, "DEALER", _MIB)),
        Case(f"{name}: tiny frames", "broker", "zeromq", attacks.tiny_frames, (url, "DEALER")),
        Case(f"{name}: unread replies", "broker", "zeromq", attacks.unread_replies, (url, "DEALER", read), "large"),
    ]


def _text(url: str) -> list[Case]:
    get = [b"", b"get large hostile"]
    return [
        Case("text: endless message", "gateway", "text", attacks.unfinished, (url, "REQ", _MIB)),
        Case("text: tiny frames", "gateway", "text", attacks.tiny_frames, (url, "REQ")),
        Case("text: unread replies", "gateway", "text", attacks.unread_replies, (url, "REQ", get), "large"),
    ]


def _push(servers: Servers) -> list[Case]:
    large, tiny, unread = attacks.unfinished, attacks.tiny_frames, attacks.unread_replies
    acks, feed = servers.acks, servers.feed
    publish = [b"", *publish_request("large", b"x")]
    return [
        Case("push publish: endless message", "gateway", "push", large, (servers.publish, "PUB", _MIB)),
        Case("push publish: tiny frames", "gateway", "push", tiny, (servers.publish, "PUB")),
        Case("push acks: endless message", "gateway", "push", large, (acks, "REQ", _MIB)),
        Case("push acks: tiny frames", "gateway", "push", tiny, (acks, "REQ")),
        Case("push acks: unread replies", "gateway", "push", unread, (acks, "REQ", publish), "large"),
        Case("push feed: endless message", "gateway", "push", large, (feed, "SUB", 1000)),
        Case("push feed: tiny frames", "gateway", "push", tiny, (feed, "SUB")),
        Case("push feed: unread feed", "gateway", "feed", attacks.unread_feed, (feed, "SUB", [b"victim"])),
    ]


def _http(url: str) -> list[Case]:
    def case(name: str, attack: Callable[..., None], *paths: str, needs: str = "") -> Case:
        return Case(f"http: {name}", "gateway", "http", attack, (url, *paths), needs)

    return [
        case("silent connections", http_peers.silent_connections),
        case("unfinished heads", http_peers.unfinished_heads),
        case("unread responses", http_peers.unread_responses, _READ_LARGE, needs="large"),
        case("unread small responses", http_peers.unread_small_responses, _READ_SMALL),
        case("slow bodies", http_peers.slow_bodies, _PUT),
        case("long polls", http_peers.long_polls, _WAIT, needs="large"),
        case("pipelined requests", http_peers.pipelined_requests, _READ_SMALL),
        case("endless heads", http_peers.endless_heads),
        case("huge claims", http_peers.huge_claims, _PUT),
    ]


def _udp(gateway: udp_peers.Address) -> list[Case]:
    def case(name: str, attack: Callable[..., object], *arguments: Any, needs: str = "") -> Case:
        return Case(f"udp: {name}", "gateway", "udp", attack, (gateway, *arguments), needs)

    return [
        # The kernel drops datagrams of others, too, and they have to be sent again.
        case("flood", udp_peers.flood, 50, _ENDLESS_PACKETS)._replace(limits_latency=False),
        case("withheld puts", udp_peers.withhold_first_put, 400, 6),
        case("no acks", udp_peers.ack_nothing, "bulky", 60, 60.0, needs="bulky"),
        case("many names", udp_peers.claim_names, 10_000),
        case("many subscriptions", udp_peers.subscribe_from_one_port, 5_000),
    ]


def _heavy(url: str) -> list[Case]:
    return [
        Case(f"native heavy: {name}", "broker", "stream", native_requests.run_endlessly, (name, url), "topics")
        for name in native_requests.ATTACKS
    ]
