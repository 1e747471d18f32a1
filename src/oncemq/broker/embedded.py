"""A broker inside the process: `connect("file:./data")`, `connect("memory:")`. Same API, no server.

There is no broker thread on the way: whoever waits for an answer runs the broker's rounds meanwhile, under
one lock. A daemon thread looks after what falls due when nobody calls.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from oncemq.broker.clock import SystemClock
from oncemq.broker.loop import Broker
from oncemq.broker.network import Arrival
from oncemq.journal.contract import Journal
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import Limits

#: Less than a server takes, since it lies in somebody's program: four segments are made at the start.
SEGMENT_BYTES = 16 * 1024 * 1024
LIMITS = Limits(batch_bytes_max=8 * 1024 * 1024)


class Link:
    """One client's way to the broker of this process."""

    def __init__(self, hub: _Hub, peer: bytes) -> None:
        self._hub = hub
        self._peer = peer
        self._replies: deque[list[Frame]] = deque()

    def send(self, frames: Sequence[Frame]) -> None:
        self._hub.arrive(self._peer, frames)

    def receive(self, timeout_ms: float) -> list[Frame] | None:
        """The next reply; runs the broker while it waits."""
        if self._replies:
            return self._replies.popleft()
        deadline = time.monotonic() + timeout_ms / 1000
        with self._hub.stirred:
            while True:
                self._hub.run()
                if self._replies:
                    return self._replies.popleft()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._hub.stirred.wait(min(left, self._hub.wait_s()))

    def deliver(self, frames: list[Frame]) -> None:
        self._replies.append(frames)

    def close(self) -> None:
        self._hub.leave(self._peer)


class _Hub:
    """The broker, its links, and the lock that makes one thread at a time the broker."""

    def __init__(self, key: str, journal: Journal) -> None:
        self.key = key
        self.pid = os.getpid()
        self.stirred = threading.Condition(threading.RLock())
        self._links: dict[bytes, Link] = {}
        self._arrived: list[Arrival] = []
        self._peers = 0
        self._failure: BaseException | None = None
        self._has_delivered = False
        self._journal = journal
        try:
            self._broker = Broker(journal, self, SystemClock(), LIMITS)
        except BaseException:
            journal.close()
            raise
        threading.Thread(target=self._look_after, name="oncemq-embedded", daemon=True).start()

    # The broker's network.

    def take(self, wait_ms: int) -> list[Arrival]:  # noqa: ARG002
        arrived, self._arrived = self._arrived, []
        return arrived

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.deliver(list(frames))
            self._has_delivered = True

    # The links' side.

    def link(self) -> Link:
        with self.stirred:
            self._peers += 1
            peer = self._peers.to_bytes(8, "big")
            self._links[peer] = Link(self, peer)
            return self._links[peer]

    def arrive(self, peer: bytes, frames: Sequence[Frame]) -> None:
        self._check()
        with self.stirred:
            self._arrived.append((peer, frames))

    def run(self) -> None:
        """Rounds, until nothing is to be done at once. Call it under the lock."""
        self._check()
        try:
            self._broker.run_once()
            while self._arrived or self._broker.busy:
                self._broker.run_once()
        except BaseException as failure:
            self._fail(failure)
            raise
        if self._has_delivered:
            # Only then: waiters that wake each other for nothing would keep a core busy.
            self._has_delivered = False
            self.stirred.notify_all()

    def _fail(self, failure: BaseException) -> None:
        """A failed disk, or Ctrl-C in the middle of a round: what was not answered is given up, the folder is let
        go, and who connects again recovers."""
        self._failure = failure
        if _hubs.get(self.key) is self:
            del _hubs[self.key]
        self._journal.close()
        self.stirred.notify_all()

    def wait_s(self) -> float:
        return self._broker.wait_ms() / 1000

    def _check(self) -> None:
        if os.getpid() != self.pid:
            raise errors.ForkedError("the embedded broker belongs to the parent process; connect in the child")
        if self._failure is not None:
            raise errors.JournalFailed(f"the embedded broker stopped: {self._failure}") from self._failure

    def leave(self, peer: bytes) -> None:
        with _hubs_lock, self.stirred:
            self._links.pop(peer, None)
            if not self._links and os.getpid() == self.pid:
                if _hubs.get(self.key) is self:
                    del _hubs[self.key]
                self._stop()

    def _stop(self) -> None:
        if self._failure is None:
            self._failure = errors.ClientClosed("the embedded broker was closed with its last client")
            self._broker.stop()
            self.stirred.notify_all()

    def _look_after(self) -> None:
        while True:
            with self.stirred:
                if self._failure is not None:
                    return
                try:
                    self.run()
                except errors.OnceMQError:
                    return
                self.stirred.wait(self.wait_s())


_hubs: dict[str, _Hub] = {}
_hubs_lock = threading.Lock()


def _forget_in_child() -> None:
    """The parent's brokers are not the child's, and a thread that is not there may hold the lock."""
    global _hubs_lock
    _hubs_lock = threading.Lock()
    _hubs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def attach(url: str) -> Link:
    """A link to the broker of this process for `file:PATH` or `memory:NAME`, started if need be.

    The last link to close stops it. Another process that has the folder is JournalLocked."""
    scheme, _, rest = url.partition(":")
    rest = unquote(rest.removeprefix("//")) if rest.startswith("//") else unquote(rest)
    key = url if scheme == "memory" else f"file:{Path(rest or '.').resolve()}"
    with _hubs_lock:
        hub = _hubs.get(key)
        if hub is None or hub.pid != os.getpid():
            hub = _hubs[key] = _Hub(key, _open_journal(scheme, rest))
        return hub.link()


def _open_journal(scheme: str, rest: str) -> Journal:
    if scheme == "memory":
        from oncemq.journal.memory import MemoryJournal

        # Each has an id of its own: what came from another one, in an earlier run, does not fit by accident.
        return MemoryJournal(journal_id=secrets.token_bytes(16))
    if scheme == "file":
        from oncemq.journal.files.journal import open_files

        return open_files(rest or ".", segment_bytes=SEGMENT_BYTES)
    raise errors.SettingInvalid(f"'{scheme}:' is not a place for an embedded broker; use file:PATH or memory:")
