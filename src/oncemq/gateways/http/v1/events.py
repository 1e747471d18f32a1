"""Server-sent events: a subscription's messages as they are stored, for browsers (EventSource) and line readers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.client.gateway_api import STALE_EPOCH, OwnedSubscription
from oncemq.gateways.http.framework.endpoint import EVENTS, Answer, Call, Endpoint, Reply, Streamed, endpoint, header
from oncemq.gateways.http.framework.fields import Epoch, Offset, SubscriberName, TopicName
from oncemq.gateways.http.framework.problems import problem_of
from oncemq.gateways.http.state import StreamSuccessor, state_of
from oncemq.gateways.http.v1.messages import CONSUMING
from oncemq.gateways.http.v1.ownership import refuse_pattern, with_caller_epoch
from oncemq.gateways.http.v1.rendering import decode_messages, view_of
from oncemq.gateways.subscription import OpenSubscription, SubscriptionKey
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import GetReply

ENDPOINTS: list[Endpoint] = []

#: After this time without a message a comment shows that the stream is alive, and tells the next offset.
HEARTBEAT_MS = 15_000
#: What a stream fetches at a time, beyond the first batch.
_FETCH_BYTES = 256 * 1024
_FETCH_MESSAGES = 10_000
#: How long a browser waits before it reconnects.
_RETRY_MS = 1_000

_encode = msgspec.json.Encoder().encode


#: <topic's id>-<epoch>-<offset>; without the offset before the first message.
_ID = re.compile(r"(\d{1,18})-(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


class EventsParameters(msgspec.Struct, frozen=True):
    topic: TopicName
    subscriber: SubscriberName
    position: Annotated[
        Offset | UnsetType, Meta(description="Where to start. Default: the first message that is not acked.")
    ] = UNSET
    ack: Annotated[
        Literal["none", "sent"],
        Meta(
            description="`sent`: ack each message once it is written. `none`: only `Last-Event-ID` and POST …/ack do."
        ),
    ] = "none"
    epoch: Epoch = 0
    last_event_id: Annotated[
        str,
        header(
            "Last-Event-ID",
            "The last event that was seen: it and all before it are acked, and the stream continues.",
            min_length=1,
        ),
    ] = ""


@endpoint(
    ENDPOINTS,
    "GET",
    "/v1/topics/{topic}/subscriptions/{subscriber}/events",
    tag="consuming",
    summary="Stream messages",
    parameters=EventsParameters,
    is_changing=True,
    is_stream=True,
    replies=(
        Reply(
            media=(EVENTS,),
            description="An endless stream of events.",
            example=(
                "id: 281474976710657-2-3\n"
                'data: {"offset":3,"time_ms":1790000000000,"idempotency_key":"281474976710657-3","value":"soup"}\n\n'
            ),
        ),
        Reply(status=204, description="Another consumer has taken over since `Last-Event-ID`. EventSource stops."),
    ),
    refusals=CONSUMING,
)
async def events(call: Call[EventsParameters, None]) -> Answer | Streamed:
    """Each event has a message, in JSON, as its `data`. When a browser's EventSource has lost its connection, it
    reconnects with `Last-Event-ID`, which acks the messages that it has seen: so it gets each message once. If a seek
    has moved the subscription meanwhile, or the topic was created again, nothing is acked, and the stream starts at
    the subscription's position.

    The stream becomes the subscription's owner, unless it has an `epoch`. A stream that is opened later without
    `Last-Event-ID` ends this one and keeps the subscription: if the first reader then comes back, it is told to stop
    (204). While there is nothing to send, a comment tells the next offset every 15 seconds. An error is an event named
    `problem` with the problem as its data; it ends the stream.
    """
    stream = _EventStream(call)
    try:
        await stream.open()
        # Before the response begins, so that a refusal is an ordinary HTTP response.
        first = await stream.get(0)
    except errors.Fenced:
        if call.parameters.epoch or not call.parameters.last_event_id:
            raise
        return Answer(status=204)
    return Streamed(stream.parts(*first))


class _Seen(msgspec.Struct, frozen=True):
    """The content of `Last-Event-ID`."""

    topic_id: int
    epoch: int
    #: The reader has seen all offsets below; 0: it has seen no message.
    upto: int = 0


def _parse_seen(last_event_id: str) -> _Seen | None:
    """Raises Malformed."""
    if not last_event_id:
        return None
    found = _ID.fullmatch(last_event_id)
    if found is None:
        raise errors.Malformed(
            "Last-Event-ID is not an `id` of this stream; without it the stream starts at the first message not acked"
        )
    topic_id, epoch, offset = found.groups()
    return _Seen(int(topic_id), int(epoch), int(offset) + 1 if offset else 0)


class _EventStream:
    """One stream: its subscription, its position, and what it may ack."""

    def __init__(self, call: Call[EventsParameters, None]) -> None:
        self._call: Call[Any, Any] = call
        self._parameters = call.parameters
        self._key: SubscriptionKey = (call.parameters.topic, call.parameters.subscriber)
        self._state = state_of(call)
        #: Set by `open`.
        self._opened: OpenSubscription
        self._position = 0
        self._ack = -1

    async def open(self) -> None:
        """Raises Fenced if another consumer has opened the subscription since the event that was seen."""
        parameters, seen = self._parameters, _parse_seen(self._parameters.last_event_id)
        starts_anew = seen is None or not seen.upto
        if parameters.epoch:
            await self._open_as_caller(seen)
        elif seen is not None:
            starts_anew = not await self._continue(seen) and starts_anew
        else:
            # A new epoch, so that an older stream of the same subscription ends.
            await self._open_anew()
        is_placed = starts_anew and not isinstance(parameters.position, UnsetType)
        self._position = parameters.position if is_placed else self._opened.acked  # type: ignore[assignment]

    async def _open_anew(self) -> None:
        refuse_pattern(self._key[0])
        self._opened = await self._state.subscriptions.open_anew(self._key)

    async def _open_as_caller(self, seen: _Seen | None) -> None:
        async def use(opened: OpenSubscription) -> None:
            self._opened = opened
            await opened.find_acked()

        if seen is not None:
            with suppress(*STALE_EPOCH):
                await self._ack_seen(seen, seen.epoch, seen.upto)
        await with_caller_epoch(self._call, self._key, self._parameters.epoch, use)

    async def _continue(self, seen: _Seen) -> bool:
        """Continue an earlier stream of the same reader. Returns whether the subscription was moved since; only if it
        was not, what the reader has seen is acked."""
        refuse_pattern(self._key[0])
        successor = self._state.successors.get(self._key)
        epoch, is_moved = seen.epoch, False
        if successor is not None and successor.former_epoch == epoch:
            # The reader came back before, and that reply was lost.
            epoch, is_moved = successor.epoch, successor.is_moved
        try:
            await self._ack_seen(seen, epoch, 0 if is_moved else seen.upto)
        except errors.Sought:
            is_moved = True
        except errors.TopicGone:
            await self._open_anew()
            return True
        await self._open_after(epoch, seen.epoch, is_moved)
        return is_moved

    async def _ack_seen(self, seen: _Seen, epoch: int, upto: int) -> None:
        await OpenSubscription(self._call.link, OwnedSubscription(*self._key, seen.topic_id, epoch)).ack(upto)

    async def _open_after(self, epoch: int, told_epoch: int, is_moved: bool) -> None:
        """Open the subscription again, unless another consumer has opened it since `epoch`. `told_epoch` is the last
        epoch that the reader was told."""
        self._opened = await self._state.subscriptions.open_anew(self._key, former=epoch)
        self._state.successors[self._key] = StreamSuccessor(told_epoch, self._opened.epoch, is_moved)

    async def get(self, wait_ms: int) -> tuple[GetReply, Sequence[Frame]]:
        """Get the next messages, and ack those that were sent."""
        fetched = await self._opened.poll(self._position, _FETCH_BYTES, wait_ms, self._ack)
        self._ack = -1
        return fetched

    async def parts(self, reply: GetReply, payloads: Sequence[Frame]) -> AsyncIterator[bytes]:
        """Yield the parts of the response, beginning with the first get's messages."""
        yield b"retry: %d\n%s" % (_RETRY_MS, _heartbeat(reply))
        try:
            async for part in self._messages(reply, payloads):
                yield part
        except errors.OnceMQError as error:
            # The event is not named `error`, since EventSource uses that name for its own events.
            yield b"event: problem\ndata: %s\n\n" % _encode(problem_of(error))

    async def _messages(self, reply: GetReply, payloads: Sequence[Frame]) -> AsyncIterator[bytes]:
        now_s = asyncio.get_running_loop().time
        sent_s = now_s()
        told_epoch = 0
        while True:
            if told_epoch != self._opened.epoch:
                told_epoch = self._opened.epoch
                yield b"id: %s\n\n" % self._id
            events, self._position = self._events(reply, payloads)
            if events:
                yield events
                sent_s = now_s()
                if self._parameters.ack == "sent":
                    self._ack = self._position
            elif now_s() - sent_s >= HEARTBEAT_MS / 1000:
                yield _heartbeat(reply)
                sent_s = now_s()
            reply, payloads = await self._next()

    def _events(self, reply: GetReply, payloads: Sequence[Frame]) -> tuple[bytes, int]:
        messages, is_cut = decode_messages(self._key[0], reply, payloads, _FETCH_MESSAGES)
        events = b"".join(
            b"id: %s-%d\ndata: %s\n\n" % (self._id, each.offset, _encode(view_of(each))) for each in messages
        )
        return events, messages[-1].offset + 1 if is_cut else reply.next_position

    @property
    def _id(self) -> bytes:
        """The id of the stream; with an offset it is the id of an event."""
        return b"%d-%d" % (self._opened.topic_id, self._opened.epoch)

    async def _next(self) -> tuple[GetReply, Sequence[Frame]]:
        try:
            return await self.get(HEARTBEAT_MS)
        except errors.Sought:
            if self._parameters.epoch:
                raise
        await self._open_after(self._opened.epoch, self._opened.epoch, is_moved=True)
        self._position, self._ack = self._opened.acked, -1
        return await self.get(0)


def _heartbeat(reply: GetReply) -> bytes:
    return b": next offset %d\n\n" % reply.end_offset
