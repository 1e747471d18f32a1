"""The queue's endpoints, all seven: producers and consumers with ids of their own, and one shape of reply."""

from __future__ import annotations

from oncemq.gateways.http.framework.endpoint import Endpoint
from oncemq.gateways.http.queue import consume, consumers, producers, topics

ENDPOINTS: list[Endpoint] = [
    *topics.ENDPOINTS,
    *producers.ENDPOINTS,
    *consumers.ENDPOINTS,
    *consume.ENDPOINTS,
]
