"""The listeners of a broker, in one poll loop: the stream transport, and ZeroMQ if one of the addresses needs it."""

from __future__ import annotations

import itertools
import logging
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from oncemq.broker.network import ARRIVAL_BYTES_MAX, ARRIVALS_MAX, Arrival
from oncemq.config.addresses import is_stream
from oncemq.config.settings import ServeSettings
from oncemq.net.counters import Counters
from oncemq.net.curve import CurveServerKeys
from oncemq.net.gate import Gate
from oncemq.net.policy import ListenerLimits
from oncemq.net.poller import READABLE
from oncemq.net.stream.listener import PEER_PREFIX, StreamListener
from oncemq.net.system import System
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import REQUEST_HEADER_BYTES_MAX

if TYPE_CHECKING:
    from oncemq.broker.network.zeromq import ZmqListener

log = logging.getLogger("oncemq.broker")

#: Sizes and frame counts of a message, in addition to its frames.
_FRAMING_BYTES = 64 * 1024
#: How often a round looks for more of a large request. Otherwise one that arrives in tiny parts would make it endless.
_LOOKS_MAX = 64


class Listeners:
    """The broker's network."""

    def __init__(
        self,
        settings: ServeSettings,
        addresses: Sequence[str] = (),
        system: System | None = None,
        gate: Gate | None = None,
        tls: ssl.SSLContext | None = None,
        curve: CurveServerKeys | None = None,
    ) -> None:
        """Listen at these addresses, instead of those of the settings. The `gate` admits connections; without one,
        everybody may connect. With `tls`, stream connections over TCP are encrypted; with `curve`, those of ZeroMQ.
        Raise ListenFailed, or SettingInvalid if there are users and ZeroMQ has no keys."""
        self.counters = Counters(log)
        system = system or System()
        self._poller = system.poller()
        limits = _limits(settings)
        self._stream = StreamListener(
            self._poller, "the broker", limits, _largest_bytes(settings) + _FRAMING_BYTES, self.counters, system, gate
        )
        self._stream.use_tls(tls)
        self._busy_poll_s = settings.busy_poll_us / 1_000_000
        self._now_s = system.now_s
        self._zmq: ZmqListener | None = None
        self._zmq_descriptors: list[int] = []
        #: Ready connections that a round did not get to. They come first in the next one.
        self._left: list[tuple[int, int]] = []
        #: As bound: port `*` or 0 is replaced by the real one.
        self.addresses: list[str] = []
        try:
            for address in addresses or settings.listen:
                if not is_stream(address) and self._zmq is None:
                    self._open_zmq(settings, limits, gate, curve)
                listener = self._stream if is_stream(address) or self._zmq is None else self._zmq
                self.addresses.append(listener.listen(address, settings.socket_mode))
        except BaseException:
            self.close()
            raise

    def _open_zmq(
        self, settings: ServeSettings, limits: ListenerLimits, gate: Gate | None, curve: CurveServerKeys | None
    ) -> None:
        # ZeroMQ takes memory and time to load.
        from oncemq.broker.network.zeromq import ZmqListener

        frame_bytes_max = max(settings.batch_bytes_max, REQUEST_HEADER_BYTES_MAX)
        self._zmq = ZmqListener(limits, frame_bytes_max, self.counters, curve=curve, gate=gate)
        self._zmq_descriptors = self._zmq.descriptors
        for descriptor in self._zmq_descriptors:
            self._poller.watch(descriptor, READABLE)

    def take(self, wait_ms: int) -> list[Arrival]:
        arrivals: list[Arrival] = []
        zmq = self._zmq
        stream = self._stream
        ready, self._left = self._left, []
        is_rest = bool(ready)
        if not is_rest:
            if zmq is not None:
                if zmq.answer_logins():
                    wait_ms = 0
                if zmq.is_readable:
                    zmq.take(arrivals)
                    wait_ms = 0
            waiting = stream.waiting
            ready = self._wait(0 if waiting else wait_ms)
            if waiting:
                # They have had a turn with as many requests as a round takes.
                ready = _merged(ready, waiting)
            # A rest is older than the round before it, which may have waited long for the disk.
            stream.check(ready)
        left_bytes = ARRIVAL_BYTES_MAX

        def arrived(peer: bytes, frames: list[Frame]) -> None:
            nonlocal left_bytes
            arrivals.append((peer, frames))
            left_bytes -= sum(map(len, frames))

        looks = 0
        while ready:
            sending: set[bytes] = set()
            looks += 1
            for index, (descriptor, events) in enumerate(ready):
                if len(arrivals) >= ARRIVALS_MAX or left_bytes <= 0:
                    self._left = ready[index:]
                    return arrivals
                if descriptor in self._zmq_descriptors:
                    if zmq is not None:
                        zmq.answer_logins()
                        if zmq.is_readable:
                            zmq.take(arrivals)
                elif peer := stream.serve(descriptor, events, arrived):
                    sending.add(peer)
            # A second look costs a system call, and complete requests would wait for it: it is for a peer with large
            # requests that is alone, so that several of them share a sync. After a rest, all others come first.
            looks_again = sending and not is_rest and looks < _LOOKS_MAX and _are_from(sending, arrivals)
            ready = self._poller.wait(0) if looks_again else []
        return arrivals

    def _wait(self, wait_ms: int) -> list[tuple[int, int]]:
        if self._busy_poll_s and wait_ms:
            until_s = self._now_s() + min(self._busy_poll_s, wait_ms / 1000)
            while self._now_s() < until_s:
                if ready := self._poller.wait(0):
                    return ready
        return self._poller.wait(wait_ms)

    def when_gone(self, call: Callable[[bytes], None]) -> None:
        # ZeroMQ does not tell.
        self._stream.when_gone = call

    def caller_of(self, peer: bytes) -> str:
        if peer.startswith(PEER_PREFIX):
            return self._stream.caller_of(peer)
        return self._zmq.caller_of(peer) if self._zmq is not None else ""

    def is_reading(self, peer: bytes) -> bool:
        if peer.startswith(PEER_PREFIX):
            return self._stream.is_reading(peer)
        return self._zmq is not None and self._zmq.is_reading(peer)

    def use_tls(self, context: ssl.SSLContext | None) -> None:
        """From now on, new stream connections over TCP use this context: its certificate was replaced."""
        self._stream.use_tls(context)

    def drop_invalid(self) -> None:
        """Users have changed: disconnect the peers whose credentials are not valid any more."""
        self._stream.drop_invalid()
        if self._zmq is not None:
            self._zmq.drop_invalid()

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        if peer.startswith(PEER_PREFIX):
            self._stream.send(peer, frames)
        elif self._zmq is not None:
            self._zmq.send(peer, frames)

    @contextmanager
    def own_growth(self) -> Iterator[None]:
        """Memory that the process takes in this block is no concern of its peers."""
        with self._zmq.own_growth() if self._zmq is not None else nullcontext():
            yield

    def set_held_bytes(self, held_bytes: Callable[[], int]) -> None:
        """`held_bytes` returns the size of the requests that were taken and wait."""
        if self._zmq is not None:
            self._zmq.set_held_bytes(lambda: held_bytes() + self._stream.buffered_bytes)

    def close(self) -> None:
        self._stream.close()
        if self._zmq is not None:
            self._zmq.close()
            self._zmq = None
        self._poller.close()


def _are_from(peers: set[bytes], arrivals: Sequence[Arrival]) -> bool:
    """Return whether all requests are from a single one of these peers. They are few, because they are large."""
    return not arrivals or (len(peers) == 1 and all(peer in peers for peer, _ in arrivals))


def _merged(*polls: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what several polls have found, each descriptor once."""
    found: dict[int, int] = {}
    for descriptor, events in itertools.chain(*polls):
        found[descriptor] = found.get(descriptor, 0) | events
    return list(found.items())


def _largest_bytes(settings: ServeSettings) -> int:
    return settings.batch_bytes_max + REQUEST_HEADER_BYTES_MAX


def _limits(settings: ServeSettings) -> ListenerLimits:
    largest_bytes = _largest_bytes(settings)
    return ListenerLimits(
        connections_max=settings.connections_max,
        peer_bytes_max=max(settings.peer_bytes_max, largest_bytes),
        peers_bytes_max=max(settings.peers_bytes_max, largest_bytes),
        write_timeout_s=settings.write_timeout_ms / 1000,
    )
