"""The limit of open files of the process: raised at the start, with a reserve that connections may not use."""

from __future__ import annotations

import resource

#: More descriptors are not needed. Some systems allow a billion, which makes programs slow that close all of them.
_DESCRIPTORS_MAX = 2**20
#: Descriptors that connections may not use: for segments, snapshots, the gateway and other sockets.
_RESERVE_MAX = 256


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit, as far as the system allows it. Return the soft limit."""
    soft, hard = _limits()
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (OSError, ValueError):
            return soft
    return hard


def connection_descriptors_max() -> int:
    """Return the first descriptor that a connection may not have. The system always assigns the lowest free one, so a
    connection with this number shows that only the reserve is left."""
    soft, _ = _limits()
    return soft - min(_RESERVE_MAX, soft // 4)


def _limits() -> tuple[int, int]:
    """Return the soft and the hard limit of open files."""
    soft, hard = (_DESCRIPTORS_MAX if each < 0 else each for each in resource.getrlimit(resource.RLIMIT_NOFILE))
    return soft, min(max(hard, soft), max(soft, _DESCRIPTORS_MAX))
