"""Drivers of one checkpoint on one object store, in a random order of requests: they are suspended, killed and
replaced; replies get lost, and requests are executed late. Each row is published once, and each batch as a whole.

Each request is a step of the simulation. A failure is repeated with its seed: `pytest -k 'seed17]'`."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from oncemq.protocol import errors
from oncemq.spark.targets.files.folder import StoredFile
from oncemq.spark.targets.objects import commit_log
from oncemq.spark.targets.objects.commit_log import ObjectCommitLog

QUERY = "query"
BATCHES = 5
DRIVERS_MAX = 3
STEPS_MAX = 5_000


class Store:
    """What a store promises: each request is atomic."""

    def __init__(self) -> None:
        #: The content of each object, and its tag.
        self.objects: dict[str, tuple[bytes, int]] = {}
        self._tags = itertools.count()

    def get(self, path: str) -> tuple[bytes, int] | None:
        return self.objects.get(path)

    def names(self, prefix: str) -> list[str]:
        return [path for path in self.objects if path.startswith(prefix)]

    def put(self, path: str, data: bytes) -> None:
        self.objects[path] = (data, next(self._tags))

    def create(self, path: str, data: bytes) -> bool:
        if path in self.objects:
            return False
        self.put(path, data)
        return True

    def replace(self, path: str, data: bytes, tag: int) -> bool:
        if path not in self.objects or self.objects[path][1] != tag:
            return False
        self.put(path, data)
        return True

    def copy(self, source: str, target: str) -> bool:
        if source not in self.objects:
            return False
        self.put(target, self.objects[source][0])
        return True

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.objects.pop(path, None)


class Killed(BaseException):
    pass


class Driver:
    """A thread that stops at each request until the simulation has answered it. It is the folder of its commit log."""

    url = "store"

    def __init__(self, work: Callable[[Driver], None]) -> None:
        self.request: tuple[Any, ...] | None = None
        self._reply: Any = None
        self._is_answered, self._is_asking = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, args=(work,), daemon=True).start()
        self._is_asking.acquire()

    def _run(self, work: Callable[[Driver], None]) -> None:
        try:
            work(self)
        except (Killed, errors.OnceMQError):
            pass
        finally:
            self.request = None
            self._is_asking.release()

    def answer(self, reply: Any) -> None:
        """An exception is raised. Returns at the next request, or at the end."""
        self._reply = reply
        self._is_answered.release()
        self._is_asking.acquire()

    def ask(self, *request: Any) -> Any:
        self.request = request
        self._is_asking.release()
        self._is_answered.acquire()
        if isinstance(self._reply, BaseException):
            raise self._reply
        return self._reply

    # The folder.

    def read(self, path: str) -> bytes | None:
        found = self.ask("get", path)
        return None if found is None else found[0]

    def exists(self, path: str) -> bool:
        return self.ask("get", path) is not None

    def create(self, path: str, data: bytes) -> bool:
        return bool(self.ask("create", path, data))

    def copy(self, source: str, target: str) -> bool:
        return bool(self.ask("copy", source, target))

    def remove(self, paths: Sequence[str]) -> None:
        self.ask("delete", paths)

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        return iter([StoredFile(path, 0.0) for path in self.ask("names", prefix)])

    def update(self, path: str, change: Callable[[bytes | None], bytes]) -> None:
        while True:
            found = self.ask("get", path)
            before = None if found is None else found[0]
            after = change(before)
            if after == before:
                return
            if self.create(path, after) if found is None else self.ask("replace", path, after, found[1]):
                return


def rows_of(batch: int) -> set[int]:
    return set(range(batch * 10, batch * 10 + 4))


class Simulation:
    def __init__(self, seed: int, *, has_empty_replays: bool) -> None:
        self._random = random.Random(seed)
        self._has_empty_replays = has_empty_replays
        self._store = Store()
        self._drivers: list[Driver] = []
        #: Requests whose sender has given up. They may still be executed.
        self._late: list[tuple[Any, ...]] = []
        self._attempts = itertools.count()
        #: What Spark's checkpoint has as committed.
        self.committed: set[int] = set()

    def run(self) -> None:
        for _ in range(STEPS_MAX):
            self._drivers = [driver for driver in self._drivers if driver.request is not None]
            if len(self.committed) == BATCHES and not self._drivers and not self._late:
                return
            self._step()
            self._check()
        raise AssertionError("the drivers do not come to an end")

    def _step(self) -> None:
        chance = self._random.random()
        if self._late and (chance < 0.05 or not self._drivers):
            self._execute(self._late.pop(self._random.randrange(len(self._late))))
        elif len(self.committed) < BATCHES and (chance < 0.1 or not self._drivers):
            if len(self._drivers) < DRIVERS_MAX:
                self._drivers.append(Driver(self._drive))
        elif self._drivers:
            # The first one is the fastest, so that the others are suspended for long.
            index = min(int(self._random.expovariate(1.5)), len(self._drivers) - 1)
            self._answer(self._drivers[index])
            if chance > 0.97:
                self._random.shuffle(self._drivers)

    def _answer(self, driver: Driver) -> None:
        request, chance = driver.request, self._random.random()
        assert request is not None
        if chance > 0.05:
            driver.answer(self._execute(request))
            return
        if chance > 0.04 and request[0] in ("create", "replace"):
            # The reply got lost, and the client has repeated the request.
            self._execute(request)
            driver.answer(self._execute(request))
            return
        if self._random.random() < 0.5:
            self._late.append(request)
        else:
            self._execute(request)
        driver.answer(Killed() if chance < 0.02 else errors.OnceMQError("the reply got lost"))

    def _execute(self, request: tuple[Any, ...]) -> Any:
        return getattr(self._store, request[0])(*request[1:])

    def _drive(self, driver: Driver) -> None:
        """Start at the end of the checkpoint. Of two drivers that commit a batch there, the second one fails."""
        batch = len(self.committed)
        while batch < BATCHES:
            self._write(driver, batch)
            if batch in self.committed:
                return
            self.committed.add(batch)
            batch += 1

    def _write(self, driver: Driver, batch: int) -> None:
        parts = self._random.randint(1, 3)
        rows = sorted(rows_of(batch))
        if self._has_empty_replays and self._random.random() < 0.2:
            rows = []
        stages = []
        for part in range(parts):
            attempt = str(next(self._attempts))
            driver.ask("put", f"_oncemq/{QUERY}/stage/{batch}/{attempt}/rows", msgspec.json.encode(rows[part::parts]))
            stages.append((attempt, ["rows"] if rows else []))
        log: Any = ObjectCommitLog(driver, QUERY)  # type: ignore[arg-type]
        if self._random.random() < 0.05:
            log.abort(batch, [attempt for attempt, _ in stages])
            raise errors.OnceMQError("another task failed")
        log.commit(batch, stages, str(batch).encode())

    def _check(self) -> None:
        files = [data for path, (data, _) in self._store.objects.items() if path.startswith("part-")]
        seen = [row for data in files for row in msgspec.json.decode(data, type=list[int])]
        assert len(seen) == len(set(seen)), "a row is published twice"
        for batch in self.committed:
            found = rows_of(batch) & set(seen)
            assert found == rows_of(batch) or (self._has_empty_replays and not found), f"batch {batch} is incomplete"


@pytest.mark.parametrize("manifests", [1, 100])
@pytest.mark.parametrize("has_empty_replays", [False, True])
@pytest.mark.parametrize("seed", range(30), ids=lambda seed: f"seed{seed}")
def test_each_row_is_published_once_in_any_order_of_requests(
    monkeypatch: pytest.MonkeyPatch, manifests: int, has_empty_replays: bool, seed: int
) -> None:
    monkeypatch.setattr(commit_log, "_MANIFESTS", manifests)
    Simulation(seed, has_empty_replays=has_empty_replays).run()
