"""Which subscribers the gateway calls, when, and with which messages: with fake calls."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest
import zmq

from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.messages import AckReceived, Data, encode
from oncemq.gateways.push.subscribers import retransmission as module
from oncemq.gateways.push.subscribers.callback import CallbackSocket
from oncemq.gateways.push.subscribers.retransmission import Retransmission
from oncemq.gateways.push.subscribers.subscriber import Subscriber
from oncemq.gateways.push.subscribers.subscriber_cursor import SubscriberCursor
from oncemq.protocol.commands import START_EARLIEST
from oncemq.protocol.message import Message
from tests.gateways.push.in_memory import SETTINGS, cursor_of, in_memory, make, until


class Calls:
    """Records the calls, and which addresses do not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str, int]] = []
        self.deaf: set[str] = set()
        #: Addresses at which a call never ends.
        self.endless: set[str] = set()
        calls = self

        class Noting:
            def __init__(self, address: str, answer_s: float, keys: object) -> None:
                self._address = address

            async def call(self, data: Data, content: bytes) -> AckReceived | None:
                calls.made.append((self._address, data.topic, data.offset))
                if self._address in calls.endless:
                    await asyncio.get_running_loop().create_future()
                await asyncio.sleep(0)
                if self._address in calls.deaf:
                    return None
                return AckReceived(subscriber=data.subscriber, topic=data.topic, offset=data.offset)

            def close(self) -> None: ...

        monkeypatch.setattr(module, "CallbackSocket", Noting)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


async def subscriber_of(link: Link, *topics: str, address: str = "here", count: int = 3) -> Subscriber:
    """Return a subscriber that has acked nothing on these topics."""
    subscriber = Subscriber("kitchen", link)
    subscriber.address = address
    for topic in topics:
        await make(link, topic, *[b"x"] * count)
        cursor = subscriber.cursors[topic] = cursor_of(link, topic, start=START_EARLIEST)
        await cursor.check()
    return subscriber


async def ended(retransmission: Retransmission) -> None:
    await asyncio.gather(*retransmission._tasks, return_exceptions=True)
    await asyncio.sleep(0)


def test_topics_take_turns(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    monkeypatch.setattr(module, "_CALL_S", 0.0)

    async def work(link: Link) -> None:
        retransmission = Retransmission(SETTINGS, Counters())
        subscriber = await subscriber_of(link, "a", "b")
        retransmission.call_if_due(subscriber, time.monotonic())
        await ended(retransmission)
        assert [(topic, offset) for _, topic, offset in calls.made] == [
            (topic, offset) for offset in range(3) for topic in ("a", "b")
        ]

    in_memory(work)


def test_subscribers_take_turns_also_with_those_who_do_not_answer(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    monkeypatch.setattr(module, "_CALL_S", 0.0)
    monkeypatch.setattr(module, "_CALLS_MAX", 1)
    calls.endless = {"silent"}

    async def work(link: Link) -> None:
        retransmission = Retransmission(SETTINGS, Counters())
        silent = await subscriber_of(link, "s", address="silent")
        # It did not answer the last time.
        silent.pause_s = 1.0
        first, second = [await subscriber_of(link, topic, address=topic) for topic in ("a", "b")]
        for subscriber in (silent, first, second):
            retransmission.call_if_due(subscriber, time.monotonic())
        await until(lambda: len(calls.made) == 7, "all are called")
        assert [address for address, _, _ in calls.made if address != "silent"] == ["a", "b"] * 3
        await retransmission.stop()

    in_memory(work)


def test_an_ack_ends_the_pause(calls: Calls) -> None:
    calls.deaf = {"here"}

    async def work(link: Link) -> None:
        retransmission = Retransmission(SETTINGS, Counters())
        subscriber = await subscriber_of(link, "a")
        for _ in range(2):
            # The pause is longer the second time.
            retransmission.call_if_due(subscriber, 1.0)
            await ended(retransmission)
        assert len(calls.made) == 1
        subscriber.note_answer()
        retransmission.call_if_due(subscriber, 1.0)
        await ended(retransmission)
        assert len(calls.made) == 2

    in_memory(work)


def test_who_comes_back_elsewhere_does_not_wait_for_an_older_call(calls: Calls) -> None:
    calls.endless = {"there"}

    async def work(link: Link) -> None:
        retransmission = Retransmission(SETTINGS, Counters())
        subscriber = await subscriber_of(link, "a", address="there")
        retransmission.call_if_due(subscriber, time.monotonic())
        await until(lambda: len(calls.made) == 1, "it is called where it is not")
        subscriber.address = "here"
        retransmission.cancel_call(subscriber)
        await ended(retransmission)
        retransmission.call_if_due(subscriber, time.monotonic())
        await ended(retransmission)
        assert calls.made[1:] == [("here", "a", offset) for offset in range(3)]

    in_memory(work)


def test_what_has_expired_is_not_waited_for(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    async def only_a_fresh_one(cursor: SubscriberCursor) -> list[Message]:
        return [Message("a", 3, b"fresh", None, {}, 0, cursor.topic_id)]

    monkeypatch.setattr(SubscriberCursor, "read", only_a_fresh_one)

    async def work(link: Link) -> None:
        retransmission = Retransmission(SETTINGS, Counters())
        subscriber = await subscriber_of(link, "a")
        retransmission.call_if_due(subscriber, time.monotonic())
        await ended(retransmission)
        cursor = subscriber.cursors["a"]
        assert (calls.made, cursor.acked, cursor.is_due(math.inf, 0.0)) == ([], 3, False)

    in_memory(work)


def test_a_call_that_is_cancelled_when_its_answer_arrives_ends() -> None:
    async def work(_: Link) -> None:
        caller = CallbackSocket("tcp://127.0.0.1:9", 30.0)
        data = Data(subscriber="k", topic="t", offset=0, time_ms=0, topic_id=0)
        calling = asyncio.ensure_future(caller.call(data, b""))
        await asyncio.sleep(0)
        caller._receive([b"", encode(AckReceived(subscriber="k", topic="t", offset=0))])
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        caller.close()

    in_memory(work)


def test_an_ipv6_address_is_called() -> None:
    context: Any = zmq.Context.instance()
    callee = context.socket(zmq.REP)
    callee.setsockopt(zmq.LINGER, 0)
    callee.setsockopt(zmq.IPV6, 1)
    try:
        port = callee.bind_to_random_port("tcp://[::1]")
    except zmq.ZMQError:
        callee.close()
        pytest.skip("this machine has no IPv6")

    async def work(_: Link) -> None:
        caller = CallbackSocket(f"tcp://[::1]:{port}", 30.0)
        data = Data(subscriber="k", topic="t", offset=0, time_ms=0, topic_id=0)
        calling = asyncio.ensure_future(caller.call(data, b""))
        await until(lambda: bool(callee.poll(0)), "it is called")
        callee.recv_multipart()
        callee.send(encode(AckReceived(subscriber="k", topic="t", offset=0)))
        answer = await calling
        assert answer is not None
        assert answer.offset == 0
        caller.close()

    in_memory(work)
    callee.close()
