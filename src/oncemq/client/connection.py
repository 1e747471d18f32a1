"""A client, but for its shell: its parts put together, its subscriptions, its beginning and its end."""

from __future__ import annotations

import logging
import os
import secrets
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from oncemq.client.admin import Administration
from oncemq.client.consumer.subscribe import Subscribing
from oncemq.client.consumer.subscriptions import P, S
from oncemq.client.context import ClientContext
from oncemq.client.core.core import Core
from oncemq.client.core.options import Options
from oncemq.client.core.pending import Pending
from oncemq.client.core.validation import check_name
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.producer.producer import H, Producing
from oncemq.client.runtime.background import Background
from oncemq.client.runtime.driver import Driver, now_ms
from oncemq.client.runtime.flow import Flow, Until, method
from oncemq.client.staging import Staging
from oncemq.protocol import errors, limits

if TYPE_CHECKING:
    from oncemq.client.recording.recorder import Recorder

log = logging.getLogger("oncemq.client")

#: Politeness at close has its limits.
_BYE_MS = 500.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What `connect` was given. Raises SettingInvalid, NameInvalid or TypeError for what can't be."""

    urls: list[str]
    outbox: str | os.PathLike[str] | None = None
    record: str | os.PathLike[str] | None = None
    name: str | None
    label: str
    timeout_s: float
    tries: int
    window: int
    batch_messages: int
    batch_bytes: int
    linger_ms: float
    buffer_bytes: int

    def __post_init__(self) -> None:
        if self.tries < 1 or self.timeout_s <= 0:
            raise errors.SettingInvalid("timeout_s is above 0 and tries at least 1")
        if not 1 <= self.window <= limits.WINDOW_MAX:
            raise errors.SettingInvalid(f"window lies between 1 and {limits.WINDOW_MAX}")
        if self.batch_messages < 1 or self.batch_bytes < 1:
            raise errors.SettingInvalid("batch_messages and batch_bytes are at least 1")
        if self.linger_ms < 0 or self.buffer_bytes < 1:
            raise errors.SettingInvalid("linger_ms is not below 0, and buffer_bytes at least 1")
        if self.outbox is not None and self.name is not None:
            raise errors.SettingInvalid("an outbox has a session of its own: leave the name out")
        _check_folder(self.record_folder)
        for what, text in (("name", self.name), ("label", self.label)):
            if text == "":
                raise errors.SettingInvalid(f"{what} is empty; leave it out, or give it a value")
            if text is not None:
                check_name(text, f"a client's {what}")

    @property
    def record_folder(self) -> str:
        """Where records go; empty: nowhere."""
        return os.environ.get("ONCEMQ_RECORD", "") if self.record is None else os.fspath(self.record)

    def core(self, outbox: OutboxFile | None = None) -> Core:
        where = " or ".join(self.urls)
        options = Options(timeout_ms=self.timeout_s * 1000, tries=self.tries, window=self.window, where=where)
        session, nonce = self._draw()
        if outbox is not None:
            session = outbox.session
        recorder = self._recorder(session)
        if outbox is not None:
            return Core(session, False, nonce, options, outbox=outbox, observer=recorder)
        return Core(session, self.name is None, nonce, options, self._draw, observer=recorder)

    def _recorder(self, session: str) -> Recorder | None:
        if not self.record_folder:
            return None
        from oncemq.client.recording.recorder import Recorder

        return Recorder(Path(self.record_folder), session)

    def batching(self) -> dict[str, Any]:
        """What a client wants to know of it."""
        return {
            "batch_messages": self.batch_messages,
            "batch_bytes": self.batch_bytes,
            "linger_ms": self.linger_ms,
            "buffer_bytes": self.buffer_bytes,
        }

    def _draw(self) -> tuple[str, int]:
        return self.name or f"{self.label}-{secrets.token_hex(8)}", secrets.randbits(63)


def _check_folder(folder: str) -> None:
    """Before anything is begun that would have to be ended again."""
    if not folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise errors.SettingInvalid(f"'{folder}' can't be recorded into: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise errors.SettingInvalid(f"'{folder}' can't be recorded into: it can't be written to")


class Connection(Producing[H], Subscribing[S, P], Staging, Administration, Generic[H, S, P]):
    """Everything that a client can do, in flows. New operations are added here, or to one of the parts."""

    def __init__(
        self,
        driver: Driver,
        background: Background,
        run_now: Callable[[Flow[Any]], Any],
        *,
        batch_messages: int,
        batch_bytes: int,
        linger_ms: float,
        buffer_bytes: int,
    ) -> None:
        super().__init__(
            batch_messages=batch_messages, batch_bytes=batch_bytes, linger_ms=linger_ms, buffer_bytes=buffer_bytes
        )
        self._driver = driver
        self._background = background
        self._run_now = run_now
        self._context = ClientContext(driver, background, self._freeze_all)
        _connections.add(self)

    def __repr__(self) -> str:
        core = self._driver.core
        return f"Client({core.session!r} at {core.options.where})"

    @property
    def name(self) -> str:
        """The session's name."""
        return self._driver.core.session

    # The beginning and the end.

    @method
    def _greet(self) -> Flow[None]:
        try:
            pending = self._driver.core.greet()
            yield pending
            pending.result()
        except BaseException:
            self._end()
            raise

    @method
    def close(self) -> Flow[None]:
        """Send what was put, ack what was given, end. Raises if something of that can't be done."""
        return self._finish(clean=True)

    @method
    def _close(self, clean: bool) -> Flow[None]:
        return self._finish(clean)

    def _finish(self, clean: bool) -> Flow[None]:
        if self._driver.stopped is not None:
            return
        try:
            yield from self._finish_work(clean)
            yield Until(self._bye(), now_ms() + _BYE_MS)
        except errors.OnceMQError as error:
            if clean:
                raise
            log.warning("while closing: %s", error)
        finally:
            self._end()

    def _bye(self) -> Pending:
        return self._driver.core.bye()

    def _finish_work(self, clean: bool) -> Flow[None]:
        """All of it, whatever fails meanwhile; then the first failure is raised."""
        failures: list[Exception] = []
        for step in [*(each._close(clean) for each in list(self._subscriptions)), self._flush()]:
            try:
                yield from step
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    @method
    def _shut(self) -> Flow[None]:
        """At once, whatever is unfinished."""
        self._end()
        yield from ()

    def _end(self) -> None:
        if self._driver.stopped is None:
            self._streams = {}
            self._background.stop()
            self._driver.stop(errors.ClientClosed("this client was closed; connect again"))
            recorder = self._driver.core.recorder
            if recorder is not None:
                recorder.close()

    def _after_fork(self) -> None:
        self._driver.after_fork()
        self._streams = {}


_connections: weakref.WeakSet[Connection[Any, Any, Any]] = weakref.WeakSet()


def _mark_forked() -> None:
    for connection in list(_connections):
        connection._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
