"""The campaign: streams from topic to topic whose driver is killed again and again, while a producer keeps putting.

The driver is killed at a named point (faulty.py) or at any moment, also while it starts. Sometimes the broker is killed
too, a Spark worker dies, a commit raises after it has published, or a checkpoint loses the last entry of its log.
At the end nothing is killed any more, the streams run until they have read everything, and all rows are counted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from oncemq.protocol.errors import OnceMQError
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import SMALL
from tests.spark.faults import faulty
from tests.spark.faults.driver_processes import Driver
from tests.spark.faults.streams import (
    COUNTS,
    Stream,
    make_topics,
    problems_of_counts,
    problems_of_projection,
    put_numbers,
    rows_in,
)

#: The share of driver runs that end at a named point.
_POINT_SHARE = 0.6
_DURING_START_SHARE = 0.1
#: The share of driver runs with a fault from which Spark or the driver's next run recovers.
_FAULT_SHARE = 0.4
_BROKER_KILL_SHARE = 0.4
_DAMAGE_SHARE = 0.25
#: A run without a named point ends at most `_WORK_S` after it has started, or after it has planned its next batch, when
#: it has finished its replay.
_PLANNED_SHARE = 0.7
_WORK_S = 6.0
_START = "during its start"
_START_S = 5.0
#: Long enough for a slow machine.
_WAIT_S = 240.0
_ROWS_MAX = 20_000
#: The time limit of the last run, which reads everything that is left.
_DRAIN_S = 1800.0

#: Faults in one of the streams, while the driver is to be killed in the other.
_FAULTS = (
    (faulty.STAGING, faulty.DIE),
    (faulty.STAGED, faulty.DIE),
    (faulty.STAGED, faulty.RAISE),
    (faulty.BEFORE_COMMIT, faulty.DIE),
    (faulty.AFTER_COMMIT, faulty.RAISE),
    (faulty.AFTER_COMMIT, faulty.DIE),
)

Say = Callable[[str], None]


class Account(msgspec.Struct):
    """What was done, and which problems were found."""

    kills: Counter[str] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    messages: int = 0
    rows: int = 0
    batches: int = 0
    problems: list[str] = []
    seconds: float = 0.0


class Campaign:
    def __init__(self, folder: Path, seed: int, say: Say) -> None:
        self._folder = folder
        self._random = Random(seed)
        self._say = say
        self._broker = BrokerProcess(folder / "data", *SMALL)
        self._account = Account()
        self._points: list[str] = []
        self._streams = [
            self._stream("projected"),
            msgspec.structs.replace(self._stream("counted"), sql=COUNTS),
        ]

    def _stream(self, name: str) -> Stream:
        return Stream(
            folder=str(self._folder / name),
            url=self._broker.url,
            source=f"in.{name}",
            target=f"out.{name}",
            rows_max=_ROWS_MAX,
            ends=False,
        )

    def run(self, kills: int) -> Account:
        began_s = time.monotonic()
        with self._broker:
            with self._broker.connect() as client:
                make_topics(client, *self._streams)
            producer = Producer(self._broker, [stream.source for stream in self._streams])
            with producer:
                while self._account.kills.total() < kills:
                    happened = self._run_driver()
                    numbers = f"{producer.count} put, {self._done()} batches done"
                    self._say(f"{self._account.kills.total()}/{kills} {happened}; {numbers}")
            self._finish(producer.count)
        self._account.seconds = round(time.monotonic() - began_s, 1)
        return self._account

    def _done(self) -> int:
        return sum(stream.done()[-1] + 1 for stream in self._streams if stream.done())

    # One run of the driver.

    def _run_driver(self) -> str:
        """Run the driver until it is killed or fails. Return a description of what happened."""
        faulty_stream, stream = self._random.sample(self._streams, 2)
        fault = self._plant_fault(faulty_stream)
        point = self._plant_kill(stream)
        with Driver(self._folder / "driver", self._streams) as driver:
            if self._random.random() < _DURING_START_SHARE:
                point = _START
                time.sleep(self._random.uniform(0, _START_S))
            else:
                self._work(driver, point, stream)
            failed = driver.code is not None
        if failed and not fault:
            raise AssertionError(f"the driver ended without a planted fault:\n{driver.log_tail()}")
        met = [fault] if fault and faulty_stream.faults.is_met(fault.partition(" ")[0]) else []
        happened = [self._record_end(point, stream, failed), *met, *self._damage_commit_log()]
        self._account.faults.update(happened[1:])
        for each in self._streams:
            each.faults.clear()
        return ", ".join(happened)

    def _record_end(self, point: str, stream: Stream, failed: bool) -> str:
        if failed:
            # The campaign did not kill it, so it does not count as a kill.
            self._account.faults["query failed"] += 1
            return "query failed"
        cause = point if point == _START or stream.faults.is_met(point) else "at any moment"
        self._account.kills[cause] += 1
        return f"killed {cause}"

    def _plant_fault(self, stream: Stream) -> str:
        """Return the point and what happens there, or "" for no fault."""
        if self._random.random() >= _FAULT_SHARE:
            return ""
        point, action = self._random.choice(_FAULTS)
        stream.faults.plant(point, action)
        return f"{point} {action}"

    def _plant_kill(self, stream: Stream) -> str:
        """Return the point at which the driver is killed: the named points in random order, or "" for none."""
        if self._random.random() >= _POINT_SHARE:
            return ""
        if not self._points:
            points = (*faulty.DRIVER_POINTS, *faulty.TASK_POINTS)
            self._points = self._random.sample(points, len(points))
        point = self._points.pop()
        done = stream.done()
        stream.faults.plant(point, faulty.HANG, batch=(done[-1] + 1 if done else 0) + self._random.randrange(3))
        return point

    def _work(self, driver: Driver, point: str, stream: Stream) -> None:
        """Wait until the driver is to be killed. It may fail before, because of a fault."""
        _wait(lambda: driver.code is not None or driver.has_started, _WAIT_S)
        if point or self._random.random() < _PLANNED_SHARE:
            planned = self._planned()
            _wait(lambda: driver.code is not None or self._planned() != planned or stream.faults.is_met(point), _WAIT_S)
        if self._random.random() < _BROKER_KILL_SHARE:
            time.sleep(self._random.uniform(0, _WORK_S / 2))
            self._broker.restart()
            self._account.faults["broker killed"] += 1
        limit_s = _WAIT_S if point else self._random.uniform(0, _WORK_S)
        _wait(lambda: driver.code is not None or stream.faults.is_met(point), limit_s)

    def _planned(self) -> list[list[int]]:
        return [stream.planned() for stream in self._streams]

    def _damage_commit_log(self) -> list[str]:
        stream = self._random.choice(self._streams)
        if self._random.random() >= _DAMAGE_SHARE or len(stream.done()) < 2:
            return []
        stream.forget_last_batch()
        return ["last entry of a commit log deleted"]

    # The end of the campaign.

    def _finish(self, count: int) -> None:
        streams = [msgspec.structs.replace(stream, ends=True) for stream in self._streams]
        with Driver(self._folder / "driver", streams) as driver:
            driver.wait_to_the_end(_DRAIN_S)
        with self._broker.connect() as client:
            rows = [rows_in(client, stream.target) for stream in streams]
        account = self._account
        account.messages, account.rows = 2 * count, sum(map(len, rows))
        account.batches = self._done()
        account.problems = problems_of_projection(rows[0], count) + problems_of_counts(rows[1], count)


class Producer:
    """Puts the same numbers into each of several topics, a few at a time, on its own thread."""

    def __init__(self, broker: BrokerProcess, topics: list[str]) -> None:
        self.count = 0
        self._broker = broker
        self._topics = topics
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: OnceMQError | None = None

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        random = Random(self.count)
        try:
            with self._broker.connect(timeout_s=0.5, tries=600) as client:
                while not self._is_stopping.wait(0.1):
                    stop = self.count + random.randrange(5, 60)
                    for topic in self._topics:
                        put_numbers(client, topic, self.count, stop)
                    self.count = stop
        except OnceMQError as error:
            self._error = error


def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.01)
