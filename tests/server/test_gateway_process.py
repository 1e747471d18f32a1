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

#: A process that starts a gateway as a broker does. The gateway itself has the other end of its pipe, so the pipe does
#: not end with this process.
_PARENT = """
import os, subprocess, sys
its_stdin, ours = os.pipe()
os.set_inheritable(ours, True)
subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=its_stdin, pass_fds=[ours]).wait()
"""


@pytest.mark.parametrize(
    ("gateway", "said"),
    [
        pytest.param(_BUSY_GATEWAY, b"started\n", id="requests are open"),
        pytest.param(_BLOCKED_GATEWAY, b"blocked\n", id="the event loop is busy"),
    ],
)
def test_a_gateway_without_its_broker_ends(gateway: str, said: bytes) -> None:
    with subprocess.Popen([sys.executable, "-c", gateway], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == said
        # As when the broker is killed: its end of the pipe is closed.
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
