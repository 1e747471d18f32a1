"""A subscription that a gateway has opened: open, get and ack over the gateway's link to the broker.

The rules of ownership are those of `oncemq.client.consumer.owned_subscription`; every gateway uses them through here.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.gateway_api import DELETED, OwnedSubscription, loss_of
from oncemq.gateways.link import Link
from oncemq.protocol import errors
from oncemq.protocol.commands import Open, Subscribe, Unsubscribe
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import AckReply, GetReply, OpenReply, SubscribeReply, expect

#: (topic, subscriber)
SubscriptionKey = tuple[str, str]


class OpenSubscription:
    """One opening under one epoch. Every method raises Fenced, Sought or TopicGone once the epoch is not the
    subscription's any more (`loss_of` classifies them); then this object is of no more use."""

    __slots__ = ("_link", "owned")

    def __init__(self, link: Link, owned: OwnedSubscription) -> None:
        self._link = link
        self.owned = owned

    def for_link(self, link: Link) -> OpenSubscription:
        """Return the same opening, for another caller of the same user."""
        return self if link is self._link else OpenSubscription(link, self.owned)

    @property
    def topic_id(self) -> int:
        return self.owned.topic_id

    @property
    def epoch(self) -> int:
        return self.owned.epoch

    @property
    def acked(self) -> int:
        """All offsets below are acked, as far as the replies so far have told."""
        return self.owned.acked

    async def get(
        self, position: int, bytes_max: int, wait_ms: int = 0, ack: int = -1
    ) -> tuple[GetReply, Sequence[Frame]]:
        """Read from a position, with one request that waits at the broker for at most `wait_ms`."""
        command = self.owned.get_command(position, bytes_max, wait_ms, ack)
        reply, payloads = await self._link.ask(command)
        return self._note(expect(reply, GetReply)), payloads

    async def poll(
        self, position: int, bytes_max: int, wait_ms: int = 0, ack: int = -1
    ) -> tuple[GetReply, Sequence[Frame]]:
        """Like `get`, but the wait is divided into several requests (`Link.wait`)."""
        command = self.owned.get_command(position, bytes_max, wait_ms, ack)
        reply, payloads = await self._link.wait(command)
        return self._note(expect(reply, GetReply)), payloads

    def _note(self, reply: GetReply) -> GetReply:
        self.owned.note_acked(reply.acked)
        return reply

    async def ack(self, upto: int) -> int:
        """Ack all offsets below `upto`. Returns the subscription's acked position."""
        reply, _ = await self._link.ask(self.owned.ack_command(upto))
        return self.owned.note_acked(expect(reply, AckReply).acked)

    async def find_acked(self) -> int:
        """Return the subscription's acked position, as the broker has it now."""
        return await self.ack(0)


async def open_subscription(link: Link, topic: str, subscriber: str, former: int = 0) -> OpenSubscription:
    """Become the owner; the owner until now is fenced. With the `former` epoch, only if no other consumer has opened
    the subscription since. Raises what the broker refuses it with, and KindMismatch if it is shared."""
    reply = await link.call(Open(topic, subscriber, former=former), OpenReply)
    return OpenSubscription(link, OwnedSubscription.from_reply(topic, subscriber, reply, "take its messages"))


async def subscribe_and_open(
    link: Link, topic: str, subscriber: str, start: int
) -> tuple[OpenSubscription, SubscribeReply]:
    """Create the subscription if it does not exist, and become its owner. Raises as `open_subscription` does."""
    created = await link.call(Subscribe(topic, subscriber, start), SubscribeReply)
    return await open_subscription(link, topic, subscriber), created


async def unsubscribe(link: Link, topic: str, subscriber: str) -> None:
    """Delete a subscription; it may be deleted already. Raises as the link does."""
    try:
        await link.operate(Unsubscribe(topic, subscriber))
    except errors.Refused as error:
        if loss_of(error) not in DELETED:
            raise
