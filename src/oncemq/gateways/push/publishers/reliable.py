"""Reliable publishers: a message is stored once, even if it is sent repeatedly, and answered when it is durable.

Its id is a key of its origin, which is remembered for seven days; or it has a number of its origin's session, which is
remembered without a time limit. The origins of a user are the user's own.
"""

from __future__ import annotations

from oncemq.client.gateway_api import make_put
from oncemq.gateways.caller_links import CallerLinks
from oncemq.gateways.link import Link
from oncemq.gateways.push.messages import ID_HEADER, ORIGIN_HEADER, AckPublished, Publish
from oncemq.gateways.push.publishers.origin import Origin
from oncemq.protocol import errors
from oncemq.protocol.commands import Keyed
from oncemq.protocol.names import refuse_topic_name
from oncemq.protocol.replies import PutReply, expect

_ORIGINS_MAX = 10_000


class ReliablePublishers:
    def __init__(self, links: CallerLinks, name: str) -> None:
        self._links = links
        self._name = name
        #: Origins that number their messages, by caller and session, in the order of their last use.
        self._origins: dict[tuple[str, str], Origin] = {}

    async def publish(self, request: Publish, content: bytes, caller: str = "") -> AckPublished:
        """Store a message of a caller. Raises Malformed, and what the broker refuses."""
        refusal = refuse_topic_name(request.topic)
        if refusal is not None:
            raise errors.NameInvalid(refusal.text)
        if isinstance(request.id, str) == isinstance(request.number, int):
            raise errors.Malformed("publish needs either an id or a number")
        link = self._links.of(caller)
        principal = link.principal(f"{self._name}/{request.origin}")
        message_id = request.id if isinstance(request.id, str) else str(request.number)
        headers = {ORIGIN_HEADER: request.origin.encode(), ID_HEADER: message_id.encode()}
        operation, payload = make_put(request.topic, True, [content], headers=[headers])
        if isinstance(request.number, int):
            reply = await self._origin_of(link, principal).put(request.number, operation, payload)
        else:
            reply, _ = await link.ask(Keyed(principal, message_id, operation), payload)
        stored = expect(reply, PutReply)
        return AckPublished(
            origin=request.origin,
            topic=request.topic,
            id=request.id,
            number=request.number,
            offset=stored.first_offset,
        )

    def _origin_of(self, link: Link, session: str) -> Origin:
        origin = self._origins.pop((link.caller, session), None) or Origin(link, session)
        self._origins[link.caller, session] = origin
        if len(self._origins) > _ORIGINS_MAX:
            self._forget_one()
        return origin

    def _forget_one(self) -> None:
        """Forget an idle origin: it says hello again when it comes back. One in use must stay, since two hellos of one
        session fence each other."""
        idle = next((key for key, origin in self._origins.items() if origin.is_idle), None)
        if idle is not None:
            del self._origins[idle]
