"""The live feed, with plain PUB and SUB sockets."""

from __future__ import annotations

from oncemq.client.sync import Client
from oncemq.protocol import errors
from tests.acceptance.processes import wait_until
from tests.gateways.push.peers import Listener, Publisher
from tests.gateways.push.processes import GatewayProcess


def subscribers_of(client: Client, topic: str) -> list[str]:
    try:
        return [each.subscriber for each in client.subscriptions(topic)]
    except errors.TopicUnknown:
        return []


def test_what_is_published_comes_to_those_who_listen(push: GatewayProcess, client: Client) -> None:
    listeners = [Listener(address, b"feed.orders\0") for address in (push.settings.feed, *push.settings.feed_listen)]
    assert [listener.heartbeat() for listener in listeners] == [0, 0]
    publisher = Publisher(push.settings.publish, push.settings.feed)
    publisher.send(b"feed.orders", b"one pizza")
    publisher.send(b"feed.orders one soup")
    publisher.send(b"feed.orders\0", b"")
    for listener in listeners:
        assert listener.messages(3) == [(0, b"one pizza"), (1, b"one soup"), (2, b"")]
        listener.close()
    publisher.close()


def test_a_message_names_its_offset_time_and_topic(push: GatewayProcess, client: Client) -> None:
    listener = Listener(push.settings.feed, b"feed.header\0")
    listener.heartbeat()
    receipt = client.put("feed.header", b"one", key=b"k", headers={"h": b"v"})
    while len(frames := listener.frames()) == 2:
        pass
    topic, header, content = frames
    assert topic == b"feed.header\0"
    assert content == b"one"
    word, offset, time_ms, topic_id = header.split()
    assert (word, int(offset), int(time_ms), int(topic_id)) == (b"message", 0, receipt.timestamp_ms, receipt.topic_id)
    listener.close()


def test_a_topic_does_not_match_others_that_begin_like_it(push: GatewayProcess, client: Client) -> None:
    listener, others = Listener(push.settings.feed, b"feed.order\0"), Listener(push.settings.feed, b"feed.orderly\0")
    listener.heartbeat()
    others.heartbeat()
    client.put("feed.orderly", b"not for it")
    client.put("feed.order", b"for it")
    assert others.messages(1) == [(0, b"not for it")]
    while (frames := listener.frames())[1].startswith(b"next"):
        assert frames[0] == b"feed.order\0"
    assert frames[2] == b"for it"
    listener.close()
    others.close()


def test_a_bare_topic_is_followed_too_and_never_meets_batches(push: GatewayProcess, client: Client) -> None:
    batches, bare = Listener(push.settings.feed, b"\x01feed.bare\0"), Listener(push.settings.feed, b"feed.bare")
    batches.heartbeat()
    bare.heartbeat()
    client.put_many("feed.bare", [b"a", b"b"])
    assert bare.messages(2) == [(0, b"a"), (1, b"b")]
    while (frames := batches.frames())[1].startswith(b"next"):
        pass
    assert frames[0] == b"\x01feed.bare\0"
    assert frames[1].split()[:2] == [b"batch", b"0"]
    assert frames[1].split()[4:6] == [b"2", b"0"]
    batches.close()
    bare.close()


def test_heartbeats_tell_the_next_offset_so_a_lost_last_message_shows(push: GatewayProcess, client: Client) -> None:
    first = Listener(push.settings.feed, b"feed.beats\0")
    assert first.heartbeat() == 0
    client.put_many("feed.beats", [b"a", b"b", b"c"])
    first.messages(3)
    # It was not connected for any of them, and learns that there were three.
    late = Listener(push.settings.feed, b"feed.beats\0")
    assert late.heartbeat() == 3
    assert first.heartbeat(3) == 3
    first.close()
    late.close()


def test_a_topic_is_not_followed_when_nobody_listens(push: GatewayProcess, client: Client) -> None:
    listener = Listener(push.settings.feed, b"feed.left\0")
    listener.heartbeat()
    assert subscribers_of(client, "feed.left") == ["push-feed"]
    listener.close()
    wait_until(lambda: not subscribers_of(client, "feed.left"), "its subscription ends")
    again = Listener(push.settings.feed, b"feed.left\0")
    assert again.heartbeat() == 0
    client.put("feed.left", b"one")
    assert again.messages(1) == [(0, b"one")]
    again.close()


def test_what_is_sent_is_acked_and_not_kept(push: GatewayProcess, client: Client) -> None:
    listener = Listener(push.settings.feed, b"feed.acked\0")
    listener.heartbeat()
    client.put_many("feed.acked", [b"a", b"b"])
    listener.messages(2)
    wait_until(lambda: client.subscriptions("feed.acked")[0].acked == 2, "its subscription moves on")
    listener.close()


def test_a_deleted_topic_is_followed_again_from_its_beginning(push: GatewayProcess, client: Client) -> None:
    listener = Listener(push.settings.feed, b"feed.again\0")
    listener.heartbeat()
    client.put("feed.again", b"old")
    listener.messages(1)
    client.delete_topic("feed.again")
    # At once, before it is followed again. The retention keeps messages without subscriptions.
    client.create_topic("feed.again", retain_ms=60_000)
    client.put("feed.again", b"new")
    assert listener.messages(1) == [(0, b"new")]
    listener.close()
    client.delete_topic("feed.again")
