"""Clients of the push gateway in plain ZeroMQ: a reliable publisher, and a reliable subscriber. Both are killed.

The subscriber stores what it gets in its event log, and continues after the last entry. The network loses requests,
acks and messages of the feed.
"""

from __future__ import annotations

import time
from random import Random

from oncemq.tools.chaos.packet_proxy import LOST
from oncemq.tools.chaos.plan import TOPICS
from oncemq.tools.chaos.publishers import attempt
from oncemq.tools.chaos.subscribers import is_done
from oncemq.tools.chaos.worker import ACKNOWLEDGED, DELIVERED, Worker
from oncemq.tools.faults.event_log import MessageStream, id_of, read_events, value_of
from oncemq.tools.faults.push_peers import PushRequests, ReliableSubscriber

_PAUSE_S_MAX = 0.04
_TIMEOUT_S = 0.25


def publish_reliably(worker: Worker) -> None:
    """Send each message until it is acknowledged. First comes the one that an earlier process has sent last: a request
    of that process may still be on its way, and its message must not be stored after later ones."""
    stream = MessageStream(worker.log, f"{worker.name}.{worker.incarnation}")
    requests = PushRequests(worker.context.acks, timeout_s=_TIMEOUT_S)
    open_attempt = _open_attempt(worker)
    while not worker.stop.is_set:
        topic, message = open_attempt or _next_attempt(worker, stream)
        open_attempt = None
        head = {"type": "publish", "origin": worker.name, "id": message, "topic": topic}
        stream.acknowledge(topic, [message], requests.ask(head, value_of(message))["offset"])
        worker.count(ACKNOWLEDGED, 1)
        time.sleep(worker.random.uniform(0, _PAUSE_S_MAX))
    requests.close()


def _next_attempt(worker: Worker, stream: MessageStream) -> tuple[str, str]:
    topic, [message] = attempt(worker, stream, 1)
    return topic, message


def _open_attempt(worker: Worker) -> tuple[str, str] | None:
    """Return topic and id of the message that an earlier process has sent, if its acknowledgement is missing."""
    found: tuple[str, str] | None = None
    for entry in read_events(worker.context.log_path(worker.name)):
        if entry[0] == "attempted":
            found = entry[1], entry[2]
        elif entry[0] == "acknowledged":
            found = None
    return found


def subscribe_reliably(worker: Worker) -> None:
    """Store messages in the event log. All processes of the subscriber have the same topics."""
    topics = Random(f"{worker.context.seed}/{worker.name}").sample(TOPICS, 2)
    positions = _positions(worker)
    subscriber = ReliableSubscriber(
        PushRequests(worker.context.acks, timeout_s=_TIMEOUT_S),
        worker.context.feed,
        worker.name,
        topics,
        positions,
        lambda topic, offset, content: worker.log.write(("delivered", topic, offset, id_of(content))),
        lambda: _loses(worker),
    )
    new = [topic for topic in topics if topic not in positions]
    worker.log.write(*(("subscribed", topic, subscriber.positions[topic]) for topic in new))
    while not is_done(worker, subscriber.positions):
        worker.count(DELIVERED, subscriber.step())
    subscriber.close()


def _positions(worker: Worker) -> dict[str, int]:
    """Return the offset after the last message of each topic that an earlier process has stored."""
    positions: dict[str, int] = {}
    for entry in read_events(worker.context.log_path(worker.name)):
        if entry[0] in ("subscribed", "delivered"):
            positions[entry[1]] = int(entry[2]) + (entry[0] == "delivered")
    return positions


def _loses(worker: Worker) -> bool:
    """Whether the network loses a message of the feed."""
    if worker.random.random() >= worker.context.counters.network_faults().lost:
        return False
    worker.count(LOST, 1)
    return True
