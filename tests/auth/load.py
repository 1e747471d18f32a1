"""Clients under load: producers and consumers over the stream transport, ZeroMQ and HTTP. Whatever happens meanwhile,
none of them sees an error, and each message is delivered once and in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from oncemq.client.consumer.sync import Subscription
from oncemq.client.sync import Client
from oncemq.http import Consumer, Producer
from oncemq.protocol.errors import NothingNew
from tests.acceptance.processes import DEADLINE_S, wait_until
from tests.auth.served import ServedBroker

#: Of these puts, one waits for its reply.
_WAIT_EVERY = 10
_GET_S = 0.05


class _Flow:
    """A producer and a consumer of one topic, each in a thread."""

    def __init__(self, name: str, put: Callable[[int], object], get: Callable[[], str | None]) -> None:
        self.name = name
        self._put = put
        self._get = get
        self.put_count = 0
        self.got: list[int] = []
        self.errors: list[BaseException] = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def _produce(self) -> None:
        while not self._is_over.is_set():
            self._put(self.put_count)
            self.put_count += 1

    def _consume(self) -> None:
        while not (self._is_over.is_set() and not self._threads[0].is_alive() and len(self.got) >= self.put_count):
            text = self._get()
            if text is not None:
                self.got.append(int(text))

    def check(self) -> None:
        if self.errors:
            raise self.errors[0]

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), f"{self.name} does not end"


class Load:
    """Starts the clients of a user, whose token is in a file. `stop` checks what they have put and got."""

    def __init__(self, broker: ServedBroker, user: str, token_file: Path, topic: str) -> None:
        self._opened = ExitStack()
        shown = {"token": "", "token_file": str(token_file)}
        clients = {
            "stream": lambda: broker.connect(user, **shown),
            "zeromq": lambda: broker.connect_zeromq(user),
        }
        self._flows = [self._native(name, f"{topic}.{name}", connect) for name, connect in clients.items()]
        self._flows.append(self._http(broker.https_url, broker.accounts.ca, token_file, f"{topic}.http"))

    def _native(self, name: str, topic: str, connect: Callable[[], Client]) -> _Flow:
        producer, consumer = (self._opened.enter_context(connect()) for _ in range(2))
        subscription = consumer.subscribe(topic, "load")

        def put(number: int) -> None:
            if number % _WAIT_EVERY:
                producer.put_nowait(topic, str(number))
            else:
                producer.put(topic, str(number))

        def get() -> str | None:
            return _text_of(subscription)

        return _Flow(name, put, get)

    def _http(self, url: str, ca: str, token_file: Path, topic: str) -> _Flow:
        producer = self._opened.enter_context(Producer(url, token_file=str(token_file), verify=ca))
        consumer = self._opened.enter_context(Consumer(url, token_file=str(token_file), verify=ca))
        producer.register(topic)
        consumer.register(topic)

        def get() -> str | None:
            try:
                return str(consumer.dequeue(topic, _GET_S))
            except NothingNew:
                return None

        return _Flow("http", lambda number: producer.enqueue(topic, str(number)), get)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._opened:
            for flow in self._flows:
                flow.stop()
        if error is None:
            self._check()

    def advance(self, count: int = 50) -> None:
        """Wait until each of them has got this many more messages."""
        until = {flow: len(flow.got) + count for flow in self._flows}

        def has_advanced() -> bool:
            for flow in self._flows:
                flow.check()
            return all(len(flow.got) >= goal for flow, goal in until.items())

        wait_until(has_advanced, "all clients continue")

    def _check(self) -> None:
        for flow in self._flows:
            flow.check()
            assert flow.got == [*range(flow.put_count)], f"{flow.name}: messages were lost, doubled or reordered"


def _text_of(subscription: Subscription) -> str | None:
    message = subscription.get(timeout_s=_GET_S)
    return None if message is None else message.text
