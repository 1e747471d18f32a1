"""The queue's endpoints, all seven: producers and consumers with ids of their own, and one shape of reply."""

from __future__ import annotations

from oncemq.gateways.http import queue_consumers, queue_consuming, queue_producing, queue_topics
from oncemq.gateways.http.endpoint import Endpoint

ENDPOINTS: list[Endpoint] = [
    *queue_topics.ENDPOINTS,
    *queue_producing.ENDPOINTS,
    *queue_consumers.ENDPOINTS,
    *queue_consuming.ENDPOINTS,
]
