"""Reliable publishers, with plain REQ sockets."""

from __future__ import annotations

import hashlib

from oncemq.client.blocking import Client
from tests.gateways.push.peers import Asker


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


def test_publish_makes_the_topic(asker: Asker, client: Client) -> None:
    assert asker.ask("publish", b"x", origin="o", id="1", topic="pub.new")["offset"] == 0
    assert "pub.new" in [topic.name for topic in client.topics()]


def test_a_message_has_an_id_or_a_number(asker: Asker) -> None:
    assert asker.ask("publish", b"x", origin="o", topic="pub.none")["code"] == "MALFORMED"
    assert asker.ask("publish", b"x", origin="o", topic="pub.none", id="1", number=1)["code"] == "MALFORMED"
    assert asker.ask("publish", origin="o", topic="pub.none", id="1")["code"] == "MALFORMED"
    assert asker.ask("publish", b"x", origin="o", topic="pub.*", id="1")["code"] == "NAME_INVALID"
