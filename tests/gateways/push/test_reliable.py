"""Reliable subscribers, with plain REQ and REP sockets."""

from __future__ import annotations

import pytest

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.replies import SubscriptionInfo
from tests.acceptance.processes import wait_until
from tests.gateways.push.peers import Asker, Callee, Listener
from tests.gateways.push.processes import GatewayProcess


def test_hello_makes_a_durable_subscription_and_goodbye_ends_it(asker: Asker, client: Client) -> None:
    hello = {"subscriber": "oven", "topics": ["rel.one", "rel.two"], "address": "tcp://127.0.0.1:9"}
    welcome = {"type": "ack_welcome", "subscriber": "oven", "topics": {"rel.one": 0, "rel.two": 0}}
    assert asker.ask("hello", **hello) == welcome
    assert asker.ask("hello", **hello) == welcome
    assert "oven" in [each.subscriber for each in client.subscriptions("rel.one")]
    goodbye = {"subscriber": "oven", "topics": ["rel.one"]}
    assert asker.ask("goodbye", **goodbye) == {"type": "ack_goodbye", "subscriber": "oven", "topics": ["rel.two"]}
    assert asker.ask("goodbye", **goodbye) == {"type": "ack_goodbye", "subscriber": "oven", "topics": ["rel.two"]}
    assert asker.ask("goodbye", subscriber="oven")["topics"] == []
    assert asker.ask("goodbye", subscriber="nobody")["topics"] == []
    with pytest.raises(Exception, match="oven"):
        client.subscription("rel.two", "oven").get()


def test_what_is_not_acknowledged_is_sent_again_in_order(asker: Asker, client: Client) -> None:
    callee = Callee("again")
    asker.ask("hello", subscriber="again", topics=["rel.again"], address=callee.address)
    client.put_many("rel.again", [b"a", b"b", b"c"])
    wait_until(lambda: len(callee.received) == 3, "all come again")
    assert callee.received == [("rel.again", 0, b"a"), ("rel.again", 1, b"b"), ("rel.again", 2, b"c")]
    wait_until(lambda: _acked(client, "rel.again", "again") == 3, "the broker knows")
    asker.ask("goodbye", subscriber="again")
    callee.close()


def test_what_is_acknowledged_is_not_sent_again(push: GatewayProcess, asker: Asker, client: Client) -> None:
    callee = Callee("live")
    listener = Listener(push.settings.feed, b"rel.live\0")
    asker.ask("hello", subscriber="live", topics=["rel.live"], address=callee.address)
    listener.heartbeat()
    client.put_many("rel.live", [b"%d" % number for number in range(4)])
    assert [offset for offset, _ in listener.messages(4)] == [0, 1, 2, 3]
    ask = {"subscriber": "live", "topic": "rel.live"}
    # The first one is not acked: the later ones wait for it, and only it is sent again.
    assert asker.ask("ack_received", offset=2, **ask)["acked"] == 0
    assert asker.ask("ack_received", offsets=[1, 3], **ask)["acked"] == 0
    wait_until(lambda: _acked(client, "rel.live", "live") == 4, "the first comes again")
    assert callee.offsets == [0]
    assert asker.ask("ack_received", upto=2, **ask) == {"type": "ack_noted", "acked": 4, **ask}
    asker.ask("goodbye", subscriber="live")
    callee.close()
    listener.close()


def test_an_ack_of_what_was_never_sent_is_refused(asker: Asker, client: Client) -> None:
    asker.ask("hello", subscriber="early", topics=["rel.early"], address="tcp://127.0.0.1:9")
    ask = {"subscriber": "early", "topic": "rel.early"}
    assert asker.ask("ack_received", offset=0, **ask)["code"] == "OFFSET_OUT_OF_RANGE"
    assert asker.ask("ack_received", upto=1, **ask)["code"] == "OFFSET_OUT_OF_RANGE"
    assert asker.ask("ack_received", offset=0, subscriber="stranger", topic="rel.early")["code"] == "NOT_SUBSCRIBED"
    assert asker.ask("ack_received", offset=0, subscriber="early", topic="rel.other")["code"] == "NOT_SUBSCRIBED"
    asker.ask("goodbye", subscriber="early")


def test_who_was_away_catches_up_at_another_address(asker: Asker, client: Client) -> None:
    first = Callee("away")
    asker.ask("hello", subscriber="away", topics=["rel.away"], address=first.address)
    client.put("rel.away", b"0")
    wait_until(lambda: first.offsets == [0], "the first one comes")
    first.close()
    client.put_many("rel.away", [b"1", b"2", b"3"])
    second = Callee("away")
    assert asker.ask("hello", subscriber="away", address=second.address)["topics"] == {"rel.away": 1}
    wait_until(lambda: second.offsets == [1, 2, 3], "it catches up")
    asker.ask("goodbye", subscriber="away")
    second.close()


def test_a_subscriber_that_answers_nonsense_is_not_taken_for_done(asker: Asker, client: Client) -> None:
    callee = Callee("odd", answers=False)
    asker.ask("hello", subscriber="odd", topics=["rel.odd"], address=callee.address)
    client.put("rel.odd", b"x")
    wait_until(lambda: len(callee.received) >= 2, "it comes again and again")
    assert _acked(client, "rel.odd", "odd") == 0
    callee.close()
    sane = Callee("odd")
    asker.ask("hello", subscriber="odd", address=sane.address)
    wait_until(lambda: _acked(client, "rel.odd", "odd") == 1, "it is done")
    asker.ask("goodbye", subscriber="odd")
    sane.close()


def test_a_seek_brings_messages_again(asker: Asker, client: Client) -> None:
    callee = Callee("back")
    client.create_topic("rel.back", retain_ms=60_000)
    asker.ask("hello", subscriber="back", topics=["rel.back"], address=callee.address)
    client.put_many("rel.back", [b"0", b"1"])
    wait_until(lambda: _acked(client, "rel.back", "back") == 2, "both are done")
    del callee.received[:]
    client.seek("rel.back", "back", "earliest")
    wait_until(lambda: callee.offsets == [0, 1], "they come again")
    asker.ask("goodbye", subscriber="back")
    callee.close()


def test_who_was_unsubscribed_by_somebody_else_stays_so_until_its_next_hello(asker: Asker, client: Client) -> None:
    hello = {"subscriber": "ended", "topics": ["rel.ended", "rel.kept"], "address": "tcp://127.0.0.1:9"}
    asker.ask("hello", **hello)
    client.unsubscribe("rel.ended", "ended")
    wait_until(lambda: "rel.ended" not in _registered(client, "ended"), "it is forgotten")
    assert "ended" not in [each.subscriber for each in _subscriptions(client, "rel.ended")]
    assert asker.ask("ack_received", subscriber="ended", topic="rel.ended", upto=0)["code"] == "NOT_SUBSCRIBED"
    assert set(asker.ask("hello", **hello)["topics"]) == {"rel.ended", "rel.kept"}
    asker.ask("goodbye", subscriber="ended")


def test_an_ack_that_names_no_offset_is_malformed(asker: Asker) -> None:
    answer = asker.ask("ack_received", subscriber="typo", topic="rel.typo", ofset=0)
    assert (answer["code"], "`upto`" in answer["text"]) == ("MALFORMED", True)


def test_a_topic_that_is_made_again_keeps_its_reliable_subscribers(asker: Asker, client: Client) -> None:
    callee = Callee("stays")
    asker.ask("hello", subscriber="stays", topics=["rel.stays"], address=callee.address)
    client.put("rel.stays", b"old")
    wait_until(lambda: _acked(client, "rel.stays", "stays") == 1, "the old one is done")
    client.delete_topic("rel.stays")
    client.create_topic("rel.stays", retain_ms=60_000)
    client.put("rel.stays", b"new")
    wait_until(lambda: callee.received[1:] == [("rel.stays", 0, b"new")], "the new one comes")
    asker.ask("goodbye", subscriber="stays")
    callee.close()


def test_a_refused_hello_changes_nothing(asker: Asker, client: Client) -> None:
    client.subscribe_shared("rel.shared", "clash")
    hello = {"subscriber": "clash", "topics": ["rel.fresh", "rel.shared"], "address": "tcp://127.0.0.1:9"}
    assert asker.ask("hello", **hello)["code"] == "SUBSCRIPTION_EXISTS"
    assert asker.ask("ack_received", subscriber="clash", topic="rel.fresh", upto=0)["code"] == "NOT_SUBSCRIBED"
    assert "clash" not in [each.subscriber for each in _subscriptions(client, "rel.fresh")]
    assert [each.subscriber for each in client.subscriptions("rel.shared")].count("clash") == 1
    assert asker.ask("hello", **(hello | {"subscriber": "push-feed"}))["code"] == "NAME_INVALID"


@pytest.mark.parametrize(
    "address",
    ["tcp://10.0.0.1:80", "tcp://example.org:80", "ipc:///tmp/x", "tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "x", ""],
)
def test_only_this_machines_addresses_are_called(asker: Asker, address: str) -> None:
    answer = asker.ask("hello", subscriber="far", topics=["rel.far"], address=address)
    assert answer["type"] == "error"
    assert answer["code"] in ("UNSUPPORTED", "MALFORMED")


def _registered(client: Client, subscriber: str) -> str:
    [entry] = client.registry_list("push", f"push/subscriber/{subscriber}")
    return entry.value.decode()


def _subscriptions(client: Client, topic: str) -> list[SubscriptionInfo]:
    try:
        return client.subscriptions(topic)
    except errors.TopicUnknown:
        return []


def _acked(client: Client, topic: str, subscriber: str) -> int:
    return next(each.acked for each in client.subscriptions(topic) if each.subscriber == subscriber)
