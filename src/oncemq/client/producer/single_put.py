"""The short path of a single put of a blocking client: no flow, if the topic has no schema and nothing is buffered."""

from __future__ import annotations

from typing import Any, cast

from oncemq.client.producer.encoding import NO_CLAIM, OneMessage, as_bytes
from oncemq.client.producer.producer import Producer
from oncemq.client.producer.receipt import Receipt, receipt_of
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.schemas.claims import OUTDATED, RAW
from oncemq.client.schemas.topic_schemas import STALE


class SinglePut:
    def __init__(self, driver: ThreadDriver, producer: Producer[Any]) -> None:
        self._driver = driver
        self._producer = producer

    def put(self, message: OneMessage) -> Receipt | None:
        """Send one message and wait until it is stored. None: nothing was stored, and the flow of the producer has to
        be used."""
        value = message.value
        if not isinstance(value, RAW) or not self._producer.is_plain(message.topic):
            return None
        operation, payload = message.make(as_bytes(cast(Any, value)), NO_CLAIM)
        try:
            reply = self._driver.run_put(operation, payload)
        except (*STALE, *OUTDATED):
            # The topic has a schema by now.
            return None
        return None if reply is None else receipt_of(message.topic, reply)
