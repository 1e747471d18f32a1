"""NATS JetStream: nats-server from its wheel, and nats-py. Each connection has an event loop of its own, so that it is
used like the blocking clients of the others."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType

from benchmarks.others.contract import BATCH, START_S, Consumed
from oncemq.testing.broker_process import free_port
from oncemq.tools.bench.transports import Transport

T = TypeVar("T")

_DURABLE = "reader"
_WAIT_S = 30.0
#: A stream from which nothing comes for this time has no more messages.
_EMPTY_S = 0.3
#: Publishes in flight of one connection.
_PENDING = 4 * BATCH


class Server:
    def __init__(self, folder: Path, sockets: Path, *, is_durable: bool) -> None:  # noqa: ARG002
        port = free_port()
        config = folder / "nats.conf"
        sync = "sync_interval: always" if is_durable else ""
        config.write_text(f'port: {port}\nhost: "127.0.0.1"\njetstream {{ store_dir: "{folder.resolve()}"\n{sync} }}\n')
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
        self._process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
        self.pid = self._process.pid
        self.addresses = {Transport.TCP: f"nats://127.0.0.1:{port}"}
        try:
            connection = Connection(self.addresses[Transport.TCP])
            self.name = f"NATS JetStream {connection.server_version}"
            connection.close()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Connection:
    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._readers: dict[str, Any] = {}
        self._connection: Any = self._run(self._connect(address))
        self._stream: Any = self._connection.jetstream(publish_async_max_pending=_PENDING)
        version = self._connection.connected_server_version
        self.server_version = f"{version.major}.{version.minor}.{version.patch}"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _connect(self, address: str) -> Any:
        async def ignore(_: Exception) -> None:
            """Suppress the errors that the client prints while the server starts."""

        until_s = time.monotonic() + START_S
        while True:
            try:
                return await nats.connect(address, max_reconnect_attempts=1, error_cb=ignore)
            except Exception:
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(0.1)

    def create(self, queue: str, *, is_shared: bool) -> None:
        """One consumer acks a batch with its last message. Several have to ack each message."""

        async def create() -> None:
            await self._stream.add_stream(name=queue, subjects=[queue], storage=StorageType.FILE)
            policy = AckPolicy.EXPLICIT if is_shared else AckPolicy.ALL
            config = ConsumerConfig(durable_name=_DURABLE, ack_policy=policy, max_ack_pending=100 * BATCH)
            await self._stream.add_consumer(queue, config)

        self._run(create())

    def delete(self, queue: str) -> None:
        self._run(self._stream.delete_stream(queue))

    def put(self, queue: str, value: bytes) -> None:
        self._run(self._stream.publish(queue, value))

    def put_until(self, queue: str, value: bytes, until_s: float) -> int:
        async def put() -> int:
            acks = []
            while time.perf_counter() < until_s:
                acks.append(await self._stream.publish_async(queue, value, wait_stall=_WAIT_S))
            await asyncio.gather(*acks)
            return len(acks)

        return self._run(put())

    def get(self, queue: str) -> None:
        async def get() -> None:
            reader = await self._reader(queue)
            [message] = await reader.fetch(1, timeout=_WAIT_S)
            await message.ack_sync()

        self._run(get())

    def get_until(self, queue: str, until_s: float, *, is_shared: bool) -> Consumed:
        async def get() -> Consumed:
            reader = await self._reader(queue)
            consumed = Consumed()
            while time.perf_counter() < until_s:
                try:
                    messages = await reader.fetch(BATCH, timeout=_EMPTY_S)
                except TimeoutError:
                    break
                if is_shared:
                    for message in messages[:-1]:
                        await message.ack()
                await messages[-1].ack_sync()
                consumed.add(len(messages))
            return consumed

        return self._run(get())

    async def _reader(self, queue: str) -> Any:
        reader = self._readers.get(queue)
        if reader is None:
            reader = self._readers[queue] = await self._stream.pull_subscribe_bind(_DURABLE, queue)
        return reader

    def close(self) -> None:
        self._run(self._connection.close())
        self._loop.close()
