"""An HTTP load generator with little overhead: it sends the same bytes repeatedly over many connections.

    python -m benchmarks.http_load HOST PORT PATH MEDIA BODY_FILE CONNECTIONS SECONDS

Each connection sends its next request when the last one is answered. Prints one line of JSON: requests, seconds, and
the durations of requests, in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import cast

import uvloop

from oncemq.tools.bench.results import quantile

_LENGTH = b"content-length: "


class Connection(asyncio.Protocol):
    def __init__(self, request: bytes, until_s: float, times_s: list[float]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._until_s = until_s
        self._times_s = times_s
        self._received = b""
        self._begun_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop only have the methods of asyncio's, not their types.
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._begun_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        if not self._is_whole():
            return
        if self._received[9:10] != b"2":
            self.over.set_exception(RuntimeError(self._received[:500].decode(errors="replace")))
            return
        self._received = b""
        now_s = time.perf_counter()
        self._times_s.append(now_s - self._begun_s)
        if now_s < self._until_s:
            self._send()
        elif not self.over.done():
            self.over.set_result(None)

    def _is_whole(self) -> bool:
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return False
        at = self._received.find(_LENGTH, 0, head) + len(_LENGTH)
        return len(self._received) >= head + 4 + int(self._received[at : self._received.find(b"\r", at)])

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(error or ConnectionError("the server hung up"))


async def load(host: str, port: int, request: bytes, connections: int, seconds: float) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    times_s: list[float] = []
    begun_s = time.perf_counter()
    made = [
        await loop.create_connection(lambda: Connection(request, begun_s + seconds, times_s), host, port)
        for _ in range(connections)
    ]
    await asyncio.gather(*(connection.over for _, connection in made))
    taken_s = time.perf_counter() - begun_s
    for transport, _ in made:
        transport.close()
    spread = {name: quantile(times_s, share) * 1000 for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))}
    return {"requests": len(times_s), "seconds": taken_s, **spread}


def request_of(host: str, port: int, path: str, media: str, body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"host: {host}:{port}", f"content-type: {media}", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def main() -> None:
    host, port, path, media, file, connections, seconds = sys.argv[1:]
    request = request_of(host, int(port), path, media, Path(file).read_bytes())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(load(host, int(port), request, int(connections), float(seconds)))))


if __name__ == "__main__":
    main()
