"""Reads any range of a topic, without a subscription."""

from __future__ import annotations

from datetime import datetime

from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.core.commands.pending import Pending
from oncemq.client.runtime.driver import Driver
from oncemq.client.runtime.flow import Flow, Outside
from oncemq.client.runtime.rpc import ask
from oncemq.protocol.commands import START_EARLIEST, START_NEW, Find, Read, Seek
from oncemq.protocol.message import Message
from oncemq.protocol.replies import BatchHead, FindReply, GetReply, expect

_READ_BYTES = 512 * 1024
_WAIT_MS = 2000

Start = int | str


def start_of(start: Start) -> int:
    """Return an offset, `new` (`latest`) or `earliest` as the broker encodes it. Raises ValueError."""
    if start in ("new", "latest"):
        return START_NEW
    if start == "earliest":
        return START_EARLIEST
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise ValueError(f"start is 'new' (or 'latest'), 'earliest' or an offset, not {start!r}")


def time_of(moment: datetime) -> int:
    """Return a time in milliseconds since 1970. A time without a zone is local. Raises ValueError."""
    time_ms = round(moment.timestamp() * 1000)
    if time_ms < 1:
        raise ValueError(f"{moment} is before 1970")
    return time_ms


def seek_of(topic: str, subscriber: str, to: Start | datetime) -> Seek:
    """Return the command that moves a subscription to an offset, `new`, `earliest` or a time. Raises ValueError."""
    if isinstance(to, datetime):
        return Seek(topic, subscriber, time_ms=time_of(to))
    return Seek(topic, subscriber, start_of(to))


def end_of(driver: Driver, topic: str, topic_id: int) -> Flow[int]:
    """Ask the broker for the offset of the topic's next message."""
    reply = yield from ask(driver, Read(topic, START_NEW, 1, 0, topic_id), GetReply)
    return reply.end_offset


class Reader:
    """Reads a range in parts. The next part is fetched while the caller uses this one."""

    def __init__(
        self,
        driver: Driver,
        topic: str,
        start: Start | datetime | None,
        stop: int | None,
        follow: bool,
        topic_id: int,
        part_bytes: int = _READ_BYTES,
    ) -> None:
        if start is None:
            start = "new" if follow else "earliest"
        self._driver = driver
        #: The time to start at, until the broker has said which offset that is.
        self._start_ms = time_of(start) if isinstance(start, datetime) else 0
        self._buffer = FetchBuffer(topic, 0 if isinstance(start, datetime) else start_of(start))
        self._buffer.topic_id = topic_id
        self._stop = stop
        self._follow = follow
        self._part_bytes = part_bytes
        self._pending: Pending | None = None
        self._has_begun = False

    def next_part(self) -> Flow[list[Message]]:
        """Return the next messages; an empty list at the end."""
        yield from self._find_start()
        if not self._buffer and not (yield from self._fetch()):
            return []
        messages = yield Outside(self._buffer.decode)
        if not self._buffer:
            self._ask_ahead()
        return self._within(messages)

    def next_batches(self) -> Flow[list[tuple[BatchHead, bytes]]]:
        """Return the next batches, undecoded. The head of the last one says which of its messages are below `stop`. An
        empty list at the end."""
        yield from self._find_start()
        if not self._buffer and not (yield from self._fetch()):
            return []
        batches = self._buffer.take_all()
        self._ask_ahead()
        return batches if self._stop is None else _below(batches, self._stop)

    @property
    def topic(self) -> str:
        return self._buffer.topic

    @property
    def topic_id(self) -> int:
        """The topic's id; 0 before the first part."""
        return self._buffer.topic_id

    def _find_start(self) -> Flow[None]:
        if self._start_ms:
            found = yield from ask(self._driver, Find(self._buffer.topic, self._start_ms), FindReply)
            self._buffer.position, self._start_ms = found.offset, 0

    def close(self) -> None:
        """Give up the read in flight. May be called anywhere: an iterator may be finalized at any moment."""
        if self._pending is not None:
            self._driver.drop(self._pending)

    def _within(self, messages: list[Message]) -> list[Message]:
        stop = self._stop
        if stop is None or messages[-1].offset < stop:
            return messages
        return [message for message in messages if message.offset < stop]

    def _is_over(self) -> bool:
        return self._stop is not None and self._buffer.position >= self._stop

    def _fetch(self) -> Flow[bool]:
        """Wait until there is something to decode. False: the end was reached."""
        while not self._is_over():
            self._driver.check_usable()
            if self._pending is None:
                self._ask(_WAIT_MS if self._follow and self._has_begun else 0)
            assert self._pending is not None
            yield self._pending
            self._take_reply()
            if self._buffer:
                return True
        return False

    def _ask_ahead(self) -> None:
        if self._pending is None and not self._buffer.is_caught_up and not self._is_over():
            self._ask(0)
            self._driver.pump()

    def _ask(self, wait_ms: int) -> None:
        buffer = self._buffer
        command = Read(buffer.topic, buffer.position, self._part_bytes, wait_ms, buffer.topic_id)
        self._pending = self._driver.core.ask(command)

    def _take_reply(self) -> None:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        reply = expect(pending.result(), GetReply)
        self._buffer.take(reply, pending.payloads)
        self._has_begun = True
        if not self._follow and (self._stop is None or self._stop > reply.end_offset):
            # What is put from now on is not part of this range.
            self._stop = reply.end_offset


def _below(batches: list[tuple[BatchHead, bytes]], stop: int) -> list[tuple[BatchHead, bytes]]:
    """Leave out the messages at `stop` and after it."""
    found = [batch for batch in batches if batch[0].first_offset < stop]
    if found:
        head, payload = found[-1]
        excess = head.first_offset + head.count - stop
        if excess > 0:
            head = BatchHead(head.first_offset, head.count - excess, head.skip, head.time_ms, head.checksum)
            found[-1] = (head, payload)
    return found
