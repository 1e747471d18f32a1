"""OnceMQ: its server, and its blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import oncemq
from benchmarks.others.contract import BATCH, Consumed
from oncemq.testing.broker_process import BrokerProcess, free_port
from oncemq.tools.bench.transports import Transport, transport_of

#: Where the broker listens.
ADDRESSES = ("oncemq://127.0.0.1:{port}", "oncemq+unix://{folder}/oncemq.sock")
#: The same as kinds of transport, as results name them.
TRANSPORTS = tuple(map(transport_of, ADDRESSES))

_SUBSCRIBER = "reader"
_WAIT_S = 30.0


class Server:
    def __init__(self, folder: Path, sockets: Path, *, is_durable: bool) -> None:  # noqa: ARG002
        urls = [address.format(port=free_port(), folder=sockets) for address in ADDRESSES]
        self.addresses: dict[Transport, str] = dict(zip(TRANSPORTS, urls, strict=True))
        self._broker = BrokerProcess(folder / "data", "--log-level=warning", "--listen", urls[1])
        self._broker.url = urls[0]
        self._broker.start()
        self.pid = self._broker.pid
        self.name = f"OnceMQ {oncemq.__version__}"

    def stop(self) -> None:
        self._broker.stop()


class Connection:
    def __init__(self, address: str) -> None:
        self._client: oncemq.Client = oncemq.connect(address, tries=20)
        self._readers: dict[str, oncemq.Subscription] = {}

    def create(self, queue: str, *, is_shared: bool) -> None:
        subscribe = self._client.subscribe_shared if is_shared else self._client.subscribe
        subscribe(queue, _SUBSCRIBER).close()

    def delete(self, queue: str) -> None:
        """A topic that a subscription has created ends with its last one."""
        self._client.unsubscribe(queue, _SUBSCRIBER)

    def put(self, queue: str, value: bytes) -> None:
        self._client.put(queue, value)

    def put_until(self, queue: str, value: bytes, until_s: float) -> int:
        count = 0

        def batches() -> Iterator[repeat[bytes]]:
            nonlocal count
            while time.perf_counter() < until_s:
                count += BATCH
                yield repeat(value, BATCH)

        self._client.put_many(queue, chain.from_iterable(batches()))
        return count

    def get(self, queue: str) -> None:
        reader = self._readers.get(queue)
        if reader is None:
            reader = self._readers[queue] = self._client.subscription(queue, _SUBSCRIBER, auto_ack=False)
        message = reader.get(timeout_s=_WAIT_S)
        assert message is not None
        reader.ack(message, wait=True)

    def get_until(self, queue: str, until_s: float, *, is_shared: bool) -> Consumed:
        consumed = Consumed()
        consumed.add(self._share_until(queue, until_s) if is_shared else self._read_until(queue, until_s))
        return consumed

    def _read_until(self, queue: str, until_s: float) -> int:
        """Acks are sent with the next get, and the last one by `close`."""
        count = 0
        with self._client.subscription(queue, _SUBSCRIBER) as reader:
            while time.perf_counter() < until_s and (messages := reader.get_many(BATCH, timeout_s=0.0)):
                count += len(messages)
        return count

    def _share_until(self, queue: str, until_s: float) -> int:
        count = 0
        with self._client.shared_subscription(queue, _SUBSCRIBER, unsettled_max=10 * BATCH) as reader:
            while time.perf_counter() < until_s and (tasks := reader.take_many(BATCH, timeout_s=0.0)):
                for task in tasks:
                    task.ack()
                count += len(tasks)
            reader.flush()
        return count

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._client.close()
