"""A process that adds versions to the schema of a topic, and stages batches with and without a version.

A version number belongs to one schema forever, through all crashes. From the first version on, the topic accepts no
batch that names no version, or one that it does not have."""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.schema import Schema, parse_fields
from tests.simulation.environment.world import Violation, World
from tests.simulation.processes.process import Context, Process

TOPIC = "typed"
_EXPECTED = (errors.BrokerAway, errors.NotNow, errors.LimitReached, errors.TopicUnknown)


def has_schemas(world: World) -> bool:
    return world.seed % 11 == 6


class SchemaOperator(Process):
    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context, name)
        self._idle = True
        self._stages = 0
        #: Versions that the broker has confirmed, with their definitions.
        self._versions: dict[int, str] = {}

    def rules(self) -> list[str]:
        return [f"all {TOPIC}"]

    def begin(self) -> None:
        self._do(commands.CreateTopic(TOPIC))

    @property
    def is_settled(self) -> bool:
        return self.core is not None and self._idle

    def _do(self, operation: commands.Operation, payload: bytes | None = None) -> None:
        self._idle = False
        # What must be true when the reply comes was true when the command was sent.
        known = len(self._versions)
        self.submit(operation, payload, lambda pending: self._did(pending, operation, known))

    def _did(self, pending: Pending, operation: commands.Operation, known: int) -> None:
        if self.is_over(pending):
            return
        error = pending.error
        self.world.note(f"{self.name}: {operation} → {error.code if error is not None else pending.reply}")
        if isinstance(operation, commands.Stage):
            self._check_staged(operation, error, known)
        elif error is not None and not isinstance(error, _EXPECTED):
            raise Violation(f"{self.name}: {operation} got {error.code}: {error}")
        if isinstance(operation, commands.PutSchema) and isinstance(pending.reply, replies.SchemaReply):
            self._check_version(operation, pending.reply)
        self._idle = True
        self.later(int(self.random.random() * 4 * self.world.faults.think_ms), self._act)

    def _check_version(self, operation: commands.PutSchema, reply: replies.SchemaReply) -> None:
        assert operation.schema is not None
        text = self._versions.setdefault(reply.version, operation.schema.definition)
        if text != operation.schema.definition:
            raise Violation(f"inconsistent: version {reply.version} is '{text}' and '{operation.schema.definition}'")

    def _check_staged(self, operation: commands.Stage, error: BaseException | None, known: int) -> None:
        version = operation.envelope.schema_version
        if isinstance(error, _EXPECTED) or not known:
            return
        if error is None and version not in self._versions:
            raise Violation(f"wrong: a batch of schema version {version} was staged; {known} versions are known")
        if error is not None and version in self._versions:
            raise Violation(f"lost: {operation} was refused, although the topic has this version: {error}")

    def _act(self) -> None:
        if self.world.healed:
            return
        chance = self.random.random()
        if chance < 0.4:
            fields = 1 + int(self.random.random() * (len(self._versions) + 2))
            text = ", ".join(f"f{index}: int64" for index in range(fields))
            self._do(commands.PutSchema(TOPIC, Schema(parse_fields(text), definition=text), "none"))
        elif chance < 0.9:
            # 0 and 99 are versions that the topic never has.
            version = self.random.choice([0, 99, *self._versions])
            self._stages += 1
            payload = encode_batch([b'{"f0":1}'], None, None, None, version)
            envelope = commands.Envelope(1, len(payload), checksum(payload), schema_version=version)
            self._do(commands.Stage(f"{self.name} {self._stages}", TOPIC, "", 0, envelope), payload)
        else:
            self._do(commands.Abort(tuple(f"{self.name} {number}" for number in range(self._stages + 1))))
