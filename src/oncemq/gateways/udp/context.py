"""What all parts of the gateway share: the link, the socket, the peers, the counters, and the running tasks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

from oncemq.gateways.link import Link
from oncemq.gateways.tasks import cancel, report_failure, start
from oncemq.gateways.udp.endpoint import Endpoint
from oncemq.gateways.udp.extended.put_order import WaitingBytes
from oncemq.gateways.udp.peers import Peers
from oncemq.gateways.udp.settings import (
    BUSY_SOURCE_TASKS_MAX,
    FETCHES_MAX,
    HELD_BYTES_FREE,
    HELD_BYTES_MAX,
    PACKET_TASKS_BYTES_MAX,
    PACKET_TASKS_MAX,
    SOURCE_TASKS_MAX,
    WAITING_BYTES_TOTAL_MAX,
    UdpSettings,
)
from oncemq.gateways.udp.tokens import Address, Tokens, source_of
from oncemq.protocol import errors

log = logging.getLogger("oncemq.gateways.udp")

OnFailure = Callable[[BaseException], None]

#: What peers are told when a task fails that serves them.
FAILED = errors.BrokerBug("the gateway failed; its log has the details")


def clock_ms() -> float:
    """Return a monotonic time."""
    return time.monotonic() * 1000


class UdpContext:
    def __init__(self, link: Link, endpoint: Endpoint, settings: UdpSettings) -> None:
        self.link = link
        self.settings = settings
        self.tokens = Tokens()
        self.peers = Peers(settings, clock_ms())
        self.counters: Counter[str] = Counter()
        self._endpoint = endpoint
        self.waiting_bytes = WaitingBytes(WAITING_BYTES_TOTAL_MAX)
        self._source_tasks: Counter[str] = Counter()
        self._packet_bytes = 0
        self._held_bytes = 0
        #: Limits how many deliveries fetch stored messages at a time.
        self.fetches = asyncio.Semaphore(FETCHES_MAX)
        self._packet_tasks: set[asyncio.Task[None]] = set()
        self._background_tasks: set[asyncio.Task[None]] = set()

    # Sending.

    def send(self, packet: bytes, address: Address) -> bool:
        """Send a packet. To addresses that are not validated the rate is limited. False: it was dropped."""
        if not self.peers.may_send(clock_ms(), address, len(packet)):
            self.counters["dropped_unvalidated"] += 1
            return False
        return self.send_short(packet, address)

    def send_short(self, packet: bytes, address: Address) -> bool:
        """Send a packet that is not longer than the one that it answers, to any address: a forged sender address gains
        nothing by it. False: it was dropped."""
        if not self._endpoint.send(packet, address):
            self.counters["dropped_unsent"] += 1
            return False
        self.counters["packets_out"] += 1
        return True

    # Tasks that wait for the broker.

    def is_busy(self, address: Address, size: int) -> bool:
        """Whether a packet must be dropped, because those in progress take too many tasks or bytes."""
        tasks, packet_bytes = len(self._packet_tasks), self._packet_bytes + size
        if tasks >= PACKET_TASKS_MAX or packet_bytes > PACKET_TASKS_BYTES_MAX:
            return True
        is_half_taken = tasks >= PACKET_TASKS_MAX // 2 or packet_bytes > PACKET_TASKS_BYTES_MAX // 2
        source_tasks_max = BUSY_SOURCE_TASKS_MAX if is_half_taken else SOURCE_TASKS_MAX
        return self._source_tasks.get(source_of(address), 0) >= source_tasks_max

    def run_for_packet(
        self, work: Coroutine[None, None, None], name: str, on_failure: OnFailure, address: Address, size: int = 0
    ) -> bool:
        """Start the work for one packet. If the broker is unreachable or refuses, the sender repeats the packet.
        `on_failure` tells the sender of any other failure. False: the sender's packets, or those of all senders,
        take too many tasks or bytes, and the packet is dropped."""
        source = source_of(address)
        if self.is_busy(address, size):
            work.close()
            self.counters["dropped_busy"] += 1
            return False
        self._source_tasks[source] += 1
        self._packet_bytes += size
        task = self._start(self._packet_tasks, work, name, on_failure)
        task.add_done_callback(lambda _: self._end_packet(source, size))
        return True

    def _end_packet(self, source: str, size: int) -> None:
        self._packet_bytes -= size
        self._source_tasks[source] -= 1
        if not self._source_tasks[source]:
            del self._source_tasks[source]

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count fetched messages while they wait to be sent. Raises Overloaded if there are too many."""
        counted = max(0, size - HELD_BYTES_FREE)
        if counted and self._held_bytes and self._held_bytes + counted > HELD_BYTES_MAX:
            raise errors.Overloaded("too many large messages wait for subscribers")
        self._held_bytes += counted
        try:
            yield
        finally:
            self._held_bytes -= counted

    def run_in_background(
        self, work: Coroutine[None, None, None], name: str, on_failure: OnFailure | None = None
    ) -> asyncio.Task[None]:
        """Start work that runs until it ends or the gateway stops. `on_failure` ends what depends on it."""
        return self._start(self._background_tasks, work, name, on_failure)

    def _start(
        self,
        tasks: set[asyncio.Task[None]],
        work: Coroutine[None, None, None],
        name: str,
        on_failure: OnFailure | None,
    ) -> asyncio.Task[None]:
        task = start(self._run(work), name, lambda error: self._note_failure(error, on_failure))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # It may have been cancelled before it started.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _run(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except errors.OnceMQError as error:
            self.counters["packets_failed"] += 1
            log.debug("a packet failed: %s", error)

    def _note_failure(self, error: BaseException, on_failure: OnFailure | None) -> None:
        self.counters["bugs"] += 1
        if on_failure is not None:
            on_failure(error)

    def report_failure(self, name: str, error: BaseException) -> None:
        """Count and log an unexpected exception. No packet may stop the gateway."""
        self.counters["bugs"] += 1
        report_failure(name, error)

    async def finish(self, drain_s: float) -> None:
        """Wait for the tasks of packets for at most `drain_s`, then cancel all tasks."""
        if self._packet_tasks:
            await asyncio.wait(self._packet_tasks, timeout=drain_s)
        await cancel(*self._packet_tasks, *self._background_tasks)
