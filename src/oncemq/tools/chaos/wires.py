"""How the proxy of a run is connected: to clients on one side, and to the broker with one connection for each of them.

    client ──▶ listener  [ faults ]  connection ──▶ broker

A packet is a whole request or a whole reply.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import zmq

from oncemq.config.addresses import is_stream, split_address
from oncemq.net.counters import Counters
from oncemq.net.policy import ListenerLimits
from oncemq.net.poller import READABLE, WRITABLE, Poller
from oncemq.net.stream.connection import StreamConnection
from oncemq.net.stream.listener import StreamListener
from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import StreamBroken, StreamReader, encode_opening

_QUEUE_MAX = 100_000
#: A ZeroMQ connection to the broker is closed after this time without a request; a client that continues gets another.
_IDLE_S = 10.0
_SIZE_MAX = 2**31
_LIMITS = ListenerLimits(connections_max=1_000, peer_bytes_max=2**28, peers_bytes_max=2**30, write_timeout_s=60.0)


class Packet(NamedTuple):
    to_broker: bool
    client: bytes
    frames: list[bytes]


class Wire(Protocol):
    def receive(self, wait_ms: int) -> list[Packet]:
        """Return what has arrived. If there is nothing, wait for at most `wait_ms`."""

    def send(self, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        """Send a packet on. If there is no connection, it is lost: clients send again."""

    def cut(self, client: bytes) -> None:
        """End the connection of a client, if the transport would end it when it loses a packet."""


def open_wire(url: str, broker_url: str) -> Wire:
    """Return a wire for clients that connect to `url`, with the transport of that address."""
    return StreamWire(url, broker_url) if is_stream(url) else ZmqWire(url, broker_url)


class StreamWire:
    """The stream transport. If one of the two connections of a client ends, so does the other one."""

    def __init__(self, url: str, broker_url: str) -> None:
        self._broker = split_address(broker_url)
        self._poller = Poller()
        counters = Counters(logging.getLogger("oncemq.chaos"))
        self._listener = StreamListener(self._poller, "the proxy", _LIMITS, _SIZE_MAX, counters)
        self._listener.listen(url, "0600")
        #: The connections to the broker, by client and by descriptor.
        self._backs: dict[bytes, StreamConnection] = {}
        self._by_descriptor: dict[int, StreamConnection] = {}

    def receive(self, wait_ms: int) -> list[Packet]:
        packets: list[Packet] = []
        for descriptor, events in self._poller.wait(wait_ms):
            back = self._by_descriptor.get(descriptor)
            if back is not None:
                self._serve_back(back, events, packets)
            else:
                self._listener.serve(
                    descriptor,
                    events,
                    lambda client, frames: packets.append(Packet(True, client, [bytes(frame) for frame in frames])),
                )
        for client in [client for client in self._backs if not self._listener.is_connected(client)]:
            self._close_back(client)
        self._listener.check()
        return packets

    def _serve_back(self, back: StreamConnection, events: int, packets: list[Packet]) -> None:
        try:
            if events & WRITABLE and back.send_rest():
                self._poller.change(back.descriptor, READABLE)
            if events & ~WRITABLE and not back.receive():
                raise ConnectionResetError
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, StreamBroken):
            self.cut(back.peer)
            return
        while (frames := back.reader.next()) is not None:
            packets.append(Packet(False, back.peer, [bytes(frame) for frame in frames]))

    def send(self, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        if not to_broker:
            self._listener.send(client, frames)
            return
        try:
            back = self._backs.get(client) or self._open_back(client)
            self._send_back(back, frames)
        except OSError:
            self.cut(client)

    def _open_back(self, client: bytes) -> StreamConnection:
        sock = socket.create_connection(self._broker, timeout=1.0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        back = StreamConnection(sock, client, _SIZE_MAX, time.monotonic())
        # A reply may have more frames than a request.
        back.reader = StreamReader(_SIZE_MAX, _SIZE_MAX, as_bytes=True)
        self._backs[client] = self._by_descriptor[back.descriptor] = back
        self._poller.watch(back.descriptor, READABLE)
        back.send_buffers([encode_opening({})])
        return back

    def _send_back(self, back: StreamConnection, frames: Sequence[Frame]) -> None:
        back.send(frames)
        if back.outgoing_bytes:
            self._poller.change(back.descriptor, READABLE | WRITABLE)

    def _close_back(self, client: bytes) -> None:
        back = self._backs.pop(client, None)
        if back is not None:
            self._poller.ignore(back.descriptor)
            del self._by_descriptor[back.descriptor]
            back.socket.close()

    def cut(self, client: bytes) -> None:
        self._close_back(client)
        self._listener.disconnect(client)


class ZmqWire:
    """ZeroMQ: a ROUTER for the clients, and a DEALER for each of them."""

    def __init__(self, url: str, broker_url: str) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._front = self._socket(zmq.ROUTER)
        self._front.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._front.bind(url)
        self._broker_url = broker_url
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        #: By the client's connection.
        self._backs: dict[bytes, Any] = {}
        self._clients: dict[Any, bytes] = {}
        self._active_s: dict[bytes, float] = {}

    def receive(self, wait_ms: int) -> list[Packet]:
        packets: list[Packet] = []
        for ready, _ in self._poller.poll(wait_ms):
            with suppress(zmq.Again):
                while True:
                    packets.append(self._packet(ready, ready.recv_multipart(zmq.NOBLOCK)))
        self._close_idle()
        return packets

    def _packet(self, source: Any, frames: list[bytes]) -> Packet:
        if source is self._front:
            return Packet(True, frames[0], frames[1:])
        return Packet(False, self._clients[source], frames)

    def send(self, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        with suppress(zmq.Again, zmq.ZMQError):
            if to_broker:
                self._back(client).send_multipart(frames, zmq.NOBLOCK)
            else:
                self._front.send_multipart([client, *frames], zmq.NOBLOCK)

    def _back(self, client: bytes) -> Any:
        self._active_s[client] = time.monotonic()
        if client not in self._backs:
            back = self._socket(zmq.DEALER)
            back.setsockopt(zmq.RECONNECT_IVL, 20)
            back.connect(self._broker_url)
            self._poller.register(back, zmq.POLLIN)
            self._backs[client], self._clients[back] = back, client
        return self._backs[client]

    def _close_idle(self) -> None:
        before_s = time.monotonic() - _IDLE_S
        for client in [client for client, at_s in self._active_s.items() if at_s < before_s]:
            del self._active_s[client]
            back = self._backs.pop(client)
            del self._clients[back]
            self._poller.unregister(back)
            back.close(0)

    def _socket(self, kind: int) -> Any:
        opened = self._context.socket(kind)
        opened.setsockopt(zmq.LINGER, 0)
        opened.setsockopt(zmq.SNDHWM, _QUEUE_MAX)
        opened.setsockopt(zmq.RCVHWM, _QUEUE_MAX)
        return opened

    def cut(self, client: bytes) -> None:
        """ZeroMQ hides connections."""
