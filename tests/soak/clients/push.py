"""A reliable publisher and a reliable subscriber of the push gateway. The log of the subscriber is its store."""

from __future__ import annotations

from oncemq.tools.faults.event_log import id_of, value_of
from oncemq.tools.faults.push_peers import PushRequests, ReliableSubscriber
from tests.soak.clients.client import SoakClient


def publish(client: SoakClient) -> None:
    stream, requests = client.stream(), PushRequests(client.addresses.acks)
    while not client.stop.is_set:
        [message] = stream.attempt(client.topic, 1)
        head = {"type": "publish", "origin": client.name, "id": message, "topic": client.topic}
        stream.acknowledge(client.topic, [message], requests.ask(head, value_of(message))["offset"])
        client.pause()
    requests.close()


def subscribe(client: SoakClient) -> None:
    subscriber = ReliableSubscriber(
        PushRequests(client.addresses.acks),
        client.addresses.feed,
        client.name,
        [client.topic],
        {client.topic: client.next_offset()},
        lambda _, offset, content: client.deliver(offset, id_of(content)),
        start="earliest",
    )
    while not client.is_done(subscriber.positions[client.topic]):
        subscriber.step()
    subscriber.leave()
    subscriber.close()
