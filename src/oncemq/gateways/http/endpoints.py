"""All endpoints of the HTTP gateway, and the application that serves them.

To add an endpoint, declare it in a module of v1/ or queue/ with `@endpoint(ENDPOINTS, …)`: framework/endpoint.py has an
example. auth/http_operations.py says what it needs. A new module must be added to this list. The order is that of the
OpenAPI document and of /docs.
"""

from __future__ import annotations

import asyncio
from functools import partial

from oncemq.gateways.http.docs import site
from oncemq.gateways.http.framework.app import App
from oncemq.gateways.http.framework.endpoint import Endpoint
from oncemq.gateways.http.metrics import endpoint as metrics
from oncemq.gateways.http.queue import consume, consumers, producers
from oncemq.gateways.http.queue import topics as queue_topics
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.gateways.http.state import State
from oncemq.gateways.http.v1 import (
    events,
    health,
    login,
    messages,
    put,
    schemas,
    sessions,
    shared,
    subscriptions,
    topics,
    transactions,
)

ENDPOINTS: list[Endpoint] = [
    *topics.ENDPOINTS,
    *schemas.ENDPOINTS,
    *put.ENDPOINTS,
    *subscriptions.ENDPOINTS,
    *messages.ENDPOINTS,
    *events.ENDPOINTS,
    *shared.ENDPOINTS,
    *transactions.ENDPOINTS,
    *sessions.ENDPOINTS,
    *login.ENDPOINTS,
    *health.ENDPOINTS,
    *metrics.ENDPOINTS,
    *queue_topics.ENDPOINTS,
    *producers.ENDPOINTS,
    *consumers.ENDPOINTS,
    *consume.ENDPOINTS,
]


def make_app(settings: GatewaySettings) -> App:
    """Return the gateway's application: all endpoints, and the pages that describe them."""
    make_state = partial(State, scrape_lock=asyncio.Lock())
    return App(settings, [*ENDPOINTS, *site.endpoints(ENDPOINTS)], make_state)
