"""Reading any range of a topic: moves nothing, belongs to nobody."""

from __future__ import annotations

from collections.abc import Iterator

from oncemq import errors
from oncemq.client.delivery import Delivery
from oncemq.client.driver import Driver
from oncemq.client.pending import Pending
from oncemq.engine.commands import START_EARLIEST, START_NEW, Read
from oncemq.engine.replies import GetReply
from oncemq.message import Message

_READ_BYTES = 512 * 1024
_WAIT_MS = 2000

Start = int | str


def start_of(start: Start) -> int:
    """An offset, `new` or `earliest`, as the broker understands it."""
    if start == "new":
        return START_NEW
    if start == "earliest":
        return START_EARLIEST
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise ValueError(f"start is 'new', 'earliest' or an offset, not {start!r}")


def end_of(driver: Driver, topic: str, topic_id: int) -> int:
    """The offset that the topic's next message will get, by the broker's word."""
    reply = driver.ask(Read(topic, START_NEW, 1, 0, topic_id)).result()
    if not isinstance(reply, GetReply):
        raise errors.Malformed(f"a read was answered with {type(reply).__name__}")
    return reply.end_offset


class Reader:
    """Iterates over a range; the next part is fetched while this one is used."""

    def __init__(self, driver: Driver, topic: str, start: Start, stop: int | None, follow: bool, topic_id: int) -> None:
        self._driver = driver
        self._delivery = Delivery(topic, start_of(start))
        self._delivery.topic_id = topic_id
        self._stop = stop
        self._follow = follow
        self._pending: Pending | None = None
        self._has_begun = False

    def messages(self) -> Iterator[Message]:
        try:
            while self._fetch():
                while self._delivery:
                    messages = self._delivery.decode()
                    if not self._delivery:
                        self._ask_ahead()
                    yield from self._within(messages)
        finally:
            self._drop()

    def _within(self, messages: list[Message]) -> list[Message]:
        stop = self._stop
        if stop is None or messages[-1].offset < stop:
            return messages
        return [message for message in messages if message.offset < stop]

    def _is_over(self) -> bool:
        return self._stop is not None and self._delivery.position >= self._stop

    def _fetch(self) -> bool:
        """Until there is something; False where nothing more will come."""
        while not self._is_over():
            with self._driver.lock:
                self._driver.check_usable()
                if self._pending is None:
                    self._ask(_WAIT_MS if self._follow and self._has_begun else 0)
                assert self._pending is not None
                self._driver.wait_locked(self._pending)
            self._take_reply()
            if self._delivery:
                return True
        return False

    def _ask_ahead(self) -> None:
        if self._pending is None and not self._delivery.is_caught_up and not self._is_over():
            with self._driver.lock:
                self._ask(0)
                self._driver.pump_locked()

    def _ask(self, wait_ms: int) -> None:
        delivery = self._delivery
        command = Read(delivery.topic, delivery.position, _READ_BYTES, wait_ms, delivery.topic_id)
        self._pending = self._driver.core.ask(command)

    def _take_reply(self) -> None:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        reply = pending.result()
        if not isinstance(reply, GetReply):
            raise errors.Malformed(f"a read was answered with {type(reply).__name__}")
        self._delivery.take(reply, pending.payloads)
        self._has_begun = True
        if self._stop is None and not self._follow:
            # What is put from now on is not part of this reading.
            self._stop = reply.end_offset

    def _drop(self) -> None:
        if self._pending is not None:
            with self._driver.lock:
                self._driver.core.give_up(self._pending, errors.ClientClosed())
