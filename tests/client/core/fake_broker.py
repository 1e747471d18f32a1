"""A broker that has only sessions: numbers, verdicts and epochs. Tests read what it has executed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncemq.protocol import commands
from oncemq.protocol.frames import Frame, decode_request, encode_response
from oncemq.protocol.replies import Done, HealthReply, HelloReply, NotNow, Refusal, Reply, Verdict

_encode = msgspec.msgpack.Encoder().encode


class FakeSession:
    def __init__(self) -> None:
        self.epoch = 0
        self.nonce = 0
        self.last_number = 0
        self.verdicts: dict[int, tuple[bytes, Verdict]] = {}


class FakeBroker:
    """Refuses operations on the topic "nowhere", and can't read those on the topic "unreadable"."""

    def __init__(self, broker_id: str = "broker") -> None:
        self.broker_id = broker_id
        self.batch_bytes_max = 0
        self.sessions: dict[str, FakeSession] = {}
        #: (operation, payloads) in the order of execution.
        self.executed: list[tuple[commands.Operation, tuple[bytes, ...]]] = []

    @property
    def values(self) -> list[bytes]:
        """The payloads of the puts that were executed."""
        return [payload for _, payloads in self.executed for payload in payloads]

    def answer(self, frames: Sequence[Frame]) -> list[Frame]:
        request, payloads = decode_request(frames)
        replies = [self._step(*each) for each in zip(request.commands, payloads, strict=True)]
        return encode_response(request.request_id, replies)

    def _step(self, command: commands.Command, payloads: tuple[Frame, ...]) -> Reply:
        if isinstance(command, commands.Hello):
            return self._hello(command)
        if isinstance(command, commands.Numbered):
            return self._numbered(command, tuple(map(bytes, payloads)))
        assert isinstance(command, commands.Health)
        return HealthReply("1", self.broker_id, "memory", 0, 0, 0, 0, -1, {})

    def _hello(self, hello: commands.Hello) -> Reply:
        session = self.sessions.get(hello.session)
        if hello.epoch:
            if session is None or hello.epoch > session.epoch:
                return Refusal("SESSION_UNKNOWN", "there is no such session")
            if hello.epoch < session.epoch:
                return Refusal("FENCED", "another client took over")
        else:
            session = self.sessions.setdefault(hello.session, FakeSession())
            if session.nonce != hello.nonce:
                session.epoch += 1
                session.nonce = hello.nonce
        verdicts = tuple((number, verdict) for number, (_, verdict) in session.verdicts.items())
        return HelloReply(session.epoch, session.last_number, 64, verdicts, self.broker_id, self.batch_bytes_max)

    def _numbered(self, command: commands.Numbered, payloads: tuple[bytes, ...]) -> Reply:
        session = self.sessions.get(command.session)
        if session is None or command.epoch > session.epoch:
            return Refusal("SESSION_UNKNOWN", "there is no such session")
        if command.epoch < session.epoch:
            return Refusal("FENCED", "another client took over")
        if isinstance(command.operation, commands.Put) and command.operation.topic == "unreadable":
            return Refusal("MALFORMED", "it can't be read")
        digest = _encode(command.operation)
        if command.number <= session.last_number:
            return self._repeat(session, command, digest)
        if command.number != session.last_number + 1:
            return NotNow("GAP", "a number is missing", session.last_number)
        assert 1 <= command.seen_below <= command.number
        verdict = self._execute(command.operation, payloads)
        session.last_number = command.number
        session.verdicts[command.number] = digest, verdict
        for number in [number for number in session.verdicts if number < command.seen_below]:
            del session.verdicts[number]
        return verdict

    @staticmethod
    def _repeat(session: FakeSession, command: commands.Numbered, digest: bytes) -> Reply:
        is_void = isinstance(command.operation, commands.Void)
        if command.number not in session.verdicts:
            return Done() if is_void else Refusal("VERDICT_FORGOTTEN", "it was decided long ago")
        known, verdict = session.verdicts[command.number]
        if known != digest and not is_void:
            return Refusal("SEQUENCE_REUSED", "the number was used for something else")
        return verdict

    def _execute(self, operation: commands.Operation, payloads: tuple[bytes, ...]) -> Verdict:
        if isinstance(operation, commands.Put) and operation.topic == "nowhere":
            return Refusal("TOPIC_UNKNOWN", "there is no topic 'nowhere'")
        if not isinstance(operation, commands.Void):
            self.executed.append((operation, payloads))
        return Done()
