"""The client's push consumer: the feed, and the broker for messages that the feed has lost."""

from __future__ import annotations

import threading
from itertools import islice

import pytest

from oncemq.client.push.sync import PushSubscription
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.message import Message
from oncemq.testing.broker_process import BrokerProcess, free_url
from tests.acceptance.processes import wait_until
from tests.gateways.push.lossy import LossyFeed
from tests.gateways.push.processes import GatewayProcess


def take(subscription: PushSubscription, count: int) -> list[Message]:
    return list(islice(subscription.messages(timeout_s=30), count))


def put_slowly(broker: BrokerProcess, topic: str, count: int) -> threading.Thread:
    """Put messages in many batches of one to five, from another client."""

    def run() -> None:
        with broker.connect() as client:
            number = 0
            while number < count:
                size = min(1 + number % 5, count - number)
                client.put_many(topic, [b"%d" % (number + index) for index in range(size)])
                number += size

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_messages_come_by_the_feed_once_and_in_order(
    push: GatewayProcess, push_broker: BrokerProcess, client: Client
) -> None:
    with client.push("push.whole", "reader", feed=push.settings.feed) as subscription:
        assert subscription.get(timeout_s=0) is None
        wait_until(lambda: len(client.subscriptions("push.whole")) == 2, "the gateway follows it")
        thread = put_slowly(push_broker, "push.whole", 500)
        found = take(subscription, 500)
        thread.join()
        assert [message.offset for message in found] == list(range(500))
        assert [message.value for message in found] == [b"%d" % number for number in range(500)]
        assert subscription.pushed > 0
        assert subscription.get(timeout_s=0) is None
    acked = {each.subscriber: each.acked for each in client.subscriptions("push.whole")}
    assert acked["reader"] == 500


@pytest.mark.parametrize("seed", range(3))
def test_what_the_feed_loses_comes_from_the_broker(
    push: GatewayProcess, push_broker: BrokerProcess, client: Client, seed: int
) -> None:
    topic = f"push.lossy.{seed}"
    lossy = LossyFeed(push.settings.feed, b"\x01" + topic.encode() + b"\0", seed)
    with client.push(topic, "reader", feed=lossy.address) as subscription:
        thread = put_slowly(push_broker, topic, 300)
        found = take(subscription, 300)
        thread.join()
        assert [message.value for message in found] == [b"%d" % number for number in range(300)]
    lossy.close()


def test_a_feed_that_nobody_serves_is_done_without(client: Client) -> None:
    with client.push("push.silent", "reader", feed=free_url("zeromq")) as subscription:
        client.put("push.silent", b"one")
        message = subscription.get(timeout_s=30)
        assert message is not None
        assert (message.value, subscription.pushed) == (b"one", 0)


def test_a_filter_and_a_seek_work_as_ever(push: GatewayProcess, client: Client) -> None:
    client.create_topic("push.seek", retain_ms=60_000)
    with client.push("push.seek", "reader", feed=push.settings.feed, filter={"kind": b"a"}) as subscription:
        client.put("push.seek", b"0", headers={"kind": b"a"})
        client.put("push.seek", b"1", headers={"kind": b"b"})
        client.put("push.seek", b"2", headers={"kind": b"a"})
        assert [message.offset for message in take(subscription, 2)] == [0, 2]
        subscription.seek(0)
        assert [message.offset for message in take(subscription, 2)] == [0, 2]


def test_a_second_owner_fences_the_first(push: GatewayProcess, push_broker: BrokerProcess, client: Client) -> None:
    with client.push("push.fenced", "reader", feed=push.settings.feed) as first, push_broker.connect() as other:
        assert first.get(timeout_s=0) is None
        assert other.push("push.fenced", "reader", feed=push.settings.feed).get(timeout_s=0) is None
        with pytest.raises(errors.Fenced):
            first.get(timeout_s=30)


def test_a_feed_address_that_can_not_be_is_refused(client: Client) -> None:
    for feed in ("nonsense", None, 5558):
        with pytest.raises(errors.SettingInvalid, match=repr(feed)):
            client.push("push.bad", "reader", feed=feed)  # type: ignore[arg-type]
