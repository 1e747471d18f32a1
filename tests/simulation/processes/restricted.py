"""A producer and a consumer whose right to a topic is taken away and given back while they run.

Without the right, what they send from then on is refused, also a get that waits. What was refused stays refused. With
the right, they continue, and nothing is missing.
"""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands, errors
from oncemq.protocol.message import Message
from tests.simulation.environment.users import GATEWAY
from tests.simulation.environment.world import Violation
from tests.simulation.processes.consumer import Consumer
from tests.simulation.processes.process import Answered, Context, Payload, Process
from tests.simulation.processes.producer import Producer

TOPIC = "guarded"


class Restricted(Process):
    has_right = True
    #: Errors of a command that was sent without the right. A connection can be refused later than that.
    denials: tuple[type[errors.OnceMQError], ...] = (errors.Forbidden,)
    _changes = 0

    def rules(self) -> list[str]:
        return self.rights()

    def rights(self) -> list[str]:
        """What the user who has its name may do now."""
        raise NotImplementedError

    def change_right(self) -> None:
        """Take the right away, sometimes with the user, or give it back. All brokers learn of it before anything else
        happens."""
        self.has_right = not self.has_right
        self._changes += 1
        self.context.users.set_rules(self.name, self.rights())
        if not self.has_right and self.random.random() < 0.3:
            self.context.users.remove(self.name)
        self.world.note(f"RIGHT of {self.name}: {self.has_right}")
        self.world.tally[f"client: right {'given back' if self.has_right else 'taken away'}"] += 1

    def _watch(self, pending: Pending, answered: Answered) -> Pending:
        changes = self._changes

        def check(done: Pending) -> None:
            if changes == self._changes:
                self._check_right(done)
            answered(done)

        return super()._watch(pending, check)

    def _check_right(self, done: Pending) -> None:
        """The right was the same from the first attempt to the answer."""
        if self.has_right and isinstance(done.error, self.denials):
            raise Violation(f"{self.name} has the right, and was refused: {done.error}")
        if not self.has_right and done.error is None:
            raise Violation(f"{self.name} had no right, and got {done.reply}")


class RestrictedProducer(Restricted, Producer):
    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context, name, [TOPIC], anonymous=False, rival=False)

    def rights(self) -> list[str]:
        return [f"create {TOPIC}", "write nowhere", *([f"write {TOPIC}"] if self.has_right else [])]

    @property
    def count(self) -> int:
        """How many messages it has made."""
        return self._count


class GatewayProducer(RestrictedProducer):
    """A gateway that puts for the user, in a session of its own."""

    user = GATEWAY
    denials = (errors.Forbidden, errors.Unauthenticated)

    def rules(self) -> list[str]:
        return ["role gateway"]

    def submit(self, operation: commands.Operation, payload: Payload, answered: Answered) -> Pending:
        assert self.core is not None
        caller = self.context.users.caller(self.name)
        return self._watch(self.core.submit(operation, payload, caller=caller), answered)


class RestrictedConsumer(Restricted, Consumer):
    def __init__(self, context: Context, name: str, producer: RestrictedProducer) -> None:
        super().__init__(context, name, TOPIC, name, commands.START_EARLIEST)
        self._producer = producer
        #: The number of the last message that was put when it had the right.
        self._last = 0

    def rights(self) -> list[str]:
        return [f"create {TOPIC}", *([f"consume {TOPIC}"] if self.has_right else [])]

    def change_right(self) -> None:
        super().change_right()
        self._last = self._producer.count

    def _handle_error(self, pending: Pending) -> bool:
        if not isinstance(pending.error, errors.Forbidden | errors.Unauthenticated):
            return super()._handle_error(pending)
        again = self._subscribe if self._opened is None else self._get_if_open
        self.later(20 + int(self.random.random() * 60), again)
        return True

    def _keep(self, messages: list[Message]) -> None:
        for message in messages:
            number = int(message.value.split(b".")[1])
            if not self.has_right and number > self._last:
                raise Violation(f"{self.name} has no right, and got {number}, which was put after {self._last}")
