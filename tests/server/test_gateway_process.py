"""The process of the gateways ends with its broker, and returns the memory that it has freed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from oncemq.net import kernel
from oncemq.server import gateway_process

MIB = 2**20
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


class Timer:
    """An event loop whose time passes when a test says so."""

    def call_later(self, _: float, callback: Callable[[], None]) -> Timer:
        self.expire = callback
        return self

    def cancel(self) -> None:
        self.expire = _nothing


def _nothing() -> None:
    pass


class Allocator:
    """Keeps what was freed until it is asked to return it."""

    def __init__(self) -> None:
        self.used = self.resident = 50 * MIB
        self.trims = 0

    def allocate(self, size: int) -> None:
        self.used += size
        self.resident = max(self.resident, self.used)

    def free(self, size: int) -> None:
        self.used -= size

    def return_free_memory(self) -> None:
        self.resident = self.used
        self.trims += 1


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    found = Allocator()
    monkeypatch.setattr(kernel, "return_large_blocks", _nothing)
    monkeypatch.setattr(kernel, "resident_bytes", lambda: found.resident)
    monkeypatch.setattr(kernel, "used_bytes", lambda: found.used)
    monkeypatch.setattr(kernel, "return_free_memory", found.return_free_memory)
    return found


def test_freed_memory_returns_to_the_system(allocator: Allocator) -> None:
    timer = Timer()
    memory = gateway_process._FreedMemory(timer)  # type: ignore[arg-type]
    for _ in range(2):
        # A peak that is over before anybody looks.
        allocator.allocate(300 * MIB)
        allocator.free(300 * MIB)
        timer.expire()
        assert allocator.resident == 50 * MIB
        # A peak that lasts.
        allocator.allocate(300 * MIB)
        timer.expire()
        timer.expire()
        assert allocator.resident == 350 * MIB
        allocator.free(300 * MIB)
        timer.expire()
        assert allocator.resident == 50 * MIB
    # Only when there was something to return.
    assert allocator.trims == 4
    memory.stop()
    assert timer.expire is _nothing
