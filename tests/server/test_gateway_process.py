"""The process of the gateways ends with its broker."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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

#: A gateway whose event loop is in the middle of something long.
_BLOCKED_GATEWAY = """
import asyncio, time
from oncemq.server import gateway_process

class Blocked:
    addresses = ["nowhere"]
    async def start(self):
        asyncio.get_running_loop().call_later(0.05, self.block)
    def block(self):
        print("blocked", flush=True)
        time.sleep(3600)
    async def stop(self):
        pass

gateway_process.run([Blocked()], lambda _: None, with_parent=True)
"""

#: A process that starts a gateway as a broker does, and keeps both ends of its pipe: only its own end can end the gateway.
_PARENT = """
import os, subprocess, sys
its_stdin, ours = os.pipe()
os.set_inheritable(ours, True)
subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=its_stdin, pass_fds=[ours]).wait()
"""


def test_a_gateway_that_is_busy_ends_with_its_broker_too() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BLOCKED_GATEWAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"blocked\n"
        process.stdin.close()
        try:
            assert process.wait(_TIMEOUT_S) == 0
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this signal")
def test_the_kernel_ends_a_gateway_whose_broker_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT, _BLOCKED_GATEWAY], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"blocked\n"
        parent.send_signal(signal.SIGKILL)
        # The gateway has the other end of this pipe: it is closed when the gateway has ended.
        assert parent.stdout.read() == b""


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
