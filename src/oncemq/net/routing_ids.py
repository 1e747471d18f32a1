"""Makes the routing ids of a ROUTER socket unpredictable."""

from __future__ import annotations

import ctypes
import secrets
from typing import Any

import zmq


def router_socket(context: Any) -> Any:
    """Return a ROUTER socket. libzmq counts the ids of its peers from a number of `rand`, and aborts if a peer has
    claimed the next one. So nobody must be able to predict them."""
    # libzmq may seed `rand` itself with the time when a context gets its first socket.
    context.socket(zmq.PAIR).close(0)
    ctypes.CDLL(None).srand(secrets.randbits(32))
    return context.socket(zmq.ROUTER)
