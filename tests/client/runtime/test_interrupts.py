"""A signal handler that raises, after any call that the client makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import oncemq


class Alarm(BaseException):
    pass


class InterruptedLock:
    """A driver's lock. After its next release, or acquire, the handler raises."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._is_owned = lock._is_owned
        self._release_save, self._acquire_restore = lock._release_save, lock._acquire_restore
        self.raises_after = ""

    def release(self) -> None:
        self._lock.release()
        self._raise_if_due("release")

    def acquire(self) -> None:
        self._lock.acquire()
        self._raise_if_due("acquire")

    def _raise_if_due(self, after: str) -> None:
        if self.raises_after == after:
            self.raises_after = ""
            raise Alarm

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[oncemq.Client]:
    made = oncemq.connect(f"memory:{request.node.name}")
    made.subscribe("t", "s")
    made.put_many("t", map(str, range(4)))
    yield made
    made._close(clean=False)


def in_another_thread(call: Callable[[], object]) -> object:
    """Return what the call returns or raises."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    return found[0]


@pytest.mark.parametrize("after", ["release", "acquire"])
def test_after_an_interrupt_at_the_lock_the_client_can_be_used_and_closed(client: oncemq.Client, after: str) -> None:
    driver = client._driver
    lock = driver.lock = InterruptedLock(driver.lock)  # type: ignore[assignment]
    driver._settled = threading.Condition(lock)  # type: ignore[arg-type]
    subscription = client.subscription("t", "s", auto_ack=False)
    assert len(subscription.get_many(10)) == 4
    lock.raises_after = after
    with pytest.raises(Alarm):
        subscription.get(timeout_s=1)
    assert not lock.raises_after
    assert driver._poller is None
    assert client.put("t", "more").offset == 4
    assert in_another_thread(lambda: client.put("t", "and more").offset) == 5
    client.close()


def test_an_interrupt_inside_the_core_closes_the_client(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise Alarm

    with monkeypatch.context() as patched:
        patched.setattr(client._driver.core, "receive", interrupt)
        with pytest.raises(Alarm):
            client.put("t", "more")
    with pytest.raises(oncemq.ClientClosed, match="connect again"):
        client.put("t", "more")
    client.close()


def test_a_thread_can_claim_again_after_an_interrupted_claim(client: oncemq.Client) -> None:
    subscription = client.subscription("t", "s")
    workers = client.subscribe_shared("t", "workers", start="earliest")
    for guard, calls in (
        (subscription.consumer.guard, (subscription.get, subscription.get_many, subscription.ack)),
        (workers.consumer.guard, (workers.take, workers.take_many, workers.flush)),
    ):
        for call in calls:
            # Interrupted before its `try`.
            guard.enter()
            error = in_another_thread(call)
            assert isinstance(error, RuntimeError)
            assert "another thread" in str(error)
            call()
            assert not isinstance(in_another_thread(call), Exception)


def test_a_filter_can_not_use_its_own_subscription(client: oncemq.Client) -> None:
    def wanted(_: oncemq.Message) -> bool:
        assert subscription.get() is None
        return True

    subscription = client.subscription("t", "s", filter=wanted)
    with pytest.raises(RuntimeError, match="at a time"):
        subscription.get()


def test_a_flow_that_a_traceback_keeps_alive_has_ended(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes between two steps of the flow, so that it is not raised in the flow."""
    subscription = client.subscription("t", "s", auto_ack=False)
    assert len(subscription.get_many(10)) == 4

    def interrupt(*_: object) -> None:
        raise Alarm

    with monkeypatch.context() as patch:
        patch.setattr(client._driver, "_wait_for", interrupt)
        patch.setattr(client._driver, "_regain_lock", interrupt)
        with pytest.raises(Alarm) as caught:
            subscription.get_many(1)
    assert subscription.get_many(1) == []
    assert caught.value.__traceback__ is not None


def test_a_signal_handler_can_not_use_the_client_that_it_interrupts(client: oncemq.Client) -> None:
    with client._driver.lock, pytest.raises(RuntimeError, match="inside another call"):
        client.put("t", "from a handler")
