"""Stages: messages that nobody sees before their commit. What a writer in many processes needs to write once.

Each of its tasks stages under a name of its own; one of its processes commits the stages that count, under the
writer's name and a rising batch number: all of them or none, and once, however often it is tried. The rest expires.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oncemq.client.core.pending import Pending, again
from oncemq.client.producer.batch_buffer import Value, as_bytes, check_is_many
from oncemq.client.runtime.flow import Asynchronous, Blocking, Flow, Until, method
from oncemq.client.runtime.rpc import Calling, check_reply
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.frames import Frame

if TYPE_CHECKING:
    from oncemq.client.connection import Connection

#: A stager waits for its oldest batch when it has more than this on the way.
_FLIGHT_BATCHES = 32
_FLIGHT_BYTES = 8 * 1024 * 1024

Stages = Iterable[tuple[str, int]]


class Staging(Calling):
    """The part of a client that stages and commits."""

    @method
    def stage(self, stage: str, topic: str, writer: str, batch: int, values: Sequence[Value]) -> Flow[int]:
        """Store messages out of sight, for a later `commit` by `writer` as `batch`. Returns the stage's count.

        >>> client.stage("part-0", "results", "nightly", 1, ["a", "b"])
        2
        """
        check_is_many(values, "values")
        payload = encode_batch([as_bytes(value) for value in values])
        envelope = commands.Envelope(len(values), len(payload), checksum(payload))
        return self._stage(commands.Stage(stage, topic, writer, batch, envelope), payload)

    def _stage(self, operation: commands.Stage, payload: bytes) -> Flow[int]:
        reply = yield from self._call(operation, replies.StageReply, payload)
        return reply.count

    @method
    def commit(
        self, writer: str, batch: int, topic: str | Mapping[str, Stages], stages: Stages | None = None
    ) -> Flow[replies.CommitReply]:
        """Publish stages, all or nothing; harmless if `batch` was committed before (`.before` tells).

        Stages are pairs of a name and the number of messages that it must hold; each topic gets its messages in their
        order. In place of one topic and its stages, a mapping from topics to theirs: all of it, or nothing; `.parts`
        has what became of each topic, in the same order.

        Without a writer (`""`, batch 0) nobody remembers it: it happens once, as any command of this client, but
        nothing recognises it when another client tries the same.

        >>> client.commit("nightly", 1, "results", [("part-0", 2)]).count
        2
        >>> [part.count for part in client.commit("nightly", 2, {"results": [("a", 2)], "errors": [("b", 1)]}).parts]
        [2, 1]
        """
        return self._call(_commit_of(writer, batch, topic, stages), replies.CommitReply)

    @method
    def abort(self, stages: Iterable[str]) -> Flow[None]:
        """Drop stages, those that are there. What was committed stays.

        >>> client.abort(["part-0"])
        """
        return self._do(commands.Abort(tuple(stages)))


def _commit_of(writer: str, batch: int, topic: str | Mapping[str, Stages], stages: Stages | None) -> commands.Commit:
    if isinstance(topic, Mapping):
        if stages is not None:
            raise TypeError("commit takes one topic and its stages, or a mapping from topics to theirs")
        parts = tuple((name, tuple(theirs)) for name, theirs in topic.items())
        return commands.Commit(writer, batch, "", (), parts)
    if stages is None:
        raise TypeError("commit takes one topic and its stages, or a mapping from topics to theirs")
    return commands.Commit(writer, batch, topic, tuple(stages))


class StagingAhead:
    """Fills one stage without waiting for each batch. What is on the way is bounded, so that memory stays flat."""

    def __init__(self, client: Connection[Any, Any, Any], stage: str, topic: str, writer: str, batch: int) -> None:
        self._driver = client._driver
        self.stage = stage
        self.topic = topic
        self.writer = writer
        self.batch = batch
        #: Messages that were added.
        self.count = 0
        #: What is not answered, in its order.
        self._flight: deque[tuple[Pending, commands.Stage]] = deque()
        self._flight_bytes = 0
        #: What the broker counts in the stage, as far as it has answered.
        self._staged = 0
        #: The first one. Nothing is sent after it.
        self._error: errors.OnceMQError | None = None

    @method
    def add(self, count: int, payload: Frame, *, key_hashes: bytes = b"", ttl_ms: int = 0) -> Flow[None]:
        """Stage a batch of `count` messages, encoded as message.py does. Returns before it is stored: `finish` tells.

        Raises what an earlier one was refused with, and TooLarge for one that the broker would not take
        (`client.batch_bytes_max`).

        >>> stager.add(2, encode_batch([b"a", b"b"]))
        """
        envelope = commands.Envelope(count, len(payload), checksum(payload), ttl_ms, 0, key_hashes)
        return self._add(commands.Stage(self.stage, self.topic, self.writer, self.batch, envelope), payload)

    def _add(self, operation: commands.Stage, payload: Frame) -> Flow[None]:
        size = operation.envelope.size
        yield from self._wait_until(
            lambda: (
                len(self._flight) < _FLIGHT_BATCHES and (not self._flight or self._flight_bytes + size <= _FLIGHT_BYTES)
            )
        )
        self._raise_error()
        self._driver.check_usable()
        self._flight.append((self._driver.core.submit(operation, payload), operation))
        self._flight_bytes += size
        self.count += operation.envelope.count
        self._driver.pump()
        self._settle()
        self._raise_error()

    @method
    def finish(self) -> Flow[int]:
        """Wait until everything that was added is stored. Returns the stage's count; raises the first error.

        Where nothing was added there is no stage: leave it out of the commit.

        >>> stager.finish()
        2
        """
        return self._finish()

    def _finish(self) -> Flow[int]:
        yield from self._wait_until(lambda: not self._flight)
        self._raise_error()
        if self._staged != self.count:
            # It is not this stager's alone, or a part of it expired before the rest came.
            text = f"stage '{self.stage}' holds {self._staged} messages; {self.count} were added by this stager"
            raise errors.StageMismatch(text)
        return self.count

    def _wait_until(self, is_enough: Callable[[], bool]) -> Flow[None]:
        """Until what is on the way has become little enough, or something was refused."""
        self._settle()
        try:
            while self._error is None and not is_enough():
                yield Until(self._flight[0][0])
                self._settle()
        except BaseException as error:
            # Interrupted, or closed: what was not staged yet is not to be staged later by surprise.
            self._give_up(error)
            raise

    def _settle(self) -> None:
        """Look at the answers that are there."""
        while self._flight and self._flight[0][0].done:
            pending, operation = self._flight.popleft()
            self._flight_bytes -= operation.envelope.size
            if pending.error is not None:
                self._error = self._error or pending.error
            else:
                self._staged = check_reply(pending.result(), replies.StageReply, operation).count

    def _give_up(self, error: BaseException) -> None:
        reason = error if isinstance(error, errors.OnceMQError) else errors.ClientClosed("the caller gave up")
        self._error = self._error or reason
        for pending, _ in self._flight:
            self._driver.give_up(pending, reason)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise again(self._error)


class Stager(Blocking, StagingAhead):
    """Stages many batches, each on its way while the next is made; returned by `client.stager`.

    >>> stager = client.stager("part-0", "results", "nightly", 1)
    >>> for values in chunks:
    ...     stager.add(len(values), encode_batch(values))
    >>> stages = [("part-0", stager.finish())]
    """


class AsyncStager(Asynchronous, StagingAhead):
    """The same for asyncio: `add` and `finish` are awaited.

    >>> stager = client.stager("part-0", "results", "nightly", 1)
    >>> await stager.add(2, encode_batch([b"a", b"b"]))
    >>> await stager.finish()
    2
    """
