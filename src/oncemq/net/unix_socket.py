"""Who may connect to a Unix socket: the mode of its file."""

from __future__ import annotations

import os

_PREFIX = "ipc://"


def set_mode(address: str, mode: str) -> None:
    """Give the file of a Unix socket a mode, in octal digits, whatever the umask is. Other addresses have no file."""
    path = address.removeprefix(_PREFIX)
    if path != address and not path.startswith("@"):
        os.chmod(path, int(mode, 8))
