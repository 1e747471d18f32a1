"""The blocking client: what `oncemq.connect` returns. Any number of threads may use one."""

from __future__ import annotations

import logging
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

from oncemq import errors, limits
from oncemq.client.administration import Administration
from oncemq.client.checking import check_name
from oncemq.client.core import Core
from oncemq.client.driver import Driver, now_ms
from oncemq.client.options import Options
from oncemq.client.producing import Producing
from oncemq.client.reading import Reader, Start, start_of
from oncemq.client.subscription import Subscription
from oncemq.client.transport import open_transport, split_urls
from oncemq.engine.commands import Operation, Subscribe, Unsubscribe
from oncemq.engine.replies import Reply, SubscribeReply
from oncemq.message import Message
from oncemq.wire.frames import Frame

log = logging.getLogger("oncemq.client")

_T = TypeVar("_T")

#: Politeness at close has its limits.
_BYE_MS = 500.0
#: "Not now" is an answer at once.
_AT_ONCE_MS = 1e-3


def connect(
    url: str | Sequence[str] | None = None,
    *,
    name: str | None = None,
    label: str = "anonymous",
    timeout_s: float = 1.0,
    tries: int = 5,
    window: int = 64,
    batch_messages: int = 1000,
    batch_bytes: int = 256 * 1024,
    linger_ms: float = 5.0,
    buffer_bytes: int = 64 * 1024 * 1024,
) -> Client:
    """Connect to a broker.

    `url`: `tcp://HOST:PORT` or `ipc://PATH` (several, as a sequence or with commas between: the next is tried
    when one does not answer); `file:FOLDER` or `memory:` for a broker inside this process. Default: the
    environment's ONCEMQ_URL, or tcp://127.0.0.1:5555.

    `name` makes the session durable: it goes on where an earlier process of that name ended, and fences off one
    that still runs. Without it the session is this client's own; `label` is the beginning of its name.

    >>> with oncemq.connect() as client:
    ...     client.put("orders", "one pizza", create=True)
    """
    if tries < 1 or timeout_s <= 0:
        raise errors.SettingInvalid("timeout_s is above 0 and tries at least 1")
    if not 1 <= window <= limits.WINDOW_MAX:
        raise errors.SettingInvalid(f"window lies between 1 and {limits.WINDOW_MAX}")
    if batch_messages < 1 or batch_bytes < 1:
        raise errors.SettingInvalid("batch_messages and batch_bytes are at least 1")
    if linger_ms < 0 or buffer_bytes < 1:
        raise errors.SettingInvalid("linger_ms is not below 0, and buffer_bytes at least 1")
    for what, text in (("name", name), ("label", label)):
        if text == "":
            raise errors.SettingInvalid(f"{what} is empty; leave it out, or give it a value")
        if text is not None:
            check_name(text, f"a client's {what}")
    urls = split_urls(url)
    options = Options(timeout_ms=timeout_s * 1000, tries=tries, window=window, where=" or ".join(urls))

    def draw() -> tuple[str, int]:
        return name or f"{label}-{secrets.token_hex(8)}", secrets.randbits(63)

    session, nonce = draw()
    core = Core(session, name is None, nonce, options, draw)
    client = Client(
        Driver(core, open_transport(urls)),
        batch_messages=batch_messages,
        batch_bytes=batch_bytes,
        linger_ms=linger_ms,
        buffer_bytes=buffer_bytes,
    )
    client._greet()
    return client


class Client(Producing, Administration):
    """A connection to a broker; made by `oncemq.connect`. Threads may share it; forked children may not.

    >>> with oncemq.connect() as client:
    ...     client.put("orders", "one pizza")
    """

    def __init__(
        self, driver: Driver, *, batch_messages: int, batch_bytes: int, linger_ms: float, buffer_bytes: int
    ) -> None:
        super().__init__(
            driver,
            batch_messages=batch_messages,
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            buffer_bytes=buffer_bytes,
        )
        self._subscriptions: set[Subscription] = set()
        _clients.add(self)

    def __repr__(self) -> str:
        core = self._driver.core
        return f"Client({core.session!r} at {core.options.where})"

    @property
    def name(self) -> str:
        """The session's name."""
        return self._driver.core.session

    # Subscriptions.

    def subscribe(
        self, topic: str, subscriber: str, start: Start = "new", *, auto_ack: bool = True,
        prefetch_bytes: int = 1024 * 1024,
    ) -> Subscription:
        """Make a durable subscription, and its topic where there is none; harmless where it exists.

        `start`: `"new"`, `"earliest"` or an offset; an existing subscription stays where it is.

        >>> client.subscribe("orders", "kitchen", start="earliest").created
        True
        """
        reply = self._call(Subscribe(topic, subscriber, start_of(start)), SubscribeReply)
        return Subscription(
            self, topic, subscriber, created=reply.created, auto_ack=auto_ack, prefetch_bytes=prefetch_bytes
        )

    def subscription(
        self,
        topic: str,
        subscriber: str,
        *,
        auto_ack: bool = True,
        hold_ms: int = 0,
        busy_s: float = 0.0,
        prefetch_bytes: int = 1024 * 1024,
    ) -> Subscription:
        """An existing subscription. Its first use takes it over from another client that uses it.

        With `hold_ms` it is opened now, and politely: while another polite client holds it, this raises Busy,
        after trying for `busy_s`.

        >>> client.subscription("orders", "kitchen").get(timeout_s=1)
        """
        found = Subscription(
            self, topic, subscriber, auto_ack=auto_ack, hold_ms=hold_ms, prefetch_bytes=prefetch_bytes
        )
        if hold_ms:
            found._ensure_open(give_up_ms=busy_s * 1000 or _AT_ONCE_MS)
        return found

    def unsubscribe(self, topic: str, subscriber: str) -> None:
        """End a durable subscription. A topic that was made by subscribing goes with its last one.

        >>> client.unsubscribe("orders", "kitchen")
        """
        self._call_any(Unsubscribe(topic, subscriber))

    def read(
        self,
        topic: str,
        start: Start | None = None,
        *,
        stop: int | None = None,
        follow: bool = False,
        topic_id: int = 0,
    ) -> Iterator[Message]:
        """Messages that are still stored, from `start` up to `stop` (exclusive) or the end; with `follow`, on and on.

        `start` is `"earliest"` where it is not said; with `follow`, `"new"`.

        >>> [message.text for message in client.read("orders")]
        ['one pizza']
        """
        if start is None:
            start = "new" if follow else "earliest"
        return Reader(self._driver, topic, start, stop, follow, topic_id).messages()

    # Calls.

    def _greet(self) -> None:
        try:
            with self._lock:
                pending = self._driver.core.greet()
                self._driver.wait_locked(pending)
            pending.result()
        except BaseException:
            self._shut()
            raise

    def _call_any(self, operation: Operation, payload: Frame | None = None, *, give_up_ms: float = 0.0) -> Reply:
        """A numbered operation, behind everything that was put before it."""
        with self._lock:
            self._driver.check_usable()
            self._freeze_all()
            pending = self._driver.core.submit(operation, payload, give_up_ms=give_up_ms)
            self._driver.wait_locked(pending)
        return pending.result()

    def _call(
        self, operation: Operation, kind: type[_T], payload: Frame | None = None, *, give_up_ms: float = 0.0
    ) -> _T:
        reply = self._call_any(operation, payload, give_up_ms=give_up_ms)
        if not isinstance(reply, kind):
            raise errors.Malformed(f"{type(operation).__name__} was answered with {type(reply).__name__}")
        return reply

    # The end.

    def close(self) -> None:
        """Send what was put, ack what was given, end. Raises if something of that can't be done."""
        self._close(clean=True)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(clean=kind is None)

    def _close(self, clean: bool) -> None:
        if self._driver.stopped is not None:
            return
        try:
            self._finish_work(clean)
            self._say_bye()
        except errors.OnceMQError as error:
            if clean:
                raise
            log.warning("while closing: %s", error)
        finally:
            self._shut()

    def _finish_work(self, clean: bool) -> None:
        """All of it, whatever fails meanwhile; then the first failure is raised."""
        steps: list[Callable[[], None]] = [partial(each._close, clean) for each in list(self._subscriptions)]
        failures: list[Exception] = []
        for step in [*steps, self.flush]:
            try:
                step()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _say_bye(self) -> None:
        with self._lock:
            pending = self._driver.core.bye()
            self._driver.wait_locked(pending, now_ms() + _BYE_MS)

    def _shut(self) -> None:
        with self._lock:
            if self._driver.stopped is not None:
                return
            self._driver.stop_locked(errors.ClientClosed("this client was closed; connect again"))
            self._streams = {}
            self._bell.set()
            self._driver.wait_for_poller_locked()
            self._driver.transport.close()

    def _after_fork(self) -> None:
        self._driver.after_fork()
        self._lock = self._driver.lock
        self._streams = {}


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _mark_forked() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
