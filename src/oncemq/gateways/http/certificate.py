"""The certificate of the HTTP gateway, which can be replaced while the gateway runs."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from oncemq.net.tls import SERVER, SERVER_KEY, server_context
from oncemq.protocol import errors

log = logging.getLogger("oncemq.gateways")

#: How often the files are looked at.
_CHECK_S = 1.0

#: (time of the last change, size, inode) of each file; empty if one of them does not exist.
_Version = tuple[tuple[int, int, int], ...]


class Certificate:
    """The context for new connections. New files are used from then on. While they can't be used, because they are not
    valid or only one of them was replaced, the former ones stay in use."""

    def __init__(self, keys: Path) -> None:
        """Raises SettingInvalid."""
        self._keys = keys
        self._version = self._find_version()
        self._context = server_context(keys)
        self._checked_s = 0.0

    def context(self, now_s: float) -> ssl.SSLContext:
        if now_s - self._checked_s >= _CHECK_S:
            self._checked_s = now_s
            if self._find_version() != self._version:
                self.reload()
        return self._context

    def reload(self) -> None:
        """Use the files as they are now, if they are valid."""
        former, self._version = self._version, self._find_version()
        try:
            self._context = server_context(self._keys)
        except errors.SettingInvalid as error:
            log.warning("HTTP continues with its former certificate: %s", error.text)
        else:
            if self._version != former:
                log.info("HTTP uses a new certificate from now on: %s", self._keys / SERVER)

    def _find_version(self) -> _Version:
        try:
            found = [(self._keys / name).stat() for name in (SERVER, SERVER_KEY)]
        except OSError:
            return ()
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)
