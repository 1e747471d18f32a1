"""NATS JetStream for benchmarks/others.py: nats-server from its wheel, and nats-py."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.others_contract import BATCH, TOPIC
from oncemq.testing.broker_process import free_port

_START_S = 10.0


class Nats:
    def __init__(self, folder: Path, *, is_synced: bool = False) -> None:
        port = free_port()
        config = folder / "nats.conf"
        sync = "sync_interval: always" if is_synced else ""
        config.write_text(f'port: {port}\nhost: "127.0.0.1"\njetstream {{ store_dir: "{folder}"\n{sync} }}\n')
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
        self._server = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._connect(port))

    async def _connect(self, port: int) -> None:
        import nats
        from nats.js.api import StorageType

        async def ignore(_: Exception) -> None:
            """Suppress the errors that the client prints while the server starts."""

        until_s = time.monotonic() + _START_S
        while True:
            try:
                self._connection: Any = await nats.connect(
                    f"nats://127.0.0.1:{port}", max_reconnect_attempts=1, error_cb=ignore
                )
                break
            except Exception:
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(0.1)
        self._stream = self._connection.jetstream(publish_async_max_pending=4 * BATCH)
        await self._stream.add_stream(name=TOPIC, subjects=[TOPIC], storage=StorageType.FILE)

    def put_singly(self, value: bytes, count: int) -> list[float]:
        async def put() -> list[float]:
            times_s = []
            for _ in range(count):
                began_s = time.perf_counter()
                await self._stream.publish(TOPIC, value)
                times_s.append(time.perf_counter() - began_s)
            return times_s

        return self._loop.run_until_complete(put())

    def put_quickly(self, value: bytes, count: int) -> None:
        async def put() -> None:
            acks = [await self._stream.publish_async(TOPIC, value, wait_stall=30.0) for _ in range(count)]
            await asyncio.gather(*acks)

        self._loop.run_until_complete(put())

    def consume(self, count: int) -> None:
        """Consume with one ack for each batch, which is the fastest way."""
        from nats.js.api import AckPolicy, ConsumerConfig

        async def take() -> None:
            config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=10 * BATCH)
            reader = await self._stream.pull_subscribe(TOPIC, durable="reader", config=config)
            left = count
            while left:
                messages = await reader.fetch(min(BATCH, left), timeout=30)
                await messages[-1].ack_sync()
                left -= len(messages)

        self._loop.run_until_complete(take())

    def stop(self) -> None:
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()
        self._server.terminate()
        self._server.wait()
