"""A broker inside the process of its clients: `connect("file:./data")`, `connect("memory:")`. Same API, no server.

No thread switch is needed for a request: the thread that waits for a reply runs the broker's rounds, under one lock. A
daemon thread runs rounds that are due while no client waits.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote

import msgspec

from oncemq.broker.clock import SystemClock
from oncemq.broker.loop import Broker
from oncemq.broker.network import Arrival, Network
from oncemq.config.sources import from_environment
from oncemq.journal.contract import Journal
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import Limits

#: Smaller than those of a server, because four segments are created at the start.
SEGMENT_BYTES = 16 * 1024 * 1024
LIMITS = Limits(batch_bytes_max=8 * 1024 * 1024)


class Link:
    """The connection of one client to the broker of this process."""

    def __init__(self, hub: _Hub, peer: bytes) -> None:
        self._hub = hub
        self._peer = peer
        self._replies: deque[list[Frame]] = deque()

    def send(self, frames: Sequence[Frame]) -> None:
        self._hub.arrive(self._peer, frames)

    def receive(self, timeout_ms: float) -> list[Frame] | None:
        """Return the next reply, or None after the timeout. Runs the broker while it waits."""
        if self._replies:
            return self._replies.popleft()
        deadline = time.monotonic() + timeout_ms / 1000
        with self._hub.changed:
            while True:
                self._hub.run()
                if self._replies:
                    return self._replies.popleft()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._hub.changed.wait(min(left, self._hub.wait_s()))

    def deliver(self, frames: list[Frame]) -> None:
        self._replies.append(frames)

    def close(self) -> None:
        self._hub.leave(self._peer)


class _Hub:
    """The broker, its links, and the lock under which one thread at a time runs the broker."""

    def __init__(self, key: str, journal: Journal) -> None:
        self.key = key
        self.pid = os.getpid()
        self.changed = threading.Condition(threading.RLock())
        self._links: dict[bytes, Link] = {}
        self._arrived: list[Arrival] = []
        self._peers = 0
        self._failure: BaseException | None = None
        self._has_delivered = False
        self._journal = journal
        try:
            self._broker = _start_broker(journal, self)
        except BaseException:
            journal.close()
            raise
        threading.Thread(target=self._run_in_background, name="oncemq-embedded", daemon=True).start()

    # The broker's side (it is the broker's Network).

    def take(self, wait_ms: int) -> list[Arrival]:  # noqa: ARG002
        arrived, self._arrived = self._arrived, []
        return arrived

    def when_gone(self, call: Callable[[bytes], None]) -> None: ...

    def caller_of(self, peer: bytes) -> str:  # noqa: ARG002
        return ""

    def drop_invalid(self) -> None: ...

    def is_reading(self, peer: bytes) -> bool:  # noqa: ARG002
        return True

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.deliver(list(frames))
            self._has_delivered = True

    # The clients' side.

    def link(self) -> Link:
        with self.changed:
            self._peers += 1
            peer = self._peers.to_bytes(8, "big")
            self._links[peer] = Link(self, peer)
            return self._links[peer]

    def arrive(self, peer: bytes, frames: Sequence[Frame]) -> None:
        self._check()
        with self.changed:
            self._arrived.append((peer, frames))

    def run(self) -> None:
        """Run rounds until there is nothing left to do without waiting. The caller holds the lock."""
        self._check()
        try:
            self._broker.run_once()
            while self._arrived or self._broker.busy:
                self._broker.run_once()
        except BaseException as failure:
            self._fail(failure)
            raise
        if self._has_delivered:
            # Threads that woke each other without a reply would keep a core busy.
            self._has_delivered = False
            self.changed.notify_all()

    def _fail(self, failure: BaseException) -> None:
        """Stop after a failed disk, or after Ctrl-C in the middle of a round. Requests without a reply are dropped and
        the folder is unlocked; the next client that connects recovers it."""
        self._failure = failure
        if _hubs.get(self.key) is self:
            del _hubs[self.key]
        self._journal.close()
        self.changed.notify_all()

    def wait_s(self) -> float:
        return self._broker.wait_ms() / 1000

    def _check(self) -> None:
        if os.getpid() != self.pid:
            raise errors.ForkedError("the embedded broker belongs to the parent process; connect in the child")
        if self._failure is not None:
            raise errors.JournalFailed(f"the embedded broker stopped: {self._failure}") from self._failure

    def leave(self, peer: bytes) -> None:
        with _hubs_lock, self.changed:
            self._links.pop(peer, None)
            if not self._links and os.getpid() == self.pid:
                if _hubs.get(self.key) is self:
                    del _hubs[self.key]
                self._stop()

    def _stop(self) -> None:
        if self._failure is None:
            self._failure = errors.ClientClosed("the embedded broker was closed with its last client")
            self._broker.stop()
            self.changed.notify_all()

    def _run_in_background(self) -> None:
        while True:
            with self.changed:
                if self._failure is not None:
                    return
                try:
                    self.run()
                except errors.OnceMQError:
                    return
                self.changed.wait(self.wait_s())


_hubs: dict[str, _Hub] = {}
_hubs_lock = threading.Lock()


def _forget_in_child() -> None:
    """Drop the parent's brokers. The lock is new because a thread that does not exist in the child may hold it."""
    global _hubs_lock
    _hubs_lock = threading.Lock()
    _hubs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def attach(url: str) -> Link:
    """Return a link to the broker of this process for `file:PATH` or `memory:NAME`. It is started if necessary.

    It stops when its last link is closed. Raise JournalLocked if another process uses the folder."""
    scheme, _, rest = url.partition(":")
    rest = unquote(rest.removeprefix("//")) if rest.startswith("//") else unquote(rest)
    key = url if scheme == "memory" else f"file:{Path(rest or '.').resolve()}"
    with _hubs_lock:
        hub = _hubs.get(key)
        if hub is None or hub.pid != os.getpid():
            hub = _hubs[key] = _Hub(key, _open_journal(scheme, rest))
        return hub.link()


def _start_broker(journal: Journal, network: Network) -> Broker:
    # The clock's settings have no other source here. What else a server can set stays as it is.
    limits = msgspec.structs.replace(LIMITS, clock_leap_ms_max=from_environment("clock_leap_ms_max"))
    return Broker(journal, network, SystemClock(), limits, trust_clock=from_environment("trust_clock"))


def _open_journal(scheme: str, rest: str) -> Journal:
    if scheme == "memory":
        from oncemq.journal.memory import MemoryJournal

        # Each has an id of its own, so that ids from an earlier run are not valid by accident.
        return MemoryJournal(journal_id=secrets.token_bytes(16))
    if scheme == "file":
        from oncemq.journal.files.journal import open_files

        return open_files(rest or ".", segment_bytes=SEGMENT_BYTES)
    raise errors.SettingInvalid(f"'{scheme}:' is not a URL of an embedded broker; use file:PATH or memory:")
