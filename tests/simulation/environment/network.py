"""A network that loses, duplicates, reorders, delays and damages packets, and cuts off clients. Some clients have slow
links, also when everything has healed.

Clients send requests and get replies by a callback. A client that reconnects is a new peer: packets to the old peer are
lost.
"""

from __future__ import annotations

from collections.abc import Callable

from oncemq.client.core.commands.wire import LOCAL, WireBytes
from oncemq.protocol.frames import Frame
from tests.simulation.environment.internet import Internet
from tests.simulation.environment.listener import Listener
from tests.simulation.environment.slow_link import SlowLink
from tests.simulation.environment.world import World

Receive = Callable[[list[Frame]], None]


class SimNetwork:
    def __init__(self, world: World, addresses: int = 1) -> None:
        self._world = world
        self._random = world.random("network")
        self._receivers: dict[bytes, Receive] = {}
        self._listener_of: dict[bytes, Listener] = {}
        self._cut_off: dict[bytes, int] = {}
        #: (requests, replies)
        self._slow_links: dict[bytes, tuple[SlowLink, SlowLink]] = {}
        self._peers = 0
        self.internet = Internet(world)
        self.listeners = [Listener(world, self.internet, number, self._reply) for number in range(addresses)]

    # Called by clients.

    def connect(self, receive: Receive, turn: int = 0, bytes_per_ms: int = 0, caller: str = "") -> bytes:
        """Connect to the address with index `turn`, modulo the number of addresses. `bytes_per_ms` 0: a fast link.
        `caller`: who has logged in, if there are users."""
        self._peers += 1
        peer = self._peers.to_bytes(4, "big")
        self._receivers[peer] = receive
        listener = self._listener_of[peer] = self.listeners[turn % len(self.listeners)]
        listener.callers[peer] = caller
        if bytes_per_ms:
            self._slow_links[peer] = SlowLink(self._world, bytes_per_ms), SlowLink(self._world, bytes_per_ms)
        return peer

    def wire_bytes(self, peer: bytes) -> WireBytes:
        """What the client's system would count."""
        if peer not in self._slow_links:
            return LOCAL
        requests, replies = self._slow_links[peer]
        return WireBytes(requests.transferred_bytes, replies.transferred_bytes)

    def disconnect(self, peer: bytes) -> None:
        self._receivers.pop(peer, None)

    def cut_off(self, peer: bytes, duration_ms: int) -> None:
        self._cut_off[peer] = self._world.now_ms + duration_ms
        self._world.tally["network: partition"] += 1

    def request(self, peer: bytes, frames: list[Frame]) -> None:
        self._carry(peer, frames, self._arrive)

    def _arrive(self, peer: bytes, frames: list[Frame]) -> None:
        listener = self._listener_of[peer]
        if listener.arrived():
            listener.inbox.append((peer, frames))
        else:
            self._world.tally["network: no broker"] += 1

    def _reply(self, peer: bytes, frames: list[Frame]) -> None:
        self._carry(peer, frames, self._deliver)

    def _deliver(self, peer: bytes, frames: list[Frame]) -> None:
        receive = self._receivers.get(peer)
        if receive is not None:
            receive(frames)

    # Transport.

    def _carry(self, peer: bytes, frames: list[Frame], arrive: Callable[[bytes, list[Frame]], None]) -> None:
        world = self._world
        random = self._random.random
        slow_link = self._slow_links.get(peer)
        if slow_link is not None:
            delay_ms = slow_link[arrive == self._deliver].carry(frames)
            world.tally["network: slow"] += 1
            world.after(1 + delay_ms, lambda: self._arrive_slowly(peer, frames, arrive))
            return
        if world.healed:
            world.after(1 + int(random() * 2), lambda: arrive(peer, frames))
            return
        faults = world.faults
        if self._cut_off.get(peer, 0) > world.now_ms:
            world.tally["network: cut off"] += 1
            return
        if random() < faults.loss:
            world.tally["network: lost"] += 1
            return
        if random() < faults.duplication:
            world.tally["network: duplicated"] += 1
            self._deliver_later(peer, frames, arrive)
        self._deliver_later(peer, frames, arrive)

    def _arrive_slowly(self, peer: bytes, frames: list[Frame], arrive: Callable[[bytes, list[Frame]], None]) -> None:
        """A stream loses nothing, except what was under way when its client reconnected."""
        if peer in self._receivers:
            arrive(peer, frames)

    def _deliver_later(self, peer: bytes, frames: list[Frame], arrive: Callable[[bytes, list[Frame]], None]) -> None:
        world = self._world
        random = self._random.random
        delay_ms = 1 + int(random() * 4)
        if random() < world.faults.reordering:
            world.tally["network: reordered"] += 1
            delay_ms += int(random() ** 3 * 400)
        if len(frames) > 1 and random() < world.faults.damage:
            world.tally["network: damaged"] += 1
            frames = self._damage(frames)
        world.after(delay_ms, lambda: arrive(peer, frames))

    def _damage(self, frames: list[Frame]) -> list[Frame]:
        frame = self._random.randrange(1, len(frames))
        damaged = bytearray(frames[frame])
        damaged[self._random.randrange(len(damaged))] ^= 1 << self._random.randrange(8)
        return [*frames[:frame], bytes(damaged), *frames[frame + 1 :]]
