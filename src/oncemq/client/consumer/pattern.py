"""A subscription by pattern, as its owner uses it: messages of all topics that match, and will match.

Order holds within a topic; topics take turns. Each topic has its own position: an ack is about the topic of the
message that it names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import NoReturn

from oncemq.client.consumer.cursor import ACK_AFTER_MS, CAN_WAIT, NOT_FINAL, PASSING, Receiving
from oncemq.client.consumer.delivery import Delivery
from oncemq.client.consumer.filter import Filter
from oncemq.client.consumer.reader import Start, seek_of
from oncemq.client.context import ClientContext
from oncemq.client.core.pending import again
from oncemq.client.recording.records import Whose
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside, method
from oncemq.protocol import errors
from oncemq.protocol.commands import BY_PATTERN, GetAny, Seek
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import AnyPart, GetAnyReply, GetReply, OpenReply, SeekReply


class _Topic:
    """How far one topic is."""

    __slots__ = ("ack_asked", "acked", "delivery", "finished", "given", "left_out", "wanted_end")

    def __init__(self, part: AnyPart) -> None:
        self.delivery = Delivery(part.topic, part.acked)
        #: Where what was given ends, and what the caller has finished.
        self.given = self.finished = part.acked
        self.ack_asked = self.acked = part.acked
        #: Where the last message ends that is wanted, and up to where nothing is wanted behind it.
        self.wanted_end = self.left_out = 0

    def pass_over(self) -> None:
        """What is not wanted is done when everything before it is."""
        if self.finished >= self.given >= self.wanted_end:
            self.given = self.finished = max(self.finished, self.left_out)

    @property
    def owes_ack(self) -> bool:
        return self.finished > self.ack_asked

    @property
    def is_unconfirmed(self) -> bool:
        """An ack is owed, or on its way."""
        return self.finished > self.acked

    @property
    def is_settled(self) -> bool:
        """The broker knows all there is to know of it."""
        return not self.delivery and self.acked >= self.delivery.position and self.finished <= self.acked


#: (topic id, everything below is done)
_Acks = tuple[tuple[int, int], ...]


class PatternConsuming(Receiving):
    """Messages of every topic that matches, each once and in its topic's order."""

    def __init__(
        self,
        context: ClientContext,
        pattern: str,
        subscriber: str,
        *,
        created: bool = False,
        auto_ack: bool = True,
        prefetch_bytes: int = 1024 * 1024,
        wanted: Filter | None = None,
    ) -> None:
        super().__init__(
            context,
            pattern,
            subscriber,
            created=created,
            auto_ack=auto_ack,
            prefetch_bytes=prefetch_bytes,
            wanted=wanted,
        )
        #: Topics that are not settled, by id.
        self._topics: dict[int, _Topic] = {}
        #: Those with messages that were fetched, in the order in which they came.
        self._turns: deque[_Topic] = deque()
        self._is_all = True
        #: Acks that the caller was promised, and that a new opening must not forget.
        self._owed: dict[int, int] = {}
        #: What the ack and the get that are on their way carry.
        self._acks_alone: _Acks = ()
        self._acks_riding: _Acks = ()
        #: What the broker had confirmed when the get was sent that is on its way, by topic's id.
        self._acked_before: dict[int, int] = {}
        #: Messages that it has lost to its topics' quotas, as far as was seen.
        self._dropped: dict[int, int] = {}

    @property
    def dropped(self) -> int:
        return sum(self._dropped.values())

    # Acks by the caller.

    def _ack_at_hand(self, message: Message | int | None) -> bool:
        """Note an ack that needs no waiting. False: it does."""
        if self._opened is None or self._error is not None:
            return False
        self._finish(message)
        return not self._is_ack_due(now_ms())

    def _ack_one(self, message: Message | int | None, wait: bool) -> Flow[None]:
        yield from self._open()
        self._finish(message)
        if wait:
            yield from self._ack_now()
        else:
            self._send_due_ack()

    def _finish(self, message: Message | int | None) -> None:
        if message is None:
            self._note_given()
            for topic in self._topics.values():
                topic.finished = max(topic.finished, topic.given)
                topic.pass_over()
            return
        self._note_given()
        known = self._known(message)
        if known is not None:
            topic = self._topics[known.topic_id]
            topic.finished = max(topic.finished, known.offset + 1)
            topic.pass_over()

    def _known(self, message: Message | int) -> Message | None:
        """None: it was given before a seek, or the broker has its ack."""
        if not isinstance(message, Message):
            raise TypeError(f"a Message is wanted, not {type(message).__name__}: an offset does not name its topic")
        topic = self._topics.get(message.topic_id)
        return message if topic is not None and message.offset < topic.given else None

    # Opening and closing.

    def _open(self, give_up_ms: float = 0.0) -> Flow[OpenReply]:
        if self._error is not None:
            raise again(self._error)
        if self._opened is None:
            self._opened = yield from self._call_open(0, give_up_ms)
            self._is_all = True
            self._ack_sent_ms = self._paced_ms = now_ms()
            self._context.open_subscriptions.add(self)
        return self._opened

    def _close(self, clean: bool) -> Flow[None]:
        self._context.open_subscriptions.discard(self)
        opened, error = self._opened, self._error
        self._error = error or errors.ClientClosed("this subscription was closed")
        if opened is None or error is not None:
            return
        try:
            self._settle_hand(clean)
            yield from self._ack_now()
        except errors.OnceMQError:
            if clean:
                raise
        finally:
            self._forget_fetched()

    @method
    def seek(self, to: Start | datetime) -> Flow[None]:
        """Go on at `"earliest"`, `"new"`, or the first messages that were stored at a time or later.

        >>> subscription.seek("earliest")
        """
        command = seek_of(self.topic, self.subscriber, to)
        return self._one_user.around(self._seek(command))

    def _seek(self, command: Seek) -> Flow[None]:
        yield from self._open()
        yield from self._context.call(command, SeekReply)
        self._reopen(sought=True)

    def _reopen(self, *, sought: bool = False) -> None:
        """Its next use opens it again, and goes on where the broker says. What was fetched ahead is dropped."""
        self._owed = {} if sought else {key: each.finished for key, each in self._topics.items() if each.is_unconfirmed}
        self._was_sought = self._was_sought or sought
        self._forget_fetched()
        self._forget_opening()

    def _forget_fetched(self) -> None:
        super()._forget_fetched()
        self._turns.clear()
        self._topics.clear()

    def _has_more(self) -> bool:
        return bool(self._turns)

    # In a transaction.

    def _acks_for_transaction(self, message: Message | int | None) -> dict[int, int]:
        self._note_given()
        if message is not None:
            known = self._known(message)
            if known is None:
                raise ValueError("this message was not given yet, or comes again since another transaction failed")
            return {known.topic_id: known.offset + 1}
        return {key: topic.given for key, topic in self._topics.items() if topic.given > topic.finished}

    def _key(self) -> str:
        return self.subscriber + BY_PATTERN + self.topic

    def _committed(self, topic_id: int, upto: int) -> None:
        topic = self._topics.get(topic_id)
        if topic is not None:
            topic.finished = max(topic.finished, upto)
            topic.acked = max(topic.acked, upto)
            topic.ack_asked = max(topic.ack_asked, upto)

    def _go_back(self, claims: Mapping[int, int]) -> None:
        if self._opened is None or self._error is not None:
            return
        self._note_given()
        if any(topic.given > max(topic.finished, claims.get(key, 0)) for key, topic in self._topics.items()):
            self._reopen()

    # What is in hand.

    def _note_given(self) -> None:
        for message in self._hand_list or ([self._hand] if self._hand is not None else []):
            topic = self._topics.get(message.topic_id)
            if topic is not None:
                topic.given = max(topic.given, message.offset + 1)

    def _settle_hand(self, is_done: bool = True) -> None:
        if self._hand is None:
            return
        self._note_given()
        if self.auto_ack and is_done:
            for message in self._hand_list or [self._hand]:
                topic = self._topics.get(message.topic_id)
                if topic is not None:
                    topic.finished = max(topic.finished, message.offset + 1)
                    topic.pass_over()
        self._hand, self._hand_list = None, []

    # Acks.

    def _is_ack_due(self, at_ms: float) -> bool:
        if at_ms - self._ack_sent_ms < ACK_AFTER_MS:
            return False
        return bool(self._owed) or any(topic.owes_ack for topic in self._topics.values())

    def _owes_acks(self) -> bool:
        return bool(self._owed) or any(topic.is_unconfirmed for topic in self._topics.values())

    def _ask_ack(self) -> None:
        if self._ack is None or self._ack.done:
            for topic in self._topics.values():
                # Those that ride on a get may be dropped with it.
                topic.ack_asked = topic.acked
            self._acks_alone = self._take_acks()
            self._ack = self._driver.core.ask(self._command(0, 0, self._acks_alone))

    def _take_acks(self) -> _Acks:
        """What is to be acked; from now on it counts as asked."""
        self._ack_sent_ms = now_ms()
        acks, self._owed = self._owed, {}
        for key, topic in self._topics.items():
            if topic.owes_ack:
                topic.ack_asked = acks[key] = max(topic.finished, acks.get(key, 0))
        return tuple(acks.items())

    def _were_acked(self, acks: _Acks) -> None:
        for key, upto in acks:
            topic = self._topics.get(key)
            if topic is not None:
                topic.acked = max(topic.acked, upto)
                if topic.is_settled:
                    del self._topics[key]

    def _were_not_acked(self, acks: _Acks) -> None:
        """The broker was away: later ones say the same."""
        for key, upto in acks:
            topic = self._topics.get(key)
            if topic is not None:
                topic.ack_asked = topic.acked
            else:
                self._owed[key] = max(upto, self._owed.get(key, 0))

    def _note_acks(self) -> None:
        """Look at acks that went alone."""
        if self._ack is None or not self._ack.done:
            return
        pending, self._ack = self._ack, None
        try:
            pending.result()
        except PASSING:
            self._were_not_acked(self._acks_alone)
        except errors.Sought:
            self._reopen(sought=True)
        except errors.OnceMQError as error:
            self._refused(error)
        else:
            self._were_acked(self._acks_alone)

    # Fetching.

    def _advance(self, timeout_s: float | None) -> Flow[bool]:
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
        while True:
            if not self._turns and not (yield from self._fetch(until_ms)):
                return False
            messages = yield from self._decode_next(self._turns[0])
            self._current = iter(messages)
            self._prefetch()
            if messages:
                return True

    def _decode_next(self, topic: _Topic) -> Flow[list[Message]]:
        """It stays first until that is done: who is interrupted finds it there. What can't be decoded has its turn
        again after the others."""
        end = -1
        try:
            if self._wanted is None:
                messages: list[Message] = yield Outside(topic.delivery.decode)
            else:
                messages, end = yield Outside(partial(topic.delivery.decode_wanted, self._wanted))
        except Exception:
            self._turns.rotate(-1)
            raise
        if self._turns and self._turns[0] is topic:
            self._turns.popleft()
            if topic.delivery:
                self._turns.append(topic)
        looked_at = (max(topic.given, topic.left_out), end) if end >= 0 else None
        if end >= 0:
            self._leave_out(topic, messages, end)
        recorder = self._driver.core.recorder
        if recorder is not None and self._opened is not None:
            delivery = topic.delivery
            whose = Whose(self._driver.core.broker_id, delivery.topic_id, self._key(), self._opened.epoch)
            recorder.got(whose, delivery.topic, messages, looked_at=looked_at)
        return messages

    def _leave_out(self, topic: _Topic, wanted: list[Message], end: int) -> None:
        """Messages that the caller does not want count as done, with those before them."""
        if wanted:
            topic.wanted_end = wanted[-1].offset + 1
        topic.left_out = end
        self._note_given()
        topic.pass_over()

    def _prefetch(self) -> None:
        """Keep one get on its way while there is more."""
        if self._get is not None:
            self._driver.pump()
            if self._get.done and not isinstance(self._get.error, CAN_WAIT):
                self._take_reply()
        buffered_bytes = sum(topic.delivery.buffered_bytes for topic in self._turns)
        if self._get is None and not self._is_all and buffered_bytes < self._prefetch_bytes:
            self._ask_get(0)
            self._driver.pump()

    def _ask_get(self, wait_ms: int) -> None:
        self._acks_riding = self._take_acks()
        self._acked_before = {key: topic.acked for key, topic in self._topics.items()}
        self._get = self._driver.core.ask(self._command(max(1, self._prefetch_bytes // 2), wait_ms, self._acks_riding))

    def _command(self, bytes_max: int, wait_ms: int, acks: _Acks) -> GetAny:
        assert self._opened is not None
        positions = tuple((key, topic.delivery.position) for key, topic in self._topics.items())
        return GetAny(self.topic, self.subscriber, self._opened.epoch, positions, bytes_max, wait_ms, acks)

    def _take_reply(self) -> None:
        assert self._get is not None
        pending, self._get = self._get, None
        try:
            reply = pending.result()
        except PASSING:
            self._were_not_acked(self._acks_riding)
            raise
        except errors.Sought:
            self._reopen(sought=True)
            return
        except errors.OnceMQError as error:
            self._refused(error)
        if not isinstance(reply, GetAnyReply):
            raise errors.Malformed(f"a get was answered with {type(reply).__name__}")
        for part in reply.parts:
            acked = self._acked_before.get(part.topic_id, 0)
            if part.acked < acked:
                self._was_rewound(f"offset {acked - 1} of '{part.topic}' was acked, and it stands at {part.acked}")
        self._were_acked(self._acks_riding)
        self._is_all = reply.is_all
        frames = iter(pending.payloads)
        for part in reply.parts:
            self._take_part(part, frames)

    def _take_part(self, part: AnyPart, frames: Iterable[Frame]) -> None:
        topic = self._topics.get(part.topic_id)
        if topic is None:
            topic = self._topics[part.topic_id] = _Topic(part)
        self._dropped[part.topic_id] = part.dropped
        payloads = [frame for _, frame in zip(part.batches, frames, strict=False)]
        had_some = bool(topic.delivery)
        position = topic.delivery.position
        reply = GetReply(part.topic_id, part.next_position, part.end_offset, part.acked, part.batches, part.dropped)
        topic.delivery.take(reply, payloads)
        self._is_all = self._is_all and topic.delivery.position == part.next_position != position
        if topic.delivery and not had_some:
            self._turns.append(topic)

    def _refused(self, error: errors.OnceMQError) -> NoReturn:
        """Final for this object, mostly. What was fetched ahead belongs to the new owner."""
        if not isinstance(error, NOT_FINAL):
            self._error = error
            self._forget_fetched()
        raise again(error)
