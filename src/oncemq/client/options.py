"""The options of `connect`: their names, defaults and bounds. `oncemq.connect` documents them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oncemq.client.core.core import Core
from oncemq.client.core.options import Options
from oncemq.client.core.validation import check_name
from oncemq.client.credentials import NO_CREDENTIALS, CredentialOptions, Credentials, credentials_of
from oncemq.client.runtime.transport import split_urls
from oncemq.config import endpoints
from oncemq.protocol import errors, limits

if TYPE_CHECKING:
    import ssl

    from oncemq.client.outbox.file import OutboxFile
    from oncemq.client.recording.recorder import Recorder


class OutboxOptions(CredentialOptions, total=False):
    """Options of `connect` with an outbox."""

    context: str | None
    timeout_s: float
    tries: int
    window: int
    batch_messages: int
    batch_bytes: int
    linger_ms: float
    buffer_bytes: int
    busy_poll_us: int
    record: str | os.PathLike[str] | None


class ConnectOptions(OutboxOptions, total=False):
    """Options of `connect` without an outbox, which has a session of its own."""

    name: str | None
    label: str


class ConnectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The values of all options, with their defaults. Raises SettingInvalid, NameInvalid or TypeError."""

    urls: list[str]
    credentials: Credentials = NO_CREDENTIALS
    outbox: str | os.PathLike[str] | None = None
    name: str | None = None
    label: str = "anonymous"
    timeout_s: float = 1.0
    tries: int = 5
    window: int = 64
    batch_messages: int = 1000
    batch_bytes: int = 256 * 1024
    linger_ms: float = 5.0
    buffer_bytes: int = 64 * 1024 * 1024
    busy_poll_us: int = 0
    record: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.tries < 1 or self.timeout_s <= 0:
            raise errors.SettingInvalid("timeout_s must be above 0, and tries at least 1")
        if not 1 <= self.window <= limits.WINDOW_MAX:
            raise errors.SettingInvalid(f"window must be between 1 and {limits.WINDOW_MAX}")
        if self.batch_messages < 1 or self.batch_bytes < 1:
            raise errors.SettingInvalid("batch_messages and batch_bytes must be at least 1")
        if self.linger_ms < 0 or self.buffer_bytes < 1:
            raise errors.SettingInvalid("linger_ms must not be below 0, and buffer_bytes must be at least 1")
        if self.busy_poll_us < 0:
            raise errors.SettingInvalid("busy_poll_us must not be below 0")
        if self.outbox is not None and self.name is not None:
            raise errors.SettingInvalid("name can't be used with an outbox, which has its own session; leave it out")
        _check_folder(self.record_folder)
        for what, text in (("name", self.name), ("label", self.label)):
            if text == "":
                raise errors.SettingInvalid(f"{what} is empty; leave it out, or give it a value")
            if text is not None:
                check_name(text, f"a client's {what}")

    @property
    def record_folder(self) -> str:
        """The folder that records go to; empty: none."""
        return os.environ.get("ONCEMQ_RECORD", "") if self.record is None else os.fspath(self.record)

    def make_core(self, outbox: OutboxFile | None = None) -> Core:
        """Return the core of a new session, or of the outbox's session."""
        where = " or ".join(self.urls)
        options = Options(timeout_ms=self.timeout_s * 1000, tries=self.tries, window=self.window, where=where)
        session, nonce = self._new_session()
        if outbox is not None:
            recorder = self._make_recorder(outbox.session)
            return Core(outbox.session, False, nonce, options, outbox=outbox, observer=recorder)
        recorder = self._make_recorder(session)
        return Core(session, self.name is None, nonce, options, self._new_session, observer=recorder)

    def _make_recorder(self, session: str) -> Recorder | None:
        if not self.record_folder:
            return None
        from oncemq.client.recording.recorder import Recorder

        return Recorder(Path(self.record_folder), session)

    def _new_session(self) -> tuple[str, int]:
        """Return a session's name and nonce."""
        return self.name or f"{self.label}-{secrets.token_hex(8)}", secrets.randbits(63)


def settings_of(
    url: str | Sequence[str] | None, outbox: str | os.PathLike[str] | None, options: Mapping[str, Any]
) -> ConnectSettings:
    """Return the settings for the arguments of `connect`. Raises TypeError for an option that does not exist."""
    known = ConnectOptions.__annotations__
    for option in options:
        if option not in known:
            raise TypeError(f"connect() has no option {option!r}; it has {', '.join(sorted({*known, 'outbox'}))}")
    urls, credentials = _reach(url, {name: options[name] for name in options if name in _REACH})
    rest = {name: value for name, value in options.items() if name not in _REACH}
    return ConnectSettings(urls=urls, credentials=credentials, outbox=outbox, **rest)


_REACH = ("context", *endpoints.CREDENTIALS)


def _reach(url: str | Sequence[str] | None, options: Mapping[str, Any]) -> tuple[list[str], Credentials]:
    """Return the addresses and the credentials. Raises SettingInvalid or TypeError."""
    given: dict[str, Any] = {name: _plain(name, value) for name, value in options.items()}
    context = None
    if not isinstance(given.get("tls"), bool | str | None):
        context, given["tls"] = _ssl_context(given["tls"]), True
    if url is not None:
        given["url"] = ",".join([url] if isinstance(url, str) else url)
    endpoint = endpoints.choose([endpoints.arguments(given), endpoints.environment()]).endpoint
    urls = split_urls(endpoint.url)
    return urls, credentials_of(endpoint, urls, context)


def _plain(name: str, value: Any) -> Any:
    """The value of an option, with a path as text. Raises TypeError, which does not show the value."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if name != "tls" and not isinstance(value, str | None):
        raise TypeError(f"{name} must be a text, not {type(value).__name__}")
    return value


def _ssl_context(value: Any) -> ssl.SSLContext:
    import ssl

    if not isinstance(value, ssl.SSLContext):
        raise TypeError(f"tls must be True, False, a file or an ssl.SSLContext, not {type(value).__name__}")
    return value


def _check_folder(folder: str) -> None:
    """Raise SettingInvalid if records can't be written to a folder, before anything is opened."""
    if not folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise errors.SettingInvalid(f"records can't be written to '{folder}': {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise errors.SettingInvalid(f"records can't be written to '{folder}': permission denied")
