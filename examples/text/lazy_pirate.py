"""Lazy Pirate: a request that is answered, or an error, whatever happens on the way. Plain pyzmq, nothing of OnceMQ.

A REQ socket that has lost its reply is stuck, so it is thrown away: after the time-out the request goes out again from
a new one. Whether that is harmless is the request's business: with an id it is (client.py), in one line it is not
always (one_line.py).
"""

from __future__ import annotations

import time

import zmq

TIMEOUT_S = 1.0
TRIES = 5

#: Nothing was decided: the same request may succeed in a moment.
UNDECIDED = ("BROKER_AWAY", "OVERLOADED", "STOPPING", "STANDBY", "BUSY", "WINDOW_FULL", "DAMAGED_IN_TRANSIT")


class ServerOffline(Exception):
    """The server seems to be offline."""


def ask(url: str, request: bytes, timeout_s: float = TIMEOUT_S, tries: int = TRIES) -> tuple[str, bytes]:
    """("OK", what was said or got), or an error's code and its text. Raises ServerOffline."""
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
