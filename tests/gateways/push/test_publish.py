"""Reliable publishers, with plain REQ sockets."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any, cast

import zmq

from oncemq.client.producer.encoding import make_put
from oncemq.client.sync import Client
from oncemq.gateways.link import Link
from oncemq.gateways.push.publishers.origin import Origin
from tests.gateways.push.fakes import FakeLink
from tests.gateways.push.peers import DEADLINE_S, Asker
from tests.gateways.push.processes import GatewayProcess


def test_a_repeated_message_is_stored_once_under_its_id(asker: Asker, client: Client) -> None:
    client.subscribe("pub.id", "reader")
    content = b"one pizza"
    said = {"origin": "till-1", "id": hashlib.md5(content).hexdigest(), "topic": "pub.id"}
    published = {"type": "ack_published", "offset": 0, **said}
    assert asker.ask("publish", content, **said) == published
    assert asker.ask("publish", content, **said) == published
    assert asker.ask("publish", b"another", **said)["code"] == "KEY_REUSED"
    assert asker.ask("publish", content, **(said | {"origin": "till-2"}))["offset"] == 1
    messages = list(client.read("pub.id"))
    assert [message.value for message in messages] == [content, content]
    assert messages[0].headers == {"push-origin": b"till-1", "push-id": said["id"].encode()}


def test_numbers_are_taken_in_order_and_once(asker: Asker, client: Client) -> None:
    client.subscribe("pub.number", "reader")
    said = {"origin": "till-1", "topic": "pub.number"}
    for number in (1, 2, 2, 1):
        answer = asker.ask("publish", b"%d" % number, number=number, **said)
        assert answer == {"type": "ack_published", "number": number, "offset": number - 1, **said}
    gap = asker.ask("publish", b"4", number=4, **said)
    assert (gap["code"], gap["again"]) == ("GAP", True)
    assert asker.ask("publish", b"other", number=2, **said)["code"] == "SEQUENCE_REUSED"
    assert [message.value for message in client.read("pub.number")] == [b"1", b"2"]


def test_numbers_may_be_sent_without_waiting_for_answers(push: GatewayProcess, client: Client) -> None:
    client.subscribe("pub.pipeline", "reader")
    dealer: Any = zmq.Context.instance().socket(zmq.DEALER)
    dealer.connect(push.settings.acks)
    contents = [bytes(300_000) if number % 50 == 1 else b"%d" % number for number in range(1, 151)]
    for number, content in enumerate(contents, 1):
        request = {"type": "publish", "origin": "till-3", "topic": "pub.pipeline", "number": number}
        dealer.send_multipart([json.dumps(request).encode(), content])
    answers = []
    for _ in contents:
        assert dealer.poll(DEADLINE_S * 1000)
        answers.append(json.loads(dealer.recv()))
    assert {answer["type"] for answer in answers} == {"ack_published"}
    assert sorted((answer["number"], answer["offset"]) for answer in answers) == [(n + 1, n) for n in range(150)]
    assert [message.value for message in client.read("pub.pipeline")] == contents
    dealer.close(0)


def test_an_origin_that_another_gateway_took_over_says_hello_once_for_all_its_numbers() -> None:
    async def be_fenced() -> None:
        link = FakeLink()
        origin = Origin(cast(Link, link), "push/till")
        operation, payload = make_put("t", False, [b"x"])
        for numbers in (range(1, 101), range(101, 201)):
            await asyncio.gather(*(origin.put(number, operation, payload) for number in numbers))
            assert link.numbers == list(range(1, numbers.stop))
            # Another gateway says hello for it.
            link.session_epoch += 1
        assert link.session_epoch == 4
        assert origin.is_idle

    asyncio.run(be_fenced())


def test_publish_makes_the_topic(asker: Asker, client: Client) -> None:
    assert asker.ask("publish", b"x", origin="o", id="1", topic="pub.new")["offset"] == 0
    assert "pub.new" in [topic.name for topic in client.topics()]


def test_a_message_has_an_id_or_a_number(asker: Asker) -> None:
    assert asker.ask("publish", b"x", origin="o", topic="pub.none")["code"] == "MALFORMED"
    assert asker.ask("publish", b"x", origin="o", topic="pub.none", id="1", number=1)["code"] == "MALFORMED"
    assert asker.ask("publish", origin="o", topic="pub.none", id="1")["code"] == "MALFORMED"
    assert asker.ask("publish", b"x", origin="o", topic="pub.*", id="1")["code"] == "NAME_INVALID"
