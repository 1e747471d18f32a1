"""Flows, and how drivers run them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import oncemq
import oncemq.aio
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside, Until
from oncemq.protocol.commands import Health


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[oncemq.Client]:
    made = oncemq.connect(f"memory:{request.node.name}")
    yield made
    made._close(clean=False)


@pytest.fixture(params=["threads", "asyncio"])
def run(request: pytest.FixtureRequest) -> Any:
    """Runs a flow on a client of either kind."""
    url = f"memory:{request.node.name}"

    def blocking(make: Any) -> Any:
        with oncemq.connect(url) as client:
            return client._driver.run(make(client))

    async def awaited(make: Any) -> Any:
        async with oncemq.aio.connect(url) as client:
            return await client._driver.run(make(client))

    return blocking if request.param == "threads" else lambda make: asyncio.run(awaited(make))


def test_a_flow_gets_what_it_waits_for(run: Any) -> None:
    def flow(client: Any) -> Flow[list[Any]]:
        pending = client._driver.core.ask(Health())
        got = [(yield Until(pending)), pending.done, (yield pending) or pending.reply.topics]
        got.append((yield Until(lambda: False, now_ms() + 1)))
        got.append((yield Until(lambda: True, now_ms())))
        got.append((yield Until(client._driver.core.ask(Health()), now_ms() + 60_000)))
        return [*got, (yield Outside(lambda: "outside"))]

    assert run(flow) == [True, True, True, False, True, True, "outside"]


def test_an_exception_outside_the_lock_is_raised_in_the_flow(run: Any) -> None:
    def flow(client: Any) -> Flow[str]:
        try:
            yield Outside(lambda: 1 // 0)
        except ZeroDivisionError:
            return "met"
        return "missed"

    assert run(flow) == "met"


def test_an_exception_of_a_flow_reaches_its_caller(run: Any) -> None:
    def flow(client: Any) -> Flow[None]:
        yield Until(client._driver.core.ask(Health()))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(flow)


def test_code_of_the_user_may_use_the_client(client: oncemq.Client) -> None:
    client.create_topic("t", retain_ms=60_000)

    def values() -> Iterator[str]:
        for index in range(100):
            if index % 20 == 0:
                client.put("t", "between")
            yield str(index)

    assert client.put_many("t", values()).count == 100
    assert [message.text for message in client.read("t") if message.text != "between"] == [str(n) for n in range(100)]


def test_an_interrupted_caller_gives_up(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic("t", retain_ms=60_000)
    transport = client._driver.transport

    def interrupt(timeout_ms: float) -> None:
        raise KeyboardInterrupt

    puts: list[Callable[[], object]] = [
        lambda: client.put("t", "given up"),
        lambda: client.put_many("t", ["given up"] * 20),
    ]
    for put in puts:
        with monkeypatch.context() as patches:
            patches.setattr(transport, "send", lambda frames: None)
            patches.setattr(transport, "receive", lambda: None)
            patches.setattr(transport, "wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                put()
        assert client._driver.core.is_idle
    assert client.put("t", "after").offset == 0
    assert [message.text for message in client.read("t")] == ["after"]
    client.flush(timeout_s=0)


def test_an_iterator_may_be_finalized_while_the_lock_is_held(client: oncemq.Client) -> None:
    client.create_topic("kept", retain_ms=60_000)
    client.put_many("kept", [b"x" * 1000] * 2000)
    reading = client.read("kept")
    next(reading)
    with client._driver.lock:
        del reading
    client.health()
    assert client._driver.core.is_idle
