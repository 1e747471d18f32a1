"""Slow and hostile peers, at a small scale: one kind at a time, in rotation, each in a process of its own.

None of them may harm the clients: the round is judged as if they were not there.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import zmq

from oncemq.protocol.stream import encode_message
from tests.hostile import http_peers
from tests.hostile.zmtp_peer import ZmtpPeer
from tests.soak.clients.client import Addresses
from tests.stream_peer import StreamPeer

_CONNECTIONS = 20
_TIMEOUT_S = 2.0
#: The listeners of ZeroMQ, and the type of socket that fits each of them.
_KINDS = {"zeromq": "DEALER", "text": "REQ", "publish": "PUB", "acks": "DEALER"}
_MORE_BYTES_MAX = 8 << 20
#: No larger than the broker allows.
_STREAM_BYTES = 4 << 20
_FLOOD_PACKETS_PER_S = 500

Attack = Callable[[Addresses, float], None]


def _port(url: str) -> tuple[str, int]:
    host, _, port = url.rpartition("/")[2].partition(":")
    return host, int(port)


def _connected(stack: ExitStack, url: str) -> socket.socket:
    return stack.enter_context(socket.create_connection(_port(url), timeout=_TIMEOUT_S))


def _until(seconds: float) -> Callable[[], bool]:
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() < until_s


def _zmq_urls(addresses: Addresses) -> dict[str, str]:
    return {field: getattr(addresses, field) for field in _KINDS}


def _claim(size: int) -> bytes:
    """Return the head of a frame of this size."""
    return b"\x02" + struct.pack(">Q", size)


def _stream_claim(size: int) -> bytes:
    """Return the head of a message of the stream transport of this size."""
    return struct.pack("<III", size, 1, size - 8)


def _stream_urls(addresses: Addresses) -> tuple[str, ...]:
    return addresses.stream, addresses.stream_unix


def _tcp_urls(addresses: Addresses) -> tuple[str, ...]:
    return (addresses.stream, *_zmq_urls(addresses).values(), addresses.feed, addresses.http)


def unfinished_frames(addresses: Addresses, seconds: float) -> None:
    """Frames that are announced, begun, and never finished."""
    with ExitStack() as stack:
        for field, url in _zmq_urls(addresses).items():
            peer = stack.enter_context(ZmtpPeer(url, _KINDS[field]))
            peer.send_raw(_claim(1 << 20) + bytes(1000), 1000)
        for url in _stream_urls(addresses):
            stack.enter_context(StreamPeer(url)).send_raw(_stream_claim(1 << 20) + bytes(1000), 1000)
        time.sleep(seconds)


def huge_claims(addresses: Addresses, seconds: float) -> None:
    """Frames that claim to have an exabyte."""
    is_time = _until(seconds)
    while is_time():
        with ExitStack() as stack:
            for field, url in _zmq_urls(addresses).items():
                peer = stack.enter_context(ZmtpPeer(url, _KINDS[field]))
                peer.send_raw(_claim(1 << 60) + bytes(1000), 1000)
            for url in _stream_urls(addresses):
                stack.enter_context(StreamPeer(url)).send_raw(_stream_claim((1 << 32) - 1) + bytes(1000), 1000)
            time.sleep(0.5)


def endless_requests(addresses: Addresses, seconds: float) -> None:
    """A request of small frames that never ends, up to a few megabytes."""
    with ExitStack() as stack:
        for field, url in _zmq_urls(addresses).items():
            peer = stack.enter_context(ZmtpPeer(url, _KINDS[field]))
            peer.send_unfinished(bytes(1000), _MORE_BYTES_MAX // 1000)
        for url in _stream_urls(addresses):
            stack.enter_context(StreamPeer(url)).send_raw(
                _stream_claim(_STREAM_BYTES) + bytes(_STREAM_BYTES - 9), _STREAM_BYTES
            )
        time.sleep(seconds)


def unread_replies(addresses: Addresses, seconds: float) -> None:
    """Requests whose replies are never read."""
    is_time = _until(seconds)
    with zmq.Context() as context, ExitStack() as stack:
        dealers = [_dealer(context, url) for url in (addresses.zeromq, addresses.text, addresses.acks)]
        peers = [stack.enter_context(StreamPeer(url, receive_buffer_bytes=4096)) for url in _stream_urls(addresses)]
        request = b"".join(encode_message([b"no request"]))
        while is_time():
            for peer in peers:
                _sent(peer.socket, request)
            for dealer in dealers:
                if dealer.poll(0, zmq.POLLOUT):
                    dealer.send_multipart([b"", b"get nothing nobody"])
            time.sleep(0.005)
        for dealer in dealers:
            dealer.close(0)


def _dealer(context: Any, url: str) -> Any:
    dealer = context.socket(zmq.DEALER)
    for option, value in ((zmq.RCVHWM, 1), (zmq.RCVBUF, 4096), (zmq.SNDHWM, 100), (zmq.LINGER, 0)):
        dealer.setsockopt(option, value)
    dealer.connect(url)
    return dealer


def unread_feed(addresses: Addresses, seconds: float) -> None:
    """Subscribers of the live feed that never read."""
    with zmq.Context() as context:
        sockets = [context.socket(zmq.SUB) for _ in range(4)]
        for each in sockets:
            each.setsockopt(zmq.RCVHWM, 1)
            each.setsockopt(zmq.RCVBUF, 4096)
            each.setsockopt(zmq.SUBSCRIBE, b"")
            each.connect(addresses.feed)
        time.sleep(seconds)
        for each in sockets:
            each.close(0)


def _http(work: Callable[..., None], *path: str, count: int = _CONNECTIONS) -> Attack:
    """Return an attack on the HTTP gateway, at a small scale."""
    return lambda addresses, seconds: work(addresses.http, *path, count=count, seconds=seconds)


def idle_connections(addresses: Addresses, seconds: float) -> None:
    """Connections to every TCP listener that say nothing."""
    with ExitStack() as stack:
        for url in _tcp_urls(addresses) * _CONNECTIONS:
            _connected(stack, url)
        time.sleep(seconds)


def garbage(addresses: Addresses, seconds: float) -> None:
    """Random bytes on every TCP listener."""
    is_time = _until(seconds)
    while is_time():
        with ExitStack() as stack:
            for url in _tcp_urls(addresses):
                _sent(_connected(stack, url), os.urandom(1000))
            time.sleep(0.2)


def datagram_flood(addresses: Addresses, seconds: float) -> None:
    """Random and damaged datagrams."""
    is_time = _until(seconds)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        while is_time():
            for kind in range(10):
                peer.sendto(b"\xf1" + bytes([kind]) + os.urandom(60), addresses.udp)
            time.sleep(10 / _FLOOD_PACKETS_PER_S)


def _sent(peer: socket.socket, data: bytes) -> bool:
    """Send what fits. Returns False if the other side has closed the connection."""
    try:
        if select.select([], [peer], [], 0)[1]:
            peer.send(data)
    except OSError:
        return False
    return True


ATTACKS: dict[str, Attack] = {
    "unfinished frames": unfinished_frames,
    "huge claims": huge_claims,
    "endless requests": endless_requests,
    "unread replies": unread_replies,
    "unread feed": unread_feed,
    "slow heads": _http(http_peers.unfinished_heads),
    "endless heads": _http(http_peers.endless_heads, count=2),
    "slow bodies": _http(http_peers.slow_bodies, "/v1/topics/nothing/messages", count=5),
    "huge bodies": _http(http_peers.huge_claims, "/v1/topics/nothing/messages", count=2),
    "unread responses": _http(http_peers.unread_responses, "/openapi.json", count=5),
    "pipelined requests": _http(http_peers.pipelined_requests, "/v1/health", count=2),
    "idle connections": idle_connections,
    "garbage": garbage,
    "datagram flood": datagram_flood,
}


def attack(kind: str, addresses: Addresses, seconds: float) -> int:
    """Run one attack. The server may close a connection, or be away: both end it."""
    try:
        ATTACKS[kind](addresses, seconds)
    except OSError:
        return 0
    return 0


def hold_connections(addresses: Addresses) -> int:
    """Hold connections until it is killed: a leak on purpose."""
    with ExitStack() as stack:
        for _ in range(_CONNECTIONS):
            stack.enter_context(ZmtpPeer(addresses.zeromq))
            stack.enter_context(StreamPeer(addresses.stream))
        while True:
            time.sleep(1)
