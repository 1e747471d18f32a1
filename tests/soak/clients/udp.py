"""A publisher and a subscriber of extended datagrams: the peers of the examples, over a network that loses packets."""

from __future__ import annotations

import time
from random import Random

from examples.datagrams.peers import FROM_THE_EARLIEST, Publisher, Subscriber

from oncemq.tools.faults.event_log import id_of, read_events, value_of
from tests.soak.clients.client import SoakClient

_TIMEOUT_S = 120.0
_IDLE_S = 0.5
_LOST, _DUPLICATED = 0.03, 0.03


class LossyPublisher(Publisher):
    random = Random(0)

    def send(self, kind: int, body: bytes) -> None:
        for _ in range(copies(self.random)):
            super().send(kind, body)


class LossySubscriber(Subscriber):
    random = Random(0)

    def send(self, kind: int, body: bytes) -> None:
        for _ in range(copies(self.random)):
            super().send(kind, body)


def copies(random: Random) -> int:
    """Return how many copies of a packet are sent."""
    draw = random.random()
    return 0 if draw < _LOST else 2 if draw < _LOST + _DUPLICATED else 1


def put(client: SoakClient) -> None:
    """The number of a message determines the message, so that the next process continues after the last number."""
    publisher = LossyPublisher(client.addresses.udp, client.name, timeout_s=_TIMEOUT_S)
    attempted = {entry[2] for entry in read_events(client.context.log_path(client.name)) if entry[0] == "attempted"}
    acknowledged = number = publisher.last_number
    while not client.stop.is_set:
        number += 1
        message = f"{client.name}.{number:08}"
        if message not in attempted:
            client.log.write(("attempted", client.topic, message))
        if publisher.put(client.topic, value_of(message)) != number:
            raise AssertionError(f"message {number} got another number")
        client.pause()
        if number % 20 == 0:
            publisher.flush()
            acknowledged = _acknowledge(client, publisher, acknowledged, number)
    publisher.flush()
    _acknowledge(client, publisher, acknowledged, number)
    publisher.close()


def _acknowledge(client: SoakClient, publisher: Publisher, first: int, last: int) -> int:
    if publisher.refusals:
        raise AssertionError(f"puts were refused: {publisher.refusals}")
    numbers = range(first + 1, last + 1)
    client.log.write(*(("acknowledged", client.topic, f"{client.name}.{number:08}", -1) for number in numbers))
    return last


def get(client: SoakClient) -> None:
    """The log is the store: the next process continues after the last message in it."""
    position = client.next_offset()
    subscriber = LossySubscriber(
        client.addresses.udp, client.topic, client.name, position=position or FROM_THE_EARLIEST, timeout_s=_TIMEOUT_S
    )
    while not client.is_done(position):
        for offset, content in subscriber.messages(_IDLE_S):
            client.deliver(offset, id_of(content))
            position = offset + 1
            if client.stop.is_set:
                break
        time.sleep(0.01)
    subscriber.position = max(subscriber.position, position)
    subscriber.finish()
    subscriber.close()
