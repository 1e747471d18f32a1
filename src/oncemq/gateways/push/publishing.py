"""Reliable publishers: a message is stored once, however often it is sent, and answered when it is durable.

Its id is a key of its origin (seven days); or it has a number of its origin's session, which is remembered for ever.
"""

from __future__ import annotations

import secrets

from oncemq import errors
from oncemq.engine.commands import Hello, Keyed, Numbered, Put
from oncemq.engine.names import refuse_topic_name
from oncemq.engine.replies import HelloReply, PutReply, Reply
from oncemq.gateways.link import Link, expect, make_put
from oncemq.gateways.push.messages import ID_HEADER, ORIGIN_HEADER, AckPublished, Publish

#: Answers of an origin that are remembered, the last ones.
_WINDOW = 64
_ORIGINS_MAX = 10_000


class Publishing:
    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name
        #: Session → epoch: how it was greeted.
        self._epochs: dict[str, int] = {}

    async def publish(self, said: Publish, content: bytes) -> AckPublished:
        """Raises Malformed, and what the broker refuses."""
        refusal = refuse_topic_name(said.topic)
        if refusal is not None:
            raise errors.NameInvalid(refusal.text)
        if isinstance(said.id, str) and not isinstance(said.number, int):
            headers = {ORIGIN_HEADER: said.origin.encode(), ID_HEADER: said.id.encode()}
            operation, payload = make_put(said.topic, [content], headers=[headers], create=True)
            reply, _ = await self._link.ask(Keyed(self._principal(said), said.id, operation), payload)
        elif isinstance(said.number, int) and not isinstance(said.id, str):
            headers = {ORIGIN_HEADER: said.origin.encode(), ID_HEADER: b"%d" % said.number}
            operation, payload = make_put(said.topic, [content], headers=[headers], create=True)
            reply = await self._numbered(said, said.number, operation, payload)
        else:
            raise errors.Malformed("a message that is published has an id or a number")
        stored = expect(reply, PutReply)
        return AckPublished(
            origin=said.origin, topic=said.topic, id=said.id, number=said.number, offset=stored.first_offset
        )

    def _principal(self, said: Publish) -> str:
        return f"{self._name}/{said.origin}"

    async def _numbered(self, said: Publish, number: int, operation: Put, payload: bytes) -> Reply:
        session = self._principal(said)
        for tries_left in (1, 0):
            epoch = self._epochs.get(session) or await self._greet(session)
            command = Numbered(session, epoch, number, max(1, number - _WINDOW + 1), operation)
            try:
                return (await self._link.ask(command, payload))[0]
            except (errors.Fenced, errors.SessionUnknown):
                # Another gateway serves this origin, or an operator has removed its session.
                self._epochs.pop(session, None)
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _greet(self, session: str) -> int:
        hello = Hello(session, 0, secrets.randbits(63), _WINDOW)
        reply = expect((await self._link.ask(hello))[0], HelloReply)
        self._epochs[session] = reply.epoch
        if len(self._epochs) > _ORIGINS_MAX:
            del self._epochs[next(iter(self._epochs))]
        return reply.epoch
