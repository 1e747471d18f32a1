"""The process of the gateways ends with its broker."""

from __future__ import annotations

import subprocess
import sys

_TIMEOUT_S = 60.0

#: A gateway whose open requests never end.
_BUSY_GATEWAY = """
import asyncio
from oncemq.server import gateway_process

class Busy:
    addresses = ["nowhere"]
    async def start(self):
        pass
    async def stop(self):
        await asyncio.Event().wait()

gateway_process.run([Busy()], lambda _: print("started", flush=True), with_parent=True)
"""


def test_a_gateway_without_its_broker_ends_although_requests_are_open() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY_GATEWAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        # As when the broker is killed: its end of the pipe is closed.
        process.stdin.close()
        try:
            assert process.wait(_TIMEOUT_S) == 0
        finally:
            process.kill()
