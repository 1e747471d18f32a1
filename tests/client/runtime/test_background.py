"""Periodic tasks, on the background thread and on an event loop's timer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import oncemq
import oncemq.aio
from oncemq.client.runtime import background
from oncemq.client.runtime.driver import now_ms
from oncemq.protocol import errors
from oncemq.protocol.commands import Health
from tests.client.event_loop import on_event_loop, wait_until

NEVER = float("inf")


class HealthTask:
    """Asks for the broker's health, three times."""

    def __init__(self, client: Any) -> None:
        self.due_ms = now_ms()
        self.answers = 0
        self._core = client._driver.core
        self._pending: Any = None

    def run(self) -> None:
        if self._pending is not None and self._pending.done:
            self.answers += 1
            self._pending = None
            if self.answers == 2:
                raise ZeroDivisionError("a mistake of the task")
        if self._pending is None:
            self._pending = self._core.ask(Health())
        self.due_ms = now_ms() + 1 if self.answers < 3 else float("inf")


def test_a_periodic_task_runs_without_a_call(request: pytest.FixtureRequest) -> None:
    never = threading.Event()
    with oncemq.connect(f"memory:{request.node.name}", linger_ms=60_000) as client:
        client.create_topic("t")
        # This starts the background thread, which then waits for a long time.
        client.put_nowait("t", b"x")
        for _ in range(2):
            task = HealthTask(client)
            client._context.add_task(task)
            assert any(task.answers == 3 or never.wait(0.005) for _ in range(4000))
            client._context.remove_task(task)
        assert task not in client._context.background._tasks


@on_event_loop
async def test_a_periodic_task_runs_on_a_loop_too() -> None:
    async with oncemq.aio.connect("memory:tasks") as client:
        for _ in range(2):
            task = HealthTask(client)
            client._context.add_task(task)
            await wait_until(lambda task=task: task.answers == 3)  # type: ignore[misc]
            client._context.remove_task(task)
        with pytest.raises(errors.TopicUnknown):
            await client.put("t", b"x")


class OneShot:
    """Is due once, when it is told."""

    def __init__(self) -> None:
        self.due_ms = NEVER
        self.has_run = threading.Event()

    def run(self) -> None:
        self.due_ms = NEVER
        self.has_run.set()


def test_a_task_that_becomes_due_earlier_wakes_the_thread(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_IDLE_WAIT_MS", 600_000.0)
    with oncemq.connect(f"memory:{request.node.name}") as client:
        task = OneShot()
        client._context.add_task(task)
        for _ in range(500):
            task.has_run.clear()
            task.due_ms = now_ms()
            client._context.add_task(task)
            assert task.has_run.wait(20)


class FailingTask:
    """Is always due, and always fails."""

    due_ms = 0.0

    def run(self) -> None:
        raise ZeroDivisionError("a mistake of the task")


class CountingTask(FailingTask):
    def __init__(self) -> None:
        self.runs = 0

    def run(self) -> None:
        self.runs += 1


def failures_in(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.getMessage().startswith("a background task failed") for record in caplog.records)


def test_a_task_that_fails_keeps_no_other_task_from_running(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_IDLE_WAIT_MS", 5.0)
    never = threading.Event()
    with oncemq.connect(f"memory:{request.node.name}") as client:
        counting = CountingTask()
        client._context.add_task(FailingTask())
        client._context.add_task(counting)
        assert any(counting.runs >= 2 or never.wait(0.005) for _ in range(4000))
    assert failures_in(caplog) >= 1


@on_event_loop
async def test_a_task_that_fails_on_a_loop_is_run_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    async with oncemq.aio.connect("memory:failing-tasks") as client:
        counting = CountingTask()
        client._context.add_task(FailingTask())
        client._context.add_task(counting)
        await wait_until(lambda: counting.runs >= 2)
        assert 1 <= failures_in(caplog) <= counting.runs + 1
