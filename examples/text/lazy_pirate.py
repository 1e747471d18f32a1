"""Lazy Pirate: send a request until it is answered, or report an error. It uses plain pyzmq, and nothing of OnceMQ.

A REQ socket that has lost its reply is stuck. So after the timeout it is closed, and the request is sent again from a
new socket. This is always safe for a request with an id (client.py), but not for every request in one line
(one_line.py).
"""

from __future__ import annotations

import time

import zmq

TIMEOUT_S = 1.0
TRIES = 5

#: Errors after which nothing was decided: the same request may succeed later.
UNDECIDED = ("BROKER_AWAY", "OVERLOADED", "STOPPING", "STANDBY", "BUSY", "WINDOW_FULL", "DAMAGED_IN_TRANSIT")


class ServerOffline(Exception):
    """The server seems to be offline."""


def ask(url: str, request: bytes, timeout_s: float = TIMEOUT_S, tries: int = TRIES) -> tuple[str, bytes]:
    """Return ("OK", the reply), or the code and the text of an error. Raises ServerOffline."""
    for _ in range(tries):
        begin_s = time.monotonic()
        reply = _ask_once(url, request, timeout_s)
        if reply is not None:
            word, _, rest = reply.partition(b" ")
            if word == b"OK":
                return "OK", rest
            code, _, text = rest.partition(b" ")
            if code.decode() not in UNDECIDED:
                return code.decode(), text
            time.sleep(max(0.0, timeout_s - (time.monotonic() - begin_s)))
    raise ServerOffline(f"the server seems to be offline: {tries} tries at {url}")


def _ask_once(url: str, request: bytes, timeout_s: float) -> bytes | None:
    with zmq.Context.instance().socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(url)
        socket.send(request)
        return socket.recv() if socket.poll(timeout_s * 1000) else None
