"""A single put of a blocking client, on its short path and where that can't be used."""

from __future__ import annotations

import threading

import pytest

import oncemq
from oncemq.client.runtime.stream import StreamTransport
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.runtime.transport import EmbeddedTransport
from oncemq.testing.broker_process import BrokerProcess


@pytest.fixture
def client(broker_process: BrokerProcess) -> oncemq.Client:
    broker_process.start()
    client = broker_process.connect()
    client.create_topic("orders", retain_ms=3_600_000)
    return client


def _values(client: oncemq.Client) -> list[str]:
    return [message.text for message in client.read("orders")]


def test_it_carries_key_headers_and_times(client: oncemq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.put("orders", "first")
    monkeypatch.setattr(ThreadDriver, "run", None)
    receipt = client.put("orders", "one pizza", key="table-7", headers={"a": "b"}, ttl_s=60)
    monkeypatch.undo()
    assert receipt.offset == 1
    message = list(client.read("orders"))[1]
    assert (message.text, message.key, message.headers) == ("one pizza", b"table-7", {"a": b"b"})
    client.close()


def test_it_comes_after_what_was_put_without_waiting(client: oncemq.Client) -> None:
    for index in range(30):
        client.put_nowait("orders", f"{3 * index}")
        client.put_nowait("orders", f"{3 * index + 1}")
        client.put("orders", f"{3 * index + 2}")
    assert _values(client) == [str(index) for index in range(90)]
    client.close()


def test_threads_that_share_a_client_put_each_message_once(client: oncemq.Client) -> None:
    def put(name: str) -> None:
        for index in range(100):
            client.put("orders", f"{name}{index}")

    threads = [threading.Thread(target=put, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = _values(client)
    for name in "abc":
        assert [value for value in found if value.startswith(name)] == [f"{name}{index}" for index in range(100)]
    client.close()


def test_a_broker_that_is_killed_meanwhile_stores_it_once(client: oncemq.Client, broker_process: BrokerProcess) -> None:
    for index in range(5):
        client.put("orders", f"{2 * index}")
        broker_process.restart()
        client.put("orders", f"{2 * index + 1}")
    assert _values(client) == [str(index) for index in range(10)]
    client.close()


def test_a_topic_that_gets_a_schema_is_noticed(client: oncemq.Client, broker_process: BrokerProcess) -> None:
    client.put("orders", '{"id": 1}')
    with broker_process.connect() as other:
        other.put_schema("orders", "id: int64 not null")
    client.put("orders", '{"id": 2}')
    with pytest.raises(oncemq.errors.SchemaMismatch):
        client.put("orders", "no JSON")
    assert _values(client) == ['{"id": 1}', '{"id": 2}']
    client.close()


class Interruption(BaseException):
    """Like Ctrl-C, which would end the tests."""


def test_an_interrupted_caller_gives_it_up(
    client: oncemq.Client, broker_process: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put("orders", "before")

    def wait(transport: StreamTransport, timeout_ms: float) -> None:
        raise Interruption

    broker_process.pause()
    with monkeypatch.context() as patched:
        patched.setattr(StreamTransport, "wait", wait)
        with pytest.raises(Interruption):
            client.put("orders", "interrupted")
    broker_process.resume()
    client.put("orders", "after")
    # The broker had received the request, and a void under the same number changes nothing any more.
    assert _values(client) in (["before", "interrupted", "after"], ["before", "after"])
    client.close()


def test_an_interruption_between_the_socket_and_the_bookkeeping_ends_the_client(
    client: oncemq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put("orders", "before")
    send = StreamTransport.send

    def interrupted(transport: StreamTransport, frames: list[bytes]) -> None:
        send(transport, frames)
        raise Interruption

    with monkeypatch.context() as patched:
        patched.setattr(StreamTransport, "send", interrupted)
        with pytest.raises(Interruption):
            client.put("orders", "interrupted")
    with pytest.raises(oncemq.errors.ClientClosed):
        client.put("orders", "after")


def test_a_signal_handler_can_not_use_the_client_that_it_interrupts(
    client: oncemq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put("orders", "before")
    send = StreamTransport.send

    def handled(transport: StreamTransport, frames: list[bytes]) -> None:
        with pytest.raises(RuntimeError, match="inside another call"):
            client.put("orders", "from a handler")
        send(transport, frames)

    with monkeypatch.context() as patched:
        patched.setattr(StreamTransport, "send", handled)
        client.put("orders", "after")
    assert _values(client) == ["before", "after"]
    client.close()


@pytest.mark.parametrize("call", ["send", "receive"])
def test_an_embedded_broker_that_fails_is_reported_by_each_put(
    call: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise oncemq.errors.JournalFailed("the embedded broker stopped")

    client = oncemq.connect(f"memory:{request.node.name}")
    client.put("orders", "before", create=True)
    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedTransport, call, fail)
        for _ in range(2):
            with pytest.raises(oncemq.errors.JournalFailed):
                client.put("orders", "x")
    client._close(clean=False)
