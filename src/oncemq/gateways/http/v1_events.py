"""Server-sent events: a subscription's messages as they come, for browsers (EventSource) and whoever reads lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq import errors
from oncemq.engine.commands import Get, Open
from oncemq.engine.replies import GetReply, OpenReply
from oncemq.gateways.http.consuming import acked_of
from oncemq.gateways.http.endpoint import EVENTS, Call, Endpoint, Reply, Streamed, endpoint, header
from oncemq.gateways.http.fields import Epoch, Offset, SubscriberName, TopicName
from oncemq.gateways.http.opening import note_acked, open_anew, opened_by_caller
from oncemq.gateways.http.problems import problem_of
from oncemq.gateways.http.showing import cut, view_of
from oncemq.gateways.http.state import Place, keep
from oncemq.gateways.http.v1_messages import CONSUMING
from oncemq.gateways.link import expect
from oncemq.wire.frames import Frame

ENDPOINTS: list[Endpoint] = []

#: After so long without a message a comment tells that the stream lives, and the next offset.
HEARTBEAT_MS = 15_000
#: What a stream has in hand at a time, beyond the first batch.
_FETCH_BYTES = 256 * 1024
_FETCH_MESSAGES = 10_000
#: A browser whose stream ended comes back after so long.
_RETRY_MS = 1_000

_encode = msgspec.json.Encoder().encode


class EventsParameters(msgspec.Struct, frozen=True):
    topic: TopicName
    subscriber: SubscriberName
    position: Annotated[Offset | UnsetType, Meta(description="Where to start; left out: at what is not acked.")] = UNSET
    ack: Annotated[
        Literal["none", "sent"],
        Meta(description="`sent`: what was written is done. `none`: only what `Last-Event-ID` or POST …/ack says."),
    ] = "none"
    epoch: Epoch = 0
    last_event_id: Annotated[
        Offset | UnsetType,
        header("Last-Event-ID", "The last offset that was seen: it and all before are done, and the stream goes on."),
    ] = UNSET


@endpoint(
    ENDPOINTS, "GET", "/v1/topics/{topic}/subscriptions/{subscriber}/events", tag="consuming",
    summary="Messages as they come", parameters=EventsParameters, is_changing=True,
    replies=(
        Reply(
            media=(EVENTS,), description="Events without end.",
            example='id: 3\ndata: {"offset":3,"time_ms":1790000000000,"idempotency_key":"1-3","value":"one pizza"}\n\n',
        ),
    ),
    refusals=CONSUMING,
)
async def events(call: Call[EventsParameters, None]) -> Streamed:
    """Each event has the offset as its `id` and the message, in JSON, as its `data`. A browser's EventSource that has
    lost its connection comes back with `Last-Event-ID`, which acks what it has seen: so it gets each message once.

    The stream becomes the subscription's owner, unless it has an `epoch`. When there is nothing to send, a comment
    tells the next offset every 15 seconds. A failure is an event named `error`, with the problem as its data; it ends
    the stream.
    """
    feed = _Feed(call)
    await feed.open()
    # Before the reply begins: what is refused is refused as anywhere.
    first = await feed.get(0)
    return Streamed(feed.parts(*first))


class _Feed:
    """One stream: where it is, and what it may say is done."""

    def __init__(self, call: Call[EventsParameters, None]) -> None:
        self._call: Call[Any, Any] = call
        self._parameters = call.parameters
        self._place: Place = (call.parameters.topic, call.parameters.subscriber)
        self._opened = OpenReply(0, 0, 0)
        self._position = 0
        self._ack = -1

    async def open(self) -> None:
        parameters = self._parameters
        if parameters.epoch:
            self._opened = await opened_by_caller(self._call, self._place[0], parameters.epoch)
            acked = await acked_of(self._call, self._place, self._opened)
        else:
            # Not the gateway's former epoch: an older stream of the same subscription ends.
            self._opened = await open_anew(self._call.link, self._call.state, self._place)
            acked = self._opened.acked
        self._position = acked if isinstance(parameters.position, UnsetType) else parameters.position
        if not isinstance(parameters.last_event_id, UnsetType):
            self._ack = self._position = parameters.last_event_id + 1

    async def get(self, wait_ms: int) -> tuple[GetReply, Sequence[Frame]]:
        opened = self._opened
        command = Get(
            opened.topic_id, self._place[1], opened.epoch, self._position, _FETCH_BYTES, wait_ms, self._ack
        )
        reply, payloads = await self._call.link.wait(command)
        got = expect(reply, GetReply)
        note_acked(self._call.state, self._place, opened.epoch, got.acked)
        self._ack = -1
        return got, payloads

    async def parts(self, reply: GetReply, payloads: Sequence[Frame]) -> AsyncIterator[bytes]:
        yield b"retry: %d\n%s" % (_RETRY_MS, _heartbeat(reply))
        try:
            async for part in self._messages(reply, payloads):
                yield part
        except errors.OnceMQError as error:
            yield b"event: error\ndata: %s\n\n" % _encode(problem_of(error))

    async def _messages(self, reply: GetReply, payloads: Sequence[Frame]) -> AsyncIterator[bytes]:
        now_s = asyncio.get_running_loop().time
        said_s = now_s()
        while True:
            events, self._position = self._events(reply, payloads)
            if events:
                yield events
                said_s = now_s()
                if self._parameters.ack == "sent":
                    self._ack = self._position
            elif now_s() - said_s >= HEARTBEAT_MS / 1000:
                yield _heartbeat(reply)
                said_s = now_s()
            reply, payloads = await self._next()

    def _events(self, reply: GetReply, payloads: Sequence[Frame]) -> tuple[bytes, int]:
        messages, is_cut = cut(self._place[0], reply.topic_id, reply.batches, payloads, _FETCH_MESSAGES)
        events = b"".join(b"id: %d\ndata: %s\n\n" % (each.offset, _encode(view_of(each))) for each in messages)
        return events, messages[-1].offset + 1 if is_cut else reply.next_position

    async def _next(self) -> tuple[GetReply, Sequence[Frame]]:
        try:
            return await self.get(HEARTBEAT_MS)
        except errors.Sought:
            if self._parameters.epoch:
                raise
            await self._open_again()
        return await self.get(0)

    async def _open_again(self) -> None:
        """A seek has moved it. If somebody else has opened it since, it is theirs."""
        reply = await self._call.link.operate(Open(*self._place, former=self._opened.epoch))
        self._opened = expect(reply, OpenReply)
        keep(self._call.state.opened, self._place, self._opened)
        self._position, self._ack = self._opened.acked, -1


def _heartbeat(reply: GetReply) -> bytes:
    return b": next offset %d\n\n" % reply.end_offset
