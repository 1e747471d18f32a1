"""Reliable publishers: a message is stored once, however often it is sent, and answered when it is durable.

Its id is a key of its origin (seven days); or it has a number of its origin's session, which is remembered for ever.
"""

from __future__ import annotations

from oncemq.gateways.link import Link, expect, make_put
from oncemq.gateways.push.messages import ID_HEADER, ORIGIN_HEADER, AckPublished, Publish
from oncemq.gateways.push.publishers.origin import Origin
from oncemq.protocol import errors
from oncemq.protocol.commands import Keyed
from oncemq.protocol.names import refuse_topic_name
from oncemq.protocol.replies import PutReply

_ORIGINS_MAX = 10_000


class Publishing:
    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name
        #: Those that number their messages, by session; the one that was used last stands last.
        self._origins: dict[str, Origin] = {}

    async def publish(self, said: Publish, content: bytes) -> AckPublished:
        """Raises Malformed, and what the broker refuses."""
        refusal = refuse_topic_name(said.topic)
        if refusal is not None:
            raise errors.NameInvalid(refusal.text)
        principal = f"{self._name}/{said.origin}"
        if isinstance(said.id, str) and not isinstance(said.number, int):
            headers = {ORIGIN_HEADER: said.origin.encode(), ID_HEADER: said.id.encode()}
            operation, payload = make_put(said.topic, [content], headers=[headers], create=True)
            reply, _ = await self._link.ask(Keyed(principal, said.id, operation), payload)
        elif isinstance(said.number, int) and not isinstance(said.id, str):
            headers = {ORIGIN_HEADER: said.origin.encode(), ID_HEADER: b"%d" % said.number}
            operation, payload = make_put(said.topic, [content], headers=[headers], create=True)
            reply = await self._origin_of(principal).put(said.number, operation, payload)
        else:
            raise errors.Malformed("a message that is published has an id or a number")
        stored = expect(reply, PutReply)
        return AckPublished(
            origin=said.origin, topic=said.topic, id=said.id, number=said.number, offset=stored.first_offset
        )

    def _origin_of(self, session: str) -> Origin:
        origin = self._origins.pop(session, None) or Origin(self._link, session)
        self._origins[session] = origin
        if len(self._origins) > _ORIGINS_MAX:
            self._forget_one()
        return origin

    def _forget_one(self) -> None:
        """It is greeted again when it comes back. Not one that is in use: two greetings fence each other."""
        idle = next((session for session, origin in self._origins.items() if origin.is_idle), None)
        if idle is not None:
            del self._origins[idle]
