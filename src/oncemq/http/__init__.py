"""A queue over HTTP: producers and consumers that use a gateway.

>>> from oncemq.http import Consumer, Producer
>>> with Producer() as producer, Consumer() as consumer:
...     producer.register("DS")
...     consumer.register("DS")
...     producer.enqueue("DS", "one pizza")
...     consumer.dequeue("DS")
'one pizza'

Every call is repeated until it has a response or its time is over, and still happens once: in spite of a lost response,
a crash of the gateway or the broker, or a standby that takes over.
"""

from __future__ import annotations

from oncemq.protocol import errors

try:
    import httpx as _httpx  # noqa: F401
except ImportError:
    raise errors.MissingExtra("the HTTP client library is not installed: pip install 'oncemq[http]'") from None

from oncemq.http.consumer import Consumer
from oncemq.http.producer import Producer
from oncemq.http.requests import DEFAULT_URL

__all__ = ["DEFAULT_URL", "Consumer", "Producer"]
