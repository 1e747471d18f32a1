"""The campaign: streams run, their checkpoints are damaged, and messages keep coming.

A round takes one stream. It reads everything that is there, and then each id must be in the target once. Then its
checkpoint is damaged, and it runs again while messages come. This run succeeds or fails. After a failure, it is started
again as it is, and then one of the named remedies is applied. Only if that is a new checkpoint, the ids of the last
micro-batch may be there twice.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec
from pyspark.sql import SparkSession

from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.lost_entries.damage import DAMAGES
from tests.spark.lost_entries.model import ModelStream
from tests.spark.lost_entries.streams import Stream

_COPIES_MAX = 4
_IDS_MAX = 120
_PUT_PAUSE_S = 0.05
_TRIES = 30


class Account(msgspec.Struct):
    """What happened."""

    rounds: int = 0
    ids: int = 0
    #: Runs with a damaged checkpoint, by their result: exact, or the code of the error.
    results: Counter[str] = msgspec.field(default_factory=Counter)
    damages: Counter[str] = msgspec.field(default_factory=Counter)
    remedies: Counter[str] = msgspec.field(default_factory=Counter)
    problems: list[str] = msgspec.field(default_factory=list)


class Campaign:
    def __init__(
        self,
        broker: BrokerProcess,
        session: SparkSession | None,
        streams: Sequence[Stream | ModelStream],
        folder: Path,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self.account = Account()
        self._broker = broker
        self._session = session
        self._streams = streams
        self._folder = folder / "copies"
        self._random = Random(seed)
        self._say = say
        self._copies: dict[str, list[Path]] = {stream.name: [] for stream in streams}
        #: Ids that a new checkpoint may have repeated, by stream.
        self._repeated: dict[str, set[int]] = {stream.name: set() for stream in streams}

    def run(self, rounds: int) -> Account:
        """Run rounds until all are done, or until there is a problem."""
        for number in range(rounds):
            stream = self._streams[number % len(self._streams)]
            if not self._is_exact(stream, f"before round {number}"):
                break
            what, result = self._damage(stream, number)
            self.account.rounds += 1
            self.account.results[result] += 1
            self._say(f"{number:4} {stream.name:12} {what:60} {result}")
        else:
            all(self._is_exact(stream, "at the end") for stream in self._streams)
        self.account.ids = sum(stream.put_ids for stream in self._streams)
        return self.account

    def _is_exact(self, stream: Stream | ModelStream, when: str) -> bool:
        """Let the stream read everything, and compare its target with what was put."""
        stream.put(self._random.randint(1, _IDS_MAX))
        self._run(stream)
        problems = self._problems(stream)
        for text in problems:
            self._say(f"PROBLEM {when}: {stream.name}: {text}")
        self.account.problems += [f"{when}: {stream.name}: {text}" for text in problems]
        return not problems

    def _damage(self, stream: Stream | ModelStream, number: int) -> tuple[str, str]:
        """Returns the damage, and the result of the run after it."""
        random = self._random
        newest = self._copy(stream, f"{stream.name}-{number}")
        what = ""
        while not what:
            damage = random.choices(list(DAMAGES), list(DAMAGES.values()))[0]
            what = damage(random, stream.checkpoint, self._copies[stream.name][:-1])
        self.account.damages[damage.__name__] += 1
        # A run with nothing to read would not notice the damage.
        stream.put(random.randint(1, _IDS_MAX))
        code = self._try(stream)
        if not code:
            return what, "exact"
        # A supervisor starts the pipeline again, and nobody has read the error yet.
        for _ in range(random.randint(0, 2)):
            if not self._try(stream):
                return what, f"exact after {code}"
        self._repair(stream, newest)
        return what, code

    def _try(self, stream: Stream | ModelStream) -> str:
        """Run the stream while messages come. Returns the code of its error; "" = there was none."""
        try:
            with self._load(stream):
                self._run(stream)
        except errors.OnceMQError as error:
            return error.code
        return ""

    def _run(self, stream: Stream | ModelStream) -> None:
        """Run the stream; again, if the machine is too busy to start Spark's processes in time."""
        limit = self._random.choice((0, 0, _IDS_MAX // 2))
        for attempt in range(_TRIES):
            try:
                stream.run(self._broker.url, self._session, max_per_trigger=limit)
            except (errors.PipelineFailed, errors.BrokerAway) as error:
                if attempt == _TRIES - 1 or not _is_busy(error):
                    raise
            else:
                return

    @contextmanager
    def _load(self, stream: Stream | ModelStream) -> Iterator[None]:
        """Put while the stream runs."""
        done = threading.Event()

        def put() -> None:
            while not done.wait(_PUT_PAUSE_S):
                stream.put(3)

        thread = threading.Thread(target=put)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _copy(self, stream: Stream | ModelStream, name: str) -> Path:
        copy = self._folder / name
        stream.checkpoint.copy(copy)
        copies = self._copies[stream.name]
        copies.append(copy)
        if len(copies) > _COPIES_MAX:
            shutil.rmtree(copies.pop(0))
        return copy

    def _repair(self, stream: Stream | ModelStream, newest: Path) -> None:
        """Apply one of the remedies that the error names."""
        if self._random.random() < 0.7:
            self.account.remedies["the newest copy was restored"] += 1
            stream.checkpoint.restore(newest)
            return
        self.account.remedies["a new checkpoint"] += 1
        # None, if the last run has acked its last micro-batch.
        self._repeated[stream.name] |= self._unacked(stream)
        stream.forget_checkpoint()
        # Copies of the former checkpoint belong to another query.
        for copy in self._copies[stream.name]:
            shutil.rmtree(copy)
        self._copies[stream.name] = []

    def _unacked(self, stream: Stream | ModelStream) -> set[int]:
        """The ids that the target has, but that are not acked: a new checkpoint repeats them."""
        with self._broker.connect() as client:
            acked = client.subscriptions(stream.name)[0].acked
        return {number for number in stream.found() if number >= acked}

    def _problems(self, stream: Stream | ModelStream) -> list[str]:
        counts = Counter(stream.found())
        lost = [number for number in range(stream.put_ids) if number not in counts]
        repeated = self._repeated[stream.name]
        doubled = [number for number, count in counts.items() if count > 1 and number not in repeated]
        unknown = [number for number in counts if number >= stream.put_ids]
        found = ((lost, "lost"), (doubled, "doubled"), (unknown, "never put"))
        return [f"{len(ids)} {what}, such as {min(ids)}" for ids, what in found if ids]


def _is_busy(error: errors.OnceMQError) -> bool:
    """Whether a process or the broker did not answer in time."""
    return isinstance(error, errors.BrokerAway) or re.search("timed out", error.text, re.IGNORECASE) is not None
