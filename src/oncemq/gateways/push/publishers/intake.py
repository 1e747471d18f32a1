"""Messages of plain PUB publishers: received, gathered by topic, stored.

A message that has arrived is stored once and in order, even if the broker does not answer for long, while this process
lives: it waits here, up to a limit. Beyond the limit messages are dropped, counted and logged; a PUB socket gets no
notice of it. A publisher that must know whether a message was stored uses `publish` (ack_server.py).

If there are users, messages are stored on behalf of their caller, who needs the rights to write to the topic and to
create it. One user can't take all of the buffer.

    frames      [topic, content]        or one frame: "topic content", the topic without spaces
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from oncemq.client.gateway_api import (
    NO_CREDENTIALS,
    STALE_SCHEMA,
    BrokerSession,
    Credentials,
    KnownSchema,
    Pending,
    claim_payloads,
    known_of,
    make_put,
)
from oncemq.gateways.bounded_dict import BoundedDict
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.put_batcher import BATCH_BYTES_MAX
from oncemq.protocol import errors
from oncemq.protocol.commands import As, Command, Schemas
from oncemq.protocol.names import refuse_topic_name
from oncemq.protocol.replies import SchemasReply

log = logging.getLogger("oncemq.push")

#: Errors after which messages wait, and are sent again.
_AGAIN = (*errors.TRANSIENT, errors.SessionUnknown, errors.Fenced)
#: Errors that concern the user.
_NOT_ALLOWED = (errors.Unauthenticated, errors.Forbidden, errors.QuotaReached)

_BATCH_MESSAGES = 5_000
#: Every broker accepts this size. A larger message waits until the broker has told its limit.
_BATCH_BYTES = BATCH_BYTES_MAX - 32 * 1024
#: Give up at once if the broker says "not now": other topics need not wait for this one.
_AT_ONCE_MS = 1e-3
#: Then the topic pauses, twice as long each time.
_PAUSE_S = 0.1
_PAUSE_S_MAX = 2.0
#: The number of attempts is unlimited.
_TRIES = 2**40
#: Memory of a message in addition to its content, and of a topic in addition to its messages.
_OVERHEAD_BYTES = 100
_TOPIC_BYTES = 2_048


class Intake:
    def __init__(
        self,
        urls: Sequence[str],
        counters: Counters,
        *,
        buffer_bytes_max: int,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._session = BrokerSession(urls, label="push-intake", tries=_TRIES, credentials=credentials)
        self._counters = counters
        self._buffer_bytes_max = buffer_bytes_max
        self._buffered_bytes = 0
        self._loop = asyncio.get_running_loop()
        #: By caller and name. A topic is kept only while messages wait for it.
        self._topics: dict[_Key, _Topic] = {}
        self._touched: dict[_Key, _Topic] = {}
        #: The size of what the messages and topics of each user take.
        self._bytes_by_user: dict[str, int] = {}
        #: Schemas of topics that have one, by caller and topic.
        self._known: BoundedDict[tuple[str, str], KnownSchema] = BoundedDict()
        #: User and topic of refusals that were logged.
        self._logged: BoundedDict[tuple[str, str], bool] = BoundedDict()

    @property
    def is_empty(self) -> bool:
        return not self._topics

    # Receiving.

    def add(self, frames: list[bytes], caller: str = "") -> None:
        """Receive a message of a caller."""
        if len(frames) == 2:
            name, content = frames
        elif len(frames) == 1:
            name, space, content = frames[0].partition(b" ")
            if not space:
                self._refuse("a publisher's message has no topic")
                return
        else:
            self._refuse(f"a publisher's message has {len(frames)} frames instead of 2")
            return
        key = caller, name.removesuffix(b"\0")
        topic = self._topics.get(key) or self._new_topic(*key)
        if topic is None:
            return
        size = len(content) + _OVERHEAD_BYTES
        if self._is_full(topic.user, size):
            self._drop(1, "the broker is unreachable or slow, and the buffer is full: publishers' messages are dropped")
            self._forget_if_empty(topic)
            return
        self._count(topic, size)
        topic.waiting.append(content)
        self._touched[key] = topic

    def _is_full(self, user: str, size: int) -> bool:
        if self._buffered_bytes + size > self._buffer_bytes_max:
            return True
        # One user may take half of it.
        return bool(user) and self._bytes_by_user[user] + size > self._buffer_bytes_max // 2

    def _count(self, topic: _Topic, size: int) -> None:
        self._buffered_bytes += size
        if topic.user:
            self._bytes_by_user[topic.user] = count = self._bytes_by_user.get(topic.user, 0) + size
            if not count:
                del self._bytes_by_user[topic.user]

    def _new_topic(self, caller: str, frame: bytes) -> _Topic | None:
        try:
            name = frame.decode()
        except UnicodeDecodeError:
            self._refuse("a publisher's topic is not UTF-8")
            return None
        refusal = refuse_topic_name(name)
        if refusal is not None:
            self._refuse(f"a publisher's topic is invalid: {refusal.text}")
            return None
        topic = self._topics[caller, frame] = _Topic(caller, frame, name)
        self._count(topic, _TOPIC_BYTES)
        return topic

    def _refuse(self, text: str) -> None:
        self._counters.report("publish_malformed", text)

    def _drop(self, count: int, text: str) -> None:
        self._counters.report("publish_dropped", text, count, logging.ERROR)

    # Storing.

    def flush(self) -> None:
        """Send what has arrived, one batch per topic. Called at the end of each turn of reading."""
        touched, self._touched = self._touched, {}
        for topic in touched.values():
            self._send(topic)

    def _send(self, topic: _Topic) -> None:
        """Send one batch at a time, so that the order is kept if it has to be sent again."""
        if topic.is_sending:
            # A batch that is refused at once leads here. The loop below sends the next one.
            return
        topic.is_sending = True
        try:
            while topic.waiting and not topic.in_flight and not topic.is_pausing:
                self._send_batch(topic)
        finally:
            topic.is_sending = False
        self._forget_if_empty(topic)

    def _send_batch(self, topic: _Topic) -> None:
        topic.in_flight = topic.next_batch()
        try:
            put, raw = make_put(topic.name, True, topic.in_flight)
            operation, (payload,) = claim_payloads(put, (raw,), lambda name: self._known.get((topic.caller, name)))
            core = self._session.driver().core
            if len(payload) > BATCH_BYTES_MAX and not core.batch_bytes_max:
                core.greet()
                raise errors.NotNow("the broker's batch limit is not known yet")
            core.submit(
                operation,
                payload,
                give_up_ms=_AT_ONCE_MS,
                on_done=lambda done: self._done(topic, done),
                caller=topic.caller,
            )
        except errors.OnceMQError as error:
            self._refused(topic, error)
        self._session.driver().pump_soon()

    def _done(self, topic: _Topic, pending: Pending) -> None:
        if pending.error is not None:
            self._refused(topic, pending.error)
            return
        topic.pause_s = _PAUSE_S
        self._counters.add("publish_stored", len(topic.in_flight))
        self._finish_batch(topic)

    def _refused(self, topic: _Topic, error: errors.OnceMQError) -> None:
        if isinstance(error, errors.TooLarge | errors.SchemaMismatch) and len(topic.in_flight) > 1:
            topic.batch_messages = 1
            self._put_back(topic)
            self._send(topic)
        elif isinstance(error, (*STALE_SCHEMA, errors.SchemaMismatch)) and not topic.is_looked_up:
            # Once per batch: what was looked up just now may be refused, too.
            topic.is_looked_up = True
            self._put_back(topic)
            self._look_up(topic)
        elif isinstance(error, _AGAIN):
            self._put_back(topic)
            self._pause(topic, error)
        elif topic.user and isinstance(error, _NOT_ALLOWED):
            self._note_not_allowed(topic, error)
            self._finish_batch(topic)
        elif not isinstance(error, errors.ClientClosed):
            self._drop(len(topic.in_flight), f"messages for '{topic.name}' were refused: {error.text}")
            self._finish_batch(topic)

    def _note_not_allowed(self, topic: _Topic, error: errors.OnceMQError) -> None:
        """There is nobody to answer to. Each user and topic is logged once."""
        self._counters.add("publish_refused", len(topic.in_flight))
        if (topic.user, topic.name) not in self._logged:
            self._logged[topic.user, topic.name] = True
            log.warning("messages of user '%s' for '%s' are dropped: %s", topic.user, topic.name, error.text)

    def _look_up(self, topic: _Topic) -> None:
        """Ask for the schema of a topic, and continue with the reply."""
        topic.is_pausing = True
        schemas = Schemas(topic.name)
        command: Command = As(topic.caller, schemas) if topic.caller else schemas
        pending = self._session.driver().core.ask(command, give_up_ms=_AT_ONCE_MS)
        if pending.done:
            self._looked_up(topic, pending)
        else:
            pending.on_done = lambda done: self._looked_up(topic, done)
            self._session.driver().pump_soon()

    def _looked_up(self, topic: _Topic, pending: Pending) -> None:
        reply = pending.reply
        if isinstance(reply, SchemasReply):
            self._known[topic.caller, topic.name] = known_of(reply)
        elif isinstance(pending.error, _AGAIN):
            topic.is_looked_up = False
            self._pause(topic, pending.error)
            return
        self._loop.call_soon(self._continue, topic)

    def _put_back(self, topic: _Topic) -> None:
        topic.waiting.extendleft(reversed(topic.in_flight))
        topic.in_flight = []

    def _pause(self, topic: _Topic, error: errors.OnceMQError) -> None:
        self._counters.report("publish_waits", f"messages for '{topic.name}' have to wait: {error.text}")
        topic.is_pausing = True
        self._loop.call_later(topic.pause_s, self._continue, topic)
        topic.pause_s = min(2 * topic.pause_s, _PAUSE_S_MAX)

    def _continue(self, topic: _Topic) -> None:
        topic.is_pausing = False
        if not self._session.is_closed:
            self._send(topic)

    def _finish_batch(self, topic: _Topic) -> None:
        self._count(topic, -sum(map(len, topic.in_flight)) - _OVERHEAD_BYTES * len(topic.in_flight))
        topic.in_flight = []
        topic.is_looked_up = False
        self._send(topic)

    def _forget_if_empty(self, topic: _Topic) -> None:
        is_empty = not topic.waiting and not topic.in_flight
        if is_empty and self._topics.pop((topic.caller, topic.frame), None) is not None:
            self._count(topic, -_TOPIC_BYTES)

    def close(self) -> None:
        """Close the connection. Messages that are not stored are lost, and counted."""
        left = sum(len(topic.waiting) + len(topic.in_flight) for topic in self._topics.values())
        if left:
            self._drop(left, "the gateway stops before the broker has stored all messages of publishers")
        self._session.close()


#: Caller, and the name of a topic as it came.
_Key = tuple[str, bytes]


class _Topic:
    """The messages of one caller that wait for one topic."""

    __slots__ = (
        "batch_messages",
        "caller",
        "frame",
        "in_flight",
        "is_looked_up",
        "is_pausing",
        "is_sending",
        "name",
        "pause_s",
        "user",
        "waiting",
    )

    def __init__(self, caller: str, frame: bytes, name: str) -> None:
        self.caller = caller
        self.user = caller.partition("/")[0]
        self.frame = frame
        self.name = name
        self.waiting: deque[bytes] = deque()
        self.in_flight: list[bytes] = []
        self.is_pausing = False
        self.is_sending = False
        #: Its schema was looked up for the messages that are sent next.
        self.is_looked_up = False
        self.pause_s = _PAUSE_S
        #: Reduced after a batch was too large.
        self.batch_messages = _BATCH_MESSAGES

    def next_batch(self) -> list[bytes]:
        waiting = self.waiting
        batch = [waiting.popleft()]
        size = len(batch[0])
        while waiting and len(batch) < self.batch_messages and size + len(waiting[0]) <= _BATCH_BYTES:
            content = waiting.popleft()
            size += len(content)
            batch.append(content)
        return batch
