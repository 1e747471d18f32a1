"""What a client shows to a gateway, a token, and how it checks the gateway's certificate."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from oncemq.config.addresses import is_loopback
from oncemq.protocol.errors import SettingInvalid

#: True: the authorities of the system; a text: the file of an authority; False: the certificate is not checked.
Verify = bool | str | ssl.SSLContext


class Token:
    """A token, or a file with one. The file is read again when it changes, so that the token can be replaced."""

    def __init__(self, token: str | None, token_file: str | None) -> None:
        """None: what the environment says."""
        if token is None and token_file is None:
            token = os.environ.get("ONCEMQ_TOKEN", "")
            token_file = "" if token else os.environ.get("ONCEMQ_TOKEN_FILE", "")
        self._token = token or ""
        self._path = Path(os.path.expanduser(token_file)) if token_file else None
        self._changed_ns = -1

    def __repr__(self) -> str:
        return "Token(…)"

    @property
    def is_given(self) -> bool:
        """Whether there is a token, or a file that may get one."""
        return bool(self._token or self._path)

    def current(self) -> str:
        """Return the token; empty if there is none. Raises SettingInvalid."""
        if self._path is None:
            return self._token
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._changed_ns:
                self._token, self._changed_ns = self._path.read_text().strip(), changed_ns
        except (OSError, UnicodeDecodeError) as error:
            raise SettingInvalid(f"the token can't be read from {self._path}: {error}") from None
        return self._token

    def refuse_plain(self, urls: Sequence[str]) -> None:
        """Raises SettingInvalid if the token would be sent unencrypted to another machine."""
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme == "http" and not is_loopback(parts.hostname or "") and self.is_given:
                raise SettingInvalid(f"the token would be sent to {url} unencrypted; use https://")


def context_of(verify: Verify | None) -> bool | ssl.SSLContext:
    """Return what httpx needs. None: what the environment says. Raises SettingInvalid."""
    if verify is None:
        named = os.environ.get("ONCEMQ_TLS", "")
        verify = named if named not in ("", "true", "false") else True
    if not isinstance(verify, str):
        return verify
    try:
        return ssl.create_default_context(cafile=os.path.expanduser(verify))
    except (OSError, ssl.SSLError) as error:
        raise SettingInvalid(f"the authority can't be read from {verify}: {error}") from None
