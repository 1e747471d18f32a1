"""More requests than the limit."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
import zmq

from oncemq.gateways.push.ack_server import AckServer
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.messages import AckPublished, Publish
from oncemq.gateways.push.publishers.reliable import ReliablePublishers
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.subscribers import ReliableSubscribers
from tests.gateways.push.fakes import until


class SlowPublishers:
    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def publish(self, said: Publish, content: bytes, caller: str) -> AckPublished:
        await self.may_answer.wait()
        return AckPublished(origin=said.origin, topic=said.topic, id=said.id, offset=0)


def test_requests_are_bounded_in_bytes() -> None:
    async def ask() -> None:
        publishing, reliable = SlowPublishers(), cast(ReliableSubscribers, None)
        settings = PushSettings(acks="inproc://server", buffer_bytes_max=100_000)
        server = AckServer(settings, reliable, cast(ReliablePublishers, publishing), Counters())
        dealer: Any = zmq.Context.instance().socket(zmq.DEALER)
        dealer.connect(settings.acks)
        answers: list[dict[str, Any]] = []

        def are_answered(count: int) -> bool:
            while dealer.poll(0):
                answers.append(json.loads(dealer.recv()))
            return len(answers) >= count

        request = json.dumps({"type": "publish", "origin": "o", "topic": "t", "id": "1"}).encode()
        for _ in range(5):
            dealer.send_multipart([request, bytes(40_000)])
        await until(lambda: are_answered(3), "those that are too many are answered")
        assert {(answer["code"], answer["again"]) for answer in answers} == {("OVERLOADED", True)}
        publishing.may_answer.set()
        await until(lambda: are_answered(5), "the others are answered")
        # There is capacity again.
        dealer.send_multipart([request, bytes(40_000)])
        await until(lambda: are_answered(6), "it is answered")
        assert [answer["type"] for answer in answers] == 3 * ["error"] + 3 * ["ack_published"]
        dealer.close(0)
        await server.stop(1.0)

    asyncio.run(ask())


def test_an_answer_that_is_not_read_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.net.listener.Listener.is_reading", lambda *_: False)

    async def ask() -> None:
        settings, counters, nobody = PushSettings(acks="inproc://unread"), Counters(), cast(Any, None)
        server = AckServer(settings, nobody, nobody, counters)
        dealer: Any = zmq.Context.instance().socket(zmq.DEALER)
        dealer.connect(settings.acks)
        dealer.send(b"{}")
        await until(lambda: counters["replies_dropped"] == 1, "the answer is dropped")
        dealer.close(0)
        await server.stop(1.0)

    asyncio.run(ask())
