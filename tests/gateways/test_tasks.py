"""Tasks of gateways: no failure is silent."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest

from oncemq.gateways import tasks
from oncemq.server.gateway_process import run


async def fail() -> None:
    raise RuntimeError("planted")


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_task_that_fails_is_logged_counted_and_told_to_its_owner(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []

    async def main() -> None:
        await asyncio.wait([tasks.start(fail(), "a planted task", told.append)])
        await asyncio.sleep(0)

    before = tasks.failures["a planted task"]
    asyncio.run(main())
    assert tasks.failures["a planted task"] == before + 1
    assert [str(error) for error in told] == ["planted"]
    [record] = caplog.records
    assert record.getMessage().startswith("a planted task failed")
    assert record.exc_info is not None
    assert record.exc_info[1] is told[0]


def test_a_task_that_is_cancelled_has_not_failed() -> None:
    told: list[BaseException] = []

    async def main() -> None:
        await tasks.cancel(tasks.start(wait_for_ever(), "a cancelled task", told.append))

    asyncio.run(main())
    assert told == []
    assert tasks.failures["a cancelled task"] == 0


def test_work_that_must_not_end_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_PAUSE_S", 0)
    runs = []

    async def work() -> None:
        runs.append(1)
        if len(runs) < 3:
            await fail()

    asyncio.run(tasks.keep_running(work, "stubborn work"))
    assert len(runs) == 3
    assert tasks.failures["stubborn work"] == 2


class FailingGateway:
    """Implements `gateways.contract.Gateway`."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.on_failure: Callable[[], None] = lambda: None

    async def start(self) -> None:
        asyncio.get_running_loop().call_soon(self.on_failure)

    async def stop(self) -> None:
        self.addresses.append("stopped")


def test_a_gateway_that_can_not_continue_ends_its_process_with_an_error() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    gateway = FailingGateway()
    try:
        assert run([gateway], lambda _: None) == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert gateway.addresses == ["stopped"]


def test_a_callback_that_fails_is_counted() -> None:
    class Bystander(FailingGateway):
        async def start(self) -> None:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: asyncio.get_running_loop().call_soon(self.on_failure))
            loop.call_soon(lambda: 1 // 0)

    before = tasks.failures["a callback of the event loop"]
    run([Bystander()], lambda _: None)
    assert tasks.failures["a callback of the event loop"] == before + 1
